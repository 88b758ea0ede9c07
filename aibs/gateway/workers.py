"""Several gateway processes behind one listening socket, each a child of this one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from prometheus_client import multiprocess

from aibs import logs
from aibs.children.child import Child
from aibs.gateway.control.meter import SHARED_DIR

if TYPE_CHECKING:
    import socket

    from aibs.settings import Settings

LISTENING: Final = "_AIBS_GATEWAY_SOCKET"
"""Tells a worker the file descriptor to serve on. No setting: only this module writes it."""

MONITORS: Final = "_AIBS_GATEWAY_MONITORS"
"""Tells a worker that it has the monitor inside."""

PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 30.0
STEADY_S: Final = 60.0
"""A worker that ran so long fails as if for the first time."""

GRACE_S: Final = 15.0
"""Beyond the drain, for releases and the last words."""


def run(settings: Settings, sock: socket.socket, count: int, *, arguments: list[str]) -> None:
    """Run `count` workers until SIGTERM or SIGINT; one that dies is started again."""
    asyncio.run(_run(settings, sock, count, arguments))


async def _run(settings: Settings, sock: socket.socket, count: int, arguments: list[str]) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    workers: list[_Worker] = []

    def stop() -> None:
        if told.is_set():
            for worker in workers:
                worker.hasten()
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    metrics_dir = tempfile.mkdtemp(prefix="aibs-gateway-metrics-")
    sock.set_inheritable(True)
    environment = {
        **os.environ,
        LISTENING: str(sock.fileno()),
        SHARED_DIR: metrics_dir,
    }
    log = logs.get("aibs.gateway.workers")
    log.info("workers_started", count=count)
    try:
        async with AsyncExitStack() as stack:
            for place in range(count):
                own = {**environment, MONITORS: "1"} if place == 0 else environment
                worker = _Worker(f"worker {place}", arguments, own, sock.fileno(), settings)
                stack.push_async_callback(worker.close)
                workers.append(worker)
            tasks = [asyncio.create_task(worker.keep(), name=worker.name) for worker in workers]
            await told.wait()
            # Else its queue would take connections that nobody serves.
            sock.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(worker.close() for worker in workers))
    finally:
        shutil.rmtree(metrics_dir, ignore_errors=True)
    log.info("workers_stopped")


class _Worker:
    """One child, kept running."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environment: dict[str, str],
        fd: int,
        settings: Settings,
    ) -> None:
        self.name = name
        self._arguments = arguments
        self._environment = environment
        self._fd = fd
        self._grace_s = settings.api_drain_seconds + GRACE_S
        self._child: Child | None = None
        self._log = logs.get("aibs.gateway.workers", worker=name)

    async def keep(self) -> None:
        """Start it, and again whenever it ends."""
        pause_s = PAUSE_FIRST_S
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            self._child = Child(
                self.name,
                self._arguments,
                self._environment,
                grace_s=self._grace_s,
                hear=_pass_on,
                pass_fds=(self._fd,),
            )
            await self._child.__aenter__()
            pid = self._child.pid
            status = await self._child.wait()
            # One that was killed could not take back what it counted as under way.
            multiprocess.mark_process_dead(  # type: ignore[no-untyped-call]
                pid, self._environment[SHARED_DIR]
            )
            if loop.time() - began_s > STEADY_S:
                pause_s = PAUSE_FIRST_S
            self._log.error("worker_ended", status=status, again_in_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def hasten(self) -> None:
        """Have it end what it still drains."""
        if self._child is not None:
            self._child.signal(signal.SIGTERM)

    async def close(self) -> None:
        """Have it drain and end. May be repeated."""
        child = self._child
        if child is not None:
            await child.end()
            self._child = None


def _pass_on(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
