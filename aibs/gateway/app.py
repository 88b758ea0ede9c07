"""The ASGI application of one gateway process, and what lives and dies with it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.routing import Router

from aibs.clock import SystemClock
from aibs.gateway.context import Draining, GatewayContext
from aibs.gateway.plane import DataPlane
from aibs.gateway.replies import send_error
from aibs.placement import open_placer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from aibs.clock import Clock
    from aibs.settings import Settings


@dataclass(frozen=True, slots=True)
class Gateway:
    """`app` answers requests; `plane` has the requests under way."""

    app: ASGIApp
    plane: DataPlane
    context: GatewayContext

    def drain(self) -> None:
        """Take no new request from now on."""
        self.context.draining.on = True


@asynccontextmanager
async def open_gateway(settings: Settings, *, clock: Clock | None = None) -> AsyncIterator[Gateway]:
    """A gateway on the settings' pool, or with local admission where the cluster is off.

    Raises what open_placer raises. Left, every lease of it is given back.
    """
    clock = clock or SystemClock()
    async with open_placer(settings, role="gateway", clock=clock) as placer:
        context = GatewayContext(
            settings=settings,
            fleet=settings.fleet(),
            placer=placer,
            clock=clock,
            local=not settings.model_cluster_enabled,
            draining=Draining(),
        )
        async with control_plane(context) as (routes, meter, guarded):
            context = replace(context, meter=meter)
            async with DataPlane(context) as plane:
                router = Router([*plane.routes, *routes], redirect_slashes=False, default=_no_route)
                yield Gateway(guarded(router), plane, context)


async def _no_route(scope: Scope, _: Receive, send: Send) -> None:
    if scope["type"] == "http":
        path = scope["path"]
        await send_error(send, path, f"There is no {path[:200]} here.", None, 404)


@asynccontextmanager
async def control_plane(context: GatewayContext) -> AsyncIterator[tuple[list[Any], Any, Any]]:
    """Stands in for the control plane."""
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def health(_: Any) -> Any:
        return JSONResponse({"status": "ok"})

    yield [Route("/health", health)], context.meter, lambda app: app
