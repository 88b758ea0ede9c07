"""What one `aibs up` has for itself: its data directory and its port. Both looked at first."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from aibs.errors import ConfigurationError
from aibs.eventstore.embedded_files import DataDirectory, open_lock, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = "up.lock"
PID_BYTES_MAX = 32


@contextlib.contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """Have the data directory for ourselves. Raises ConfigurationError where another one has it.

    The kernel gives the lock back with the process, however it ended.
    """
    directory = DataDirectory.of(data_dir)
    directory.create()
    descriptor = open_lock(directory.path / LOCK)
    try:
        if not try_lock(descriptor):
            pid = os.read(descriptor, PID_BYTES_MAX).decode("ascii", "replace").strip()
            raise ConfigurationError(
                f"Another `aibs up` (process {pid or 'unknown'}) runs on {directory.path}.",
                mend="Stop it first, or name another AIBS_DATA_DIR and port.",
            )
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def check_address(host: str, port: int) -> None:
    """Raises ConfigurationError where the gateway could not listen there now."""
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
        )
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: connections of an earlier one that linger are not in the way.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        raise ConfigurationError(
            f"The gateway cannot listen on {host}:{port}: {error.strerror}.",
            mend="Stop what listens there, or name another --port (AIBS_API_PORT) or --host.",
        ) from error
