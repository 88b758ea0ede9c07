"""Passive health: nodes that fail requests while their `/api/ps` is green (ollama.md, pitfall 1).

Counted in this process: failures in a row, of any request that got as far as the node. At the
limit the node is closed in the pool for everybody; one lease tries it again later. A model that a
node has not is kept in mind for that node alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aibs import logs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aibs.clock import Clock
    from aibs.gateway.failures import NodeFailure

    Trip = Callable[[str, str], Awaitable[object]]

MISSING_FOR_MS = 60_000
"""How long a node is passed over for a model that it had not: somebody may install it."""

WHY_MAX = 200


class NodeHealth:
    """What this process saw of each node."""

    def __init__(self, trip: Trip, clock: Clock, *, trip_after: int) -> None:
        self._trip = trip
        self._clock = clock
        self._trip_after = trip_after
        self._failures: dict[str, int] = {}
        self._missing: dict[tuple[str, str], int] = {}
        self._closing: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = logs.get("aibs.gateway.health")

    def served(self, node_id: str) -> None:
        """A request was answered as a healthy node answers."""
        self._failures.pop(node_id, None)

    def failed(self, failure: NodeFailure) -> None:
        """A request failed there, and not by its own fault."""
        count = self._failures.get(failure.node_id, 0) + 1
        self._failures[failure.node_id] = count
        self._log.warning(
            "node_failed_request",
            node_id=failure.node_id,
            kind=failure.kind,
            detail=failure.detail[:WHY_MAX],
            in_a_row=count,
        )
        if count >= self._trip_after:
            self._failures.pop(failure.node_id, None)
            times = "1 request" if count == 1 else f"{count} requests in a row"
            why = f"{times} failed there, the last one: {failure.detail}"[:WHY_MAX]
            self._closing.add(failure.node_id)
            self._start(self._close(failure.node_id, why))

    def misses(self, node_id: str, key: str) -> None:
        """The node has not that model."""
        self._missing[node_id, key] = self._clock.boottime_ms() + MISSING_FOR_MS
        self._log.warning("model_not_on_node", node_id=node_id, model=key)

    @property
    def closing(self) -> set[str]:
        """The nodes that are being closed: the pool is told, and has not answered."""
        return self._closing

    @property
    def good(self) -> bool:
        """Nothing is held against any node."""
        return not self._missing and not self._closing

    def missing_on(self, key: str) -> tuple[str, ...]:
        """Nodes that lately had not that model."""
        if not self._missing:
            return ()
        now = self._clock.boottime_ms()
        for place in [place for place, until in self._missing.items() if until <= now]:
            del self._missing[place]
        return tuple(node_id for node_id, missed in self._missing if missed == key)

    async def aclose(self) -> None:
        """Wait for what is being told to the pool."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=1.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, node_id: str, why: str) -> None:
        try:
            tripped = await self._trip(node_id, why)
        finally:
            # From here on it is the pool that says so; or it is as open as before.
            self._closing.discard(node_id)
        self._log.error("node_tripped", node_id=node_id, why=why, new=bool(tripped))
