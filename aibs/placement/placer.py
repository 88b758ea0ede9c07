"""The client: leases on nodes of the fleet, for the tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Self

from aibs import logs
from aibs.clock import SystemClock
from aibs.errors import AibsError, ConfigurationError, PoolMissing, Unreachable
from aibs.lanes import lane_name
from aibs.placement import tripping
from aibs.placement.asking import PlacerTiming, request_of
from aibs.placement.block import LeaseBlock
from aibs.placement.endings import Endings
from aibs.placement.heartbeats import Heart
from aibs.placement.loading import Loads
from aibs.placement.outage import Outage
from aibs.placement.waiting import WaitingRoom

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine
    from types import TracebackType

    from aibs.clock import Clock
    from aibs.fleet import Fleet
    from aibs.placement.acquisition import OnQueue
    from aibs.placement.backend import Backend
    from aibs.placement.values import Class, Request, Session

SESSION_WAIT_S = 2.0
"""How long opening waits for the session to be known; then it is made known in the background."""

SESSION_PAUSE_FIRST_S = 0.1
SESSION_PAUSE_MAX_S = 5.0

CLOSE_WAIT_S = 5.0
"""How long closing waits for blocks to end, and then for their last calls."""


class Placer:
    """Asks for leases and keeps them alive. To be opened (`async with`) in the loop that uses it.

    `fleet` is this process's own: it gives the options of loads and the weights of sentences,
    never a decision. Not shared between event loops, and not with a forked child: both raise
    ConfigurationError. SyncPlacer serves threads and forks.
    """

    def __init__(
        self,
        backend: Backend,
        fleet: Fleet,
        session: Session,
        timing: PlacerTiming | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.backend = backend
        self.session = session
        self.timing = timing or PlacerTiming()
        self.clock: Clock = clock or SystemClock()
        self._fleet = fleet
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._claims: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._log = logs.get("aibs.placement", holder=session.holder)
        self.heart = Heart(
            backend, session.holder, self.clock, interval_ms=self.timing.heartbeat_ms
        )
        self.room = WaitingRoom(
            backend,
            session.holder,
            self.clock,
            poll_ms=self.timing.poll_ms,
            grace_ms=self.timing.grace_ms,
        )
        self.outage = Outage(backend.ping, self.clock)
        self.loads = Loads(backend, fleet, self.clock, load_ms=self.timing.load_ms)
        self.endings = Endings(backend, self.clock)

    @property
    def holder(self) -> str:
        """This process's name in leases and events."""
        return self.session.holder

    async def __aenter__(self) -> Self:
        """Make the session known and start the heart. A server that is away delays nothing."""
        if self._loop is not None:
            raise ConfigurationError("A placer is opened once.", mend="Make a new one.")
        self._loop = asyncio.get_running_loop()
        introduction = self._start(self._introduce(), "placer session")
        self._start(self.heart.beat(), "placer heartbeats")
        self._start(self.heart.watch(), "placer trust")
        try:
            await asyncio.wait({introduction}, timeout=SESSION_WAIT_S)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def lease(
        self,
        *,
        model: str | None = None,
        role: str | None = None,
        priority: Class = "normal",
        timeout: float | None = None,
        ttl: float | None = None,
        request_id: str | None = None,
        requester: str | None = None,
        on_queue: OnQueue | None = None,
        patient: bool = True,
        avoid: Collection[str] = (),
    ) -> LeaseBlock:
        """A lease for an `async with` block, on a node that can run the model or the role now.

        `timeout` is how many seconds to wait for a place (0: do not wait; None, and at most: the
        configured longest wait), `ttl` how many seconds the lease lives without a heartbeat.
        `request_id` makes a repetition the same request; `requester` names who asks, where that is
        not this process. `on_queue(position, reason)` is called when the place changes.
        `patient=False` waits for nodes, and not for a coordination server that is away: it is
        refused then at once, and where it already stands in the queue, when its place is over.
        `avoid` names up to 8 nodes that it must not get, such as those that have just failed it.

        Raises ValueError at once for what cannot be asked. Entering raises PlacementDenied, the
        block raises LeaseLost where the lease ended under it.
        """
        request = request_of(
            self.session,
            self.timing,
            model=model,
            role=role,
            priority=priority,
            timeout=timeout,
            ttl=ttl,
            request_id=secrets.token_hex(16) if request_id is None else request_id,
            requester=requester,
            avoid=avoid,
        )
        return LeaseBlock(self, request, on_queue, patient=patient)

    async def trip(self, node_id: str, why: str) -> bool:
        """Close a node that failed its requests, for every process; later one lease tries it again.

        True where it closed now; False where it was closed, is not declared, or no server answered.
        """
        return await tripping.trip(self.backend, self.clock, node_id, why)

    async def aclose(self) -> None:
        """End every wait and lease of this placer, then give up its tasks. May be repeated."""
        if os.getpid() != self._pid:
            return
        self.room.close_waits()
        for lease in self.heart.leases:
            self.heart.lose(lease, "closed")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self._idle.wait()
        await self.endings.settle(CLOSE_WAIT_S)
        await self.room.close()
        await self.outage.close()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def require_usable(self) -> None:
        """Raises ConfigurationError where this placer cannot serve the caller."""
        if os.getpid() != self._pid:
            raise ConfigurationError(
                f"This placer was made by process {self._pid}, and this is a forked child of it.",
                mend="Make a placer of its own in each process, or use SyncPlacer.",
            )
        if self._loop is None or not self._tasks:
            raise ConfigurationError(
                "The placer is not open.", mend="Use it inside `async with` of it."
            )
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError(
                "The placer was opened in another event loop.",
                mend="Make a placer in each loop, or use SyncPlacer from threads.",
            )

    def claim(self, request: Request) -> bool:
        """Take a request's key in this process; False where it is in use here."""
        if request.request_key in self._claims:
            return False
        self._claims.add(request.request_key)
        self._idle.clear()
        return True

    def unclaim(self, request: Request) -> None:
        """Nothing of the request is left here."""
        self._claims.discard(request.request_key)
        if not self._claims:
            self._idle.set()

    def weight_of(self, request: Request) -> int | None:
        """The declared bytes of the model asked for, where this process's roster has them."""
        for worker in self._fleet.workers:
            lanes = {lane_name(worker.key, None)} | {
                lane_name(worker.key, role) for role in worker.roles
            }
            if request.lane in lanes and worker.resident_weight_bytes is not None:
                return worker.resident_weight_bytes
        return None

    def _start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        # Without its heart nothing ends the trust: the leases end here.
        self._log.error("placer_task_died", task=task.get_name(), error=repr(task.exception()))
        for lease in self.heart.leases:
            self.heart.lose(lease, "trust_over")

    async def _introduce(self) -> None:
        """Make the session known, so that a successor on this host can end what we leave."""
        pause_s = SESSION_PAUSE_FIRST_S
        while True:
            try:
                await self.backend.open_session(self.session)
            except (Unreachable, PoolMissing) as error:
                self._log.warning("session_unanswered", error=str(error))
            except AibsError as error:
                self._log.error("session_refused", error=str(error))
                return
            else:
                return
            await self.clock.sleep(pause_s)
            pause_s = min(pause_s * 2, SESSION_PAUSE_MAX_S)
