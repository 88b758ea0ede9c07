"""One gateway process: listens, serves until told, drains."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import uvicorn

from aibs import logs
from aibs.errors import ConfigurationError
from aibs.gateway.app import open_gateway
from aibs.gateway.connection import KEEP_ALIVE_S, ClientConnection
from aibs.gateway.inner_monitor import monitor_inside

if TYPE_CHECKING:
    from collections.abc import Generator

    from aibs.gateway.app import Gateway
    from aibs.settings import Settings

BACKLOG = 2048
YOUNG_MAX = 10_000
"""Objects made before the collector looks for cycles: some tens of requests' worth."""

SWEEP_TICKS = 50
"""Of the server, a tenth of a second each, between two looks for clients that send nothing."""

LAST_WORDS_S = 5.0
"""After the drain: for the words to clients whose requests are ended, and the releases."""


def run(settings: Settings, sock: socket.socket, *, with_monitor: bool) -> None:
    """Serve on a bound socket until SIGTERM or SIGINT. A second signal ends what still runs."""
    _settle_memory()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, sock, with_monitor=with_monitor))


def _settle_memory() -> None:
    """What is loaded stays: the collector need not look at it again at every turn."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, 20, 50)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigurationError where the address cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"The gateway cannot listen on {host}:{port}: {error.strerror or error}.",
            mend="Set AIBS_API_HOST and AIBS_API_PORT to an address that is free on this machine.",
        ) from error
    return sock


class _Server(uvicorn.Server):
    """Leaves signals to its caller, and drops connections on which no request comes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        """Called by the server ten times a second; true ends it."""
        if counter % SWEEP_TICKS == 0:
            now_s = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, ClientConnection) and connection.overdue(now_s):
                    connection.drop()
        return await super().on_tick(counter)


async def _serve(settings: Settings, sock: socket.socket, *, with_monitor: bool) -> None:
    _quieten()
    log = logs.get("aibs.gateway")
    async with contextlib.AsyncExitStack() as stack:
        if with_monitor:
            await stack.enter_async_context(monitor_inside(settings))
        gateway = await stack.enter_async_context(open_gateway(settings))
        drain_s = settings.api_drain_seconds
        config = uvicorn.Config(
            gateway.app,
            loop="none",
            http=ClientConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(drain_s + LAST_WORDS_S) + 1,
        )
        server = _Server(config)
        draining = _Drain(gateway, server, drain_s)
        draining.listen_to_signals()
        host, port = sock.getsockname()[:2]
        log.info("gateway_started", host=host, port=port, local=gateway.context.local)
        try:
            await server.serve(sockets=[sock])
        finally:
            await draining.close()
    log.info("gateway_stopped")


class _Drain:
    """From the first signal to the end: no new request, time for those under way, then words."""

    def __init__(self, gateway: Gateway, server: _Server, limit_s: float) -> None:
        self._gateway = gateway
        self._server = server
        self._limit_s = limit_s
        self._task: asyncio.Task[None] | None = None
        self._log = logs.get("aibs.gateway")

    def listen_to_signals(self) -> None:
        """Take over SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told, number.name)
        loop.add_signal_handler(signal.SIGHUP, self._gateway.control.reload_keys)

    def _told(self, name: str) -> None:
        if self._task is not None:
            self._log.info("told_again", signal=name)
            self._gateway.plane.end_all()
            return
        self._log.info(
            "told_to_stop", signal=name, under_way=self._gateway.plane.count, limit_s=self._limit_s
        )
        self._gateway.drain()
        self._server.should_exit = True
        self._task = asyncio.create_task(self._run(), name="drain")

    async def _run(self) -> None:
        await asyncio.sleep(self._limit_s)
        self._log.warning("drain_over", ended=self._gateway.plane.count)
        self._gateway.plane.end_all()

    async def close(self) -> None:
        """Nothing is under way any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class _NotBrokenOff(logging.Filter):
    """An answer that is broken off on purpose is told in the gateway's own lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "returned without completing response" not in record.getMessage()


def _quieten() -> None:
    """The server's own lines: warnings alone, through the one logger."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "aiohttp"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = False
        logger.setLevel(logging.WARNING)
        logger.addHandler(_Handler())


class _Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(_NotBrokenOff())

    def emit(self, record: logging.LogRecord) -> None:
        log = logs.get(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def _loop_factory() -> Any:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
