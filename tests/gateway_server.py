"""An ASGI application behind uvicorn on a real socket, in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from aibs import settings
from aibs.clock import SystemClock
from aibs.gateway.connection import ClientConnection
from aibs.gateway.context import GatewayContext

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from starlette.types import ASGIApp

    from aibs.placement import Placer


class _Server(uvicorn.Server):
    """One that leaves the process's signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: ASGIApp, *, path: str | None = None) -> AsyncIterator[str]:
    """The application's base URL, or with `path` a socket of the file system."""
    kind = socket.AF_UNIX if path else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as listening:
        listening.bind(path or ("127.0.0.1", 0))
        listening.listen(128)
        config = uvicorn.Config(
            cast("Any", app),
            http=ClientConnection,
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            # What a proxy says of a client is not believed.
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        server = _Server(config)
        running = asyncio.create_task(server.serve([listening]), name="uvicorn")
        try:
            while not server.started and not running.done():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.002)
            port = "" if path else listening.getsockname()[1]
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await running


def context_of(
    environ: Mapping[str, str], placer: Placer | None = None, *, local: bool = True
) -> GatewayContext:
    """A process's parts as its settings make them; without a placer for what places nothing."""
    configured = settings.load(environ, None)
    return GatewayContext(
        settings=configured,
        fleet=configured.fleet(),
        placer=cast("Placer", placer),
        clock=SystemClock(),
        local=local,
    )
