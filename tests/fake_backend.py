"""A back end in memory with scripted faults: one node, some slots, first come, first served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aibs.clock import SystemClock
from aibs.errors import AibsError, CoordinationUnavailable, OutcomeUnknown
from aibs.placement.values import (
    Beat,
    Denied,
    Granted,
    Lease,
    NodeReason,
    Place,
    Queued,
    Released,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from aibs.placement.values import Outcome, ReportKind, Request, Session

Fault = str | AibsError | BaseException
"""`lost`: done, and the answer lost; `away`: not done; `hang`: never answered; or an error."""

KEY = "registry.ollama.ai/library/llama3:8b"


class FakeBackend:
    """Faithful in what a placer sees. `faults[call]` is used up from the front, one a call."""

    def __init__(self, *, slots: int = 1, base_url: str = "http://box-a:11434") -> None:
        self.slots = slots
        self.base_url = base_url
        self.faults: dict[str, list[Fault | None]] = {}
        self.deny: Denied | None = None
        self.warm = True
        self.unload_first: tuple[str, ...] = ()
        self.leases: dict[str, Lease] = {}
        self.waiters: list[Request] = []
        self.wait_until: dict[str, int] = {}
        self.tombstones: dict[str, str] = {}
        self.holders: set[str] = set()
        self.sessions: list[Session] = []
        self.calls: list[tuple[str, Any]] = []
        self.releases: list[tuple[str, Outcome, str]] = []
        self.cancels: list[str] = []
        self.reports: list[tuple[str, str, str]] = []
        self.beats: list[list[str]] = []
        self.words: dict[str, str] = {}
        self.trips: dict[str, str] = {}
        self.wake_queue: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self.wakes_on_release = True
        self.on_call: Callable[[str], object] = lambda _: None
        self.clock = SystemClock()
        self._tokens = 0

    def count(self, call: str) -> int:
        return sum(1 for name, _ in self.calls if name == call)

    def of(self, request: Request) -> Lease | None:
        return next((x for x in self.leases.values() if x.request_key == request.request_key), None)

    async def _fault(self, call: str, detail: Any) -> bool:
        """Whether the answer is to be lost once the call is done."""
        self.calls.append((call, detail))
        self.on_call(call)
        faults = self.faults.get(call)
        fault = faults.pop(0) if faults else None
        await asyncio.sleep(0)
        if fault == "away":
            raise CoordinationUnavailable("The server is away.")
        if fault == "hang":
            await asyncio.Event().wait()
        if isinstance(fault, BaseException):
            raise fault
        return fault == "lost"

    async def acquire(
        self, request: Request, *, lease_id: str, call_id: str
    ) -> Granted | Queued | Denied:
        lost = await self._fault("acquire", (lease_id, call_id))
        answer = self._acquire(request, lease_id)
        if lost:
            raise OutcomeUnknown("The answer was lost.")
        return answer

    def _acquire(self, request: Request, lease_id: str) -> Granted | Queued | Denied:
        now, key = self.clock.boottime_ms(), request.request_key
        if key in self.tombstones:
            return Denied("request_ended", detail=self.tombstones[key])
        held = self.of(request)
        if held:
            return Granted(held, now, held.ttl_ms)
        if self.deny:
            return self.deny
        if "box-a" in request.avoid:
            return Denied("node_unhealthy", (NodeReason("box-a", "node_unhealthy", why="avoided"),))
        waiting = [one.request_key for one in self.waiters]
        ahead = waiting.index(key) if key in waiting else len(waiting)
        free = self.slots - len(self.leases)
        if free > ahead:
            self.waiters = [one for one in self.waiters if one.request_key != key]
            return Granted(self._grant(request, lease_id, now), now, request.ttl_ms)
        nodes = (NodeReason("box-a", "no_slot"),)
        if request.wait_ms == 0:
            return Denied("no_slot", nodes, retry_after_ms=1000)
        if key not in waiting:
            self.waiters.append(request)
            self.wait_until[key] = now + request.wait_ms
        if now >= self.wait_until[key]:
            self._end_wait(key, "timed_out")
            return Denied("wait_timeout", nodes)
        return Queued(now, ahead + 1, "no_slot", nodes, {}, self.wait_until[key])

    def _grant(self, request: Request, lease_id: str, now: int) -> Lease:
        self._tokens += 1
        lease = Lease(
            lease_id=lease_id,
            token=str(self._tokens),
            request_key=request.request_key,
            request_id=request.request_id,
            environment=request.environment,
            holder=request.holder,
            model=request.model or "llama3:8b",
            key=KEY,
            worker_id="w1",
            role=request.role,
            node_id="box-a",
            base_url=self.base_url,
            weight_bytes=5 * 10**9,
            ttl_ms=request.ttl_ms,
            acquired_at_ms=now,
            deadline_ms=now + request.ttl_ms,
            warm=self.warm,
            probe=False,
            unload_first=self.unload_first,
            queue_ms=0,
        )
        self.leases[lease_id] = lease
        return lease

    def _end_wait(self, key: str, how: str) -> None:
        self.waiters = [one for one in self.waiters if one.request_key != key]
        self.tombstones[key] = how

    def free(self) -> None:
        """Tell the first waiters that they may go."""
        if self.wakes_on_release and self.waiters:
            self.wake_queue.put_nowait(frozenset(one.request_key for one in self.waiters[:8]))

    async def heartbeat(self, holder: str, leases: Sequence[Lease]) -> list[Beat]:
        self.beats.append([lease.lease_id for lease in leases])
        lost = await self._fault("heartbeat", holder)
        answers = []
        for lease in leases:
            known = lease.lease_id in self.leases
            word = self.words.get(lease.lease_id, "ok" if known else "unknown")
            answers.append(Beat(lease.lease_id, word))  # type: ignore[arg-type]
        if lost:
            raise OutcomeUnknown("The answer was lost.")
        return answers

    async def release(self, lease: Lease, outcome: Outcome, *, call_id: str) -> Released:
        lost = await self._fault("release", call_id)
        before = [call for one, _, call in self.releases if one == lease.lease_id]
        word = "ok"
        if before:
            word = "duplicate" if call_id in before else "double"
        self.releases.append((lease.lease_id, outcome, call_id))
        if self.leases.pop(lease.lease_id, None):
            self.tombstones[lease.request_key] = outcome
            self.free()
        if lost:
            raise OutcomeUnknown("The answer was lost.")
        return Released(word)  # type: ignore[arg-type]

    async def cancel(self, request: Request) -> str:
        lost = await self._fault("cancel", request.request_key)
        key, held = request.request_key, self.of(request)
        self.cancels.append(key)
        was = "unseen"
        if held:
            del self.leases[held.lease_id]
            was = "leased"
        elif key in [one.request_key for one in self.waiters]:
            was = "queued"
        self._end_wait(key, "cancelled")
        self.free()
        if lost:
            raise OutcomeUnknown("The answer was lost.")
        return was

    async def refresh(self, holder: str, request_keys: Sequence[str]) -> list[Place]:
        await self._fault("refresh", tuple(request_keys))
        self.holders.add(holder)
        waiting = [one.request_key for one in self.waiters]
        places = []
        for key in request_keys:
            if key in waiting:
                places.append(Place(key, "queued", position=waiting.index(key) + 1))
            elif key in self.tombstones:
                places.append(Place(key, "ended", how=self.tombstones[key]))
            else:
                places.append(Place(key, "unknown"))
        return places

    async def report(
        self, lease: Lease, kind: ReportKind, model: str, *, ms: int, outcome: str
    ) -> None:
        await self._fault("report", (kind, lease.lease_id, ms))
        self.reports.append((kind, model, outcome))

    async def trip(self, node_id: str, why: str) -> bool:
        lost = await self._fault("trip", (node_id, why))
        tripped = node_id == "box-a" and node_id not in self.trips
        if tripped:
            self.trips[node_id] = why
        if lost:
            raise OutcomeUnknown("The answer was lost.")
        return tripped

    async def open_session(self, session: Session) -> None:
        await self._fault("open_session", session.holder)
        self.sessions.append(session)

    async def ping(self) -> None:
        await self._fault("ping", None)

    async def wakes(self) -> AsyncIterator[frozenset[str]]:
        while True:
            yield await self.wake_queue.get()

    async def aclose(self) -> None:
        self.calls.append(("aclose", None))
