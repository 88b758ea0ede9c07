"""The control plane of one process: its routes, its meter, and what runs behind them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from aibs import logs
from aibs.gateway.access import Access
from aibs.gateway.control.health import Health
from aibs.gateway.control.meter import GatewayMeter
from aibs.gateway.control.metrics import Metrics
from aibs.gateway.control.names import ModelNames
from aibs.gateway.control.openapi import openapi_route
from aibs.gateway.control.placements import Placements
from aibs.gateway.control.stored_leases import MemoryLeases, PoolLeases
from aibs.gateway.control.watch import PoolWatch
from aibs.gateway.keys import KeyRing

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

    from starlette.routing import Route
    from starlette.types import ASGIApp

    from aibs.gateway.context import GatewayContext

DRAIN_LOOK_S: Final = 0.5


class ControlPlane:
    """`async with ControlPlane(context) as control: control.routes, control.meter,
    control.guard(app)`. To be opened inside the placer's block, which it uses to its end.

    Answers also while the coordination server is away: that is one of its answers.
    """

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self.keys = KeyRing.of(context.settings, context.clock)
        names = ModelNames(context.fleet)
        self.meter = GatewayMeter(names)
        self._watch = None if context.local else PoolWatch(context, names)
        stored = (
            MemoryLeases(context.placer.backend)
            if self._watch is None
            else PoolLeases(self._watch.link)
        )
        self._health = Health(context, self.meter, self._watch)
        self._placements = Placements(context, self.meter, stored)
        self._metrics = Metrics(context, self.meter, self._watch, names)
        self._tasks: list[asyncio.Task[None]] = []
        self._log = logs.get("aibs.gateway.control")

    @property
    def routes(self) -> list[Route]:
        """All routes of the control plane."""
        return [
            *self._placements.routes(),
            *self._health.routes(),
            self._metrics.route(),
            openapi_route(self.meter),
        ]

    def guard(self, app: ASGIApp) -> ASGIApp:
        """The application behind the one door that every request comes through."""
        return Access(app, self._context, self.keys, self.meter)

    def reload_keys(self) -> None:
        """Read the keys' file anew, as on SIGHUP."""
        self.keys.reload()

    async def __aenter__(self) -> Self:
        """Look at the pool once, then go on doing so in the background."""
        if self._watch is not None:
            await self._watch.look()
            self._start(self._watch.run(), "control watch")
        self._start(self.keys.watch(), "control keys")
        self._start(self._end_waits(), "control drain")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._placements.close()
        await self._health.close()
        await self._metrics.close()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.meter.close()

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._log.error("control_task_died", task=task.get_name(), error=repr(task.exception()))

    async def _end_waits(self) -> None:
        """Requests that still wait for a place when the drain's time is over are told so."""
        clock = self._context.clock
        while not self._context.draining.on:
            await clock.sleep(DRAIN_LOOK_S)
        await clock.sleep(self._context.settings.api_drain_seconds)
        await self._placements.close()


def control_routes(context: GatewayContext) -> list[Route]:
    """The routes alone, of a control plane whose background does not run: for a look at them."""
    return ControlPlane(context).routes
