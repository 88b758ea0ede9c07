"""The data path of one process: everything between a client's request and a node."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from aibs.gateway.fleet_routes import fleet_routes
from aibs.gateway.fleet_view import FleetView
from aibs.gateway.forwarding import Forwarder
from aibs.gateway.passive import NodeHealth
from aibs.gateway.placing import Placing
from aibs.gateway.routes import forwarded_routes
from aibs.gateway.targets import Targets
from aibs.gateway.upstream import Upstream

if TYPE_CHECKING:
    from types import TracebackType

    from starlette.routing import Route

    from aibs.gateway.context import GatewayContext


class DataPlane:
    """`async with DataPlane(context) as plane: plane.routes`."""

    def __init__(self, context: GatewayContext) -> None:
        settings = context.settings
        self.context = context
        self.targets = Targets(context.fleet)
        self.upstream = Upstream(connect_s=settings.api_connect_timeout_seconds)
        self.health = NodeHealth(
            context.placer.trip, context.clock, trip_after=settings.api_trip_after_failures
        )
        self.view = FleetView(context.fleet, self.targets, self.upstream, context.clock)
        forwarder = Forwarder(
            self.upstream,
            self.health,
            context.meter,
            first_byte_s=settings.api_first_byte_timeout_seconds,
            silence_s=settings.api_silence_timeout_seconds,
        )
        self.placing = Placing(context, forwarder, self.health, self.view)
        self.stopping = False
        self._under_way: set[asyncio.Task[object]] = set()
        self._stack = AsyncExitStack()

    @property
    def routes(self) -> list[Route]:
        """All routes of Ollama's and OpenAI's API, the often asked first."""
        return [*forwarded_routes(self), *fleet_routes(self)]

    @property
    def count(self) -> int:
        """How many forwarded requests are under way."""
        return len(self._under_way)

    def under_way(self) -> UnderWay:
        """The block is a request under way, which `end_all` may end."""
        return UnderWay(self._under_way)

    def end_all(self) -> None:
        """End every request under way: the process stops. Each client is told."""
        self.stopping = True
        for task in list(self._under_way):
            task.cancel("the gateway stops")

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.upstream)
        self._stack.push_async_callback(self.view.aclose)
        self._stack.push_async_callback(self.health.aclose)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()


class UnderWay:
    """Keeps the task of its block in a set."""

    __slots__ = ("_task", "_tasks")

    def __init__(self, tasks: set[asyncio.Task[object]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._tasks = tasks

    def __enter__(self) -> None:
        self._tasks.add(self._task)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tasks.discard(self._task)
