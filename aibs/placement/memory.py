"""The memory back end: admission within one process, by the same rules as the fleet's.

For a process whose cluster scheduling is off. It knows no monitor: the nodes are taken as seen now
and as holding what its own leases say and left. Never a stand-in for a coordination server that is
away.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aibs.placement.model.decide import PlacementModel
from aibs.placement.remembered import Remembered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aibs.clock import Clock
    from aibs.fleet import Fleet
    from aibs.placement.values import (
        Beat,
        Denied,
        Granted,
        Lease,
        Limits,
        Outcome,
        Place,
        Queued,
        Released,
        ReportKind,
        Request,
        Session,
    )


class MemoryBackend:
    """One process's pool. Calls are decided at once; none is ever unanswered."""

    def __init__(self, fleet: Fleet, limits: Limits, clock: Clock) -> None:
        self._clock = clock
        self._model = PlacementModel(limits)
        self._model.declare(fleet)
        self._nodes = Remembered(fleet, self._model)
        self._news: set[asyncio.Queue[frozenset[str]]] = set()
        self._look()

    def _look(self) -> int:
        """The time; every node counts as seen then."""
        now = self._clock.boottime_ms()
        self._nodes.look(now)
        return now

    def _tell(self) -> None:
        for names in self._model.wakes:
            for queue in self._news:
                if names:
                    queue.put_nowait(frozenset(names))
        self._model.wakes.clear()

    @property
    def model(self) -> PlacementModel:
        """All that it knows, to be looked at."""
        return self._model

    def lease(self, lease_id: str) -> Lease | None:
        """A living lease."""
        held = self._model.leases.get(lease_id)
        return None if held is None else held.lease

    async def acquire(
        self,
        request: Request,
        *,
        lease_id: str,
        call_id: str,  # noqa: ARG002 - the contract's
    ) -> Granted | Queued | Denied:
        """Place the request, queue it, or say why not."""
        answer = self._model.acquire(request, lease_id=lease_id, now=self._look())
        self._tell()
        return answer

    async def heartbeat(self, holder: str, leases: Sequence[Lease]) -> list[Beat]:
        """Renew leases of one holder."""
        now = self._look()
        # Before the reap: to a holder that is late, its lease has expired and is not unknown.
        beats = self._model.heartbeat(
            holder, [(lease.lease_id, lease.token) for lease in leases], now
        )
        self._model.reap(now)
        self._tell()
        return beats

    async def release(self, lease: Lease, outcome: Outcome, *, call_id: str) -> Released:
        """End a lease."""
        answer = self._model.release(lease, outcome, call_id=call_id, now=self._look())
        if outcome == "failed":
            self._nodes.doubt(lease.node_id, lease.key)
        self._tell()
        return answer

    async def cancel(self, request: Request) -> str:
        """End a request whatever became of it."""
        answer = self._model.cancel(request.request_key, request.request_hash, self._look())
        self._tell()
        return answer

    async def refresh(
        self,
        holder: str,  # noqa: ARG002 - the contract's
        request_keys: Sequence[str],
    ) -> list[Place]:
        """Keep waiters in the queue."""
        return self._model.refresh(request_keys, self._look())

    async def report(
        self,
        lease: Lease,
        kind: ReportKind,
        model: str,
        *,
        ms: int,  # noqa: ARG002 - the contract's
        outcome: str,
    ) -> None:
        """Remember what a holder did with a model: there is no log, and no monitor that sees it."""
        now, ok = self._look(), outcome == "ok"
        self._model.report(lease.lease_id, kind, model, ok=ok, now=now)

    async def trip(self, node_id: str, why: str) -> bool:  # noqa: ARG002 - no log tells why
        """Close a node whose answers failed; False where it was so already, or is undeclared."""
        self._nodes.doubt(node_id)
        return self._model.trip(node_id, self._look()) == "ok"

    async def open_session(self, session: Session) -> None:
        """Nothing outlives this process."""

    async def ping(self) -> None:
        """It is always there."""

    async def wakes(self) -> AsyncIterator[frozenset[str]]:
        """Request keys that may go now."""
        queue: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self._news.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._news.discard(queue)

    async def aclose(self) -> None:
        """Nothing is held."""
