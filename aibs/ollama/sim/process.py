"""Simulated nodes as a process: from its port to the signal that ends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
from typing import TYPE_CHECKING

from aibs.errors import ConfigurationError
from aibs.ollama.sim.server import SimServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aibs.ollama.sim.spec import SimSpec


async def serve(
    specs: Sequence[SimSpec],
    *,
    host: str,
    port: int,
    on_ready: Callable[[SimServer], None],
) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigurationError where the port cannot be had.

    The fault `die` ends the process as `kill -9` does.
    """
    _raise_file_limit()
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with contextlib.AsyncExitStack() as stack:
        server = SimServer(specs, host=host, port=port, on_die=_die)
        try:
            await stack.enter_async_context(server)
        except OSError as error:
            raise _no_port(error, host, port) from error
        on_ready(server)
        await told.wait()


def _no_port(error: OSError, host: str, port: int) -> ConfigurationError:
    if isinstance(error, socket.gaierror):
        return ConfigurationError(f"--host: {host} is no address of this machine.")
    if error.errno == errno.EADDRINUSE:
        return ConfigurationError(
            f"Port {port} on {host} is in use.",
            mend="Choose another with --port, or 0 for any that is free.",
        )
    return ConfigurationError(f"Port {port} on {host} cannot be had: {error.strerror or error}.")


def _raise_file_limit() -> None:
    """A thousand nodes polled at once are a thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 65_536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
