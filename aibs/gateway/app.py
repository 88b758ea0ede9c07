"""The ASGI application of one gateway process, and what lives and dies with it."""

from __future__ import annotations

import contextlib
import os
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.routing import Router

from aibs.clock import SystemClock
from aibs.gateway.context import Draining, GatewayContext
from aibs.gateway.control.plane import ControlPlane
from aibs.gateway.plane import DataPlane
from aibs.gateway.replies import send_error
from aibs.gateway.routes import ForwardedRoute
from aibs.gateway.tracing import tracer_from
from aibs.placement import open_placer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from aibs.clock import Clock
    from aibs.gateway.context import Meter
    from aibs.settings import Settings


@dataclass(frozen=True, slots=True)
class Gateway:
    """`app` answers requests; `plane` has the requests under way."""

    app: ASGIApp
    plane: DataPlane
    control: ControlPlane
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
    tracer = tracer_from(os.environ)
    async with (
        contextlib.aclosing(tracer),
        open_placer(settings, role="gateway", clock=clock) as placer,
    ):
        context = GatewayContext(
            settings=settings,
            fleet=settings.fleet(),
            placer=placer,
            clock=clock,
            local=not settings.model_cluster_enabled,
            draining=Draining(),
            tracer=tracer,
        )
        async with ControlPlane(context) as control:
            context = replace(context, meter=control.meter)
            async with DataPlane(context) as plane:
                app = control.guard(_Dispatch([*plane.routes, *control.routes], control.meter))
                yield Gateway(app, plane, control, context)


class _Dispatch:
    """Straight to the application of a fixed path; what has patterns goes through the router."""

    def __init__(self, routes: list[Route], meter: Meter) -> None:
        self._meter = meter
        self._router = Router(routes, redirect_slashes=False, default=self._no_route)
        self._straight: dict[str, ASGIApp] = {
            route.path: route.endpoint
            for route in routes
            if isinstance(route.endpoint, ForwardedRoute)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._straight.get(scope["path"], self._router)
        await app(scope, receive, send)

    async def _no_route(self, scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, began_s = scope["path"], time.monotonic()
        self._meter.began(path)
        try:
            await send_error(send, path, f"There is no {path[:200]} here.", "not_found", 404)
        finally:
            self._meter.ended(path, 404, None, time.monotonic() - began_s)
