"""One request on its way to a lease: ask, wait, ask again, until it is granted or denied."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from aibs import logs
from aibs.errors import (
    CoordinationUnavailable,
    FleetMismatch,
    OutcomeUnknown,
    PoolMissing,
    PoolVersionMismatch,
)
from aibs.placement.trust import trusted_until_ms
from aibs.placement.values import Denied, Granted, Queued
from aibs.placement.wording import Circumstances, Subject, denied
from aibs.timeouts import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.clock import Clock
    from aibs.errors import AibsError, PlacementDenied
    from aibs.placement.backend import Backend
    from aibs.placement.outage import Outage
    from aibs.placement.values import Request
    from aibs.placement.waiting import Waiter, WaitingRoom

    OnQueue = Callable[[int, str], object]

PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0

UNDECLARED = ("stale_residency",)
"""How a request that would wait is denied all the same: nobody has declared a fleet."""

REPEATS_WITHOUT_TIME = 1
"""A lost answer is asked for once more even where nobody waits: it may be a grant."""

IMPATIENT_ANSWER_S = 1.5
"""How long a question of one who cannot wait for the server may take: a busy server answers well
within it, and the client behind gets its refusal before it gives up.
"""


class Acquisition:
    """Asks for one request. `open` while a lease or a place of it may exist at the back end.

    A grant that is the first one for the request has `lease_id`, where that is given.
    """

    def __init__(
        self,
        request: Request,
        backend: Backend,
        room: WaitingRoom,
        clock: Clock,
        outage: Outage,
        *,
        patient: bool,
        weight_of: Callable[[Request], int | None],
        on_queue: OnQueue | None,
        lease_id: str | None = None,
    ) -> None:
        self.request = request
        self.open = False
        self._backend = backend
        self._room = room
        self._clock = clock
        self._outage = outage
        self._patient = patient
        self._on_queue = on_queue
        self._weight_of = weight_of
        self._lease_id = lease_id or secrets.token_hex(16)
        self._started_ms = clock.boottime_ms()
        self._until_ms = self._started_ms + request.wait_ms
        self._queued: Queued | None = None

    async def run(self) -> tuple[Granted, int]:
        """The grant, and until when it is trusted (boot time). Raises PlacementDenied."""
        if self.request.wait_ms == 0:
            return await self._ask_until_told(None)
        # In the room before the first question: a wake may come before that one's answer.
        waiter = self._room.join(self.request.request_key, patient=self._patient)
        try:
            return await self._ask_until_told(waiter)
        finally:
            self._room.leave(waiter)

    async def _ask_until_told(self, waiter: Waiter | None) -> tuple[Granted, int]:
        last = waiter is None
        while True:
            if waiter is not None:
                waiter.before_asking()
            answer, sent_at_ms = await self._answer(waiter)
            match answer:
                case Granted():
                    return answer, trusted_until_ms(
                        sent_at_ms, answer.remaining_ms, answer.lease.ttl_ms
                    )
                case Denied():
                    self.open = False
                    left_ms = self._until_ms - self._clock.boottime_ms()
                    if waiter is not None and answer.reason in UNDECLARED and left_ms > 0:
                        # No fleet is declared yet, so there is no queue to wait in.
                        await self._clock.sleep(min(PAUSE_MAX_S, left_ms / 1000))
                        continue
                    raise self.denial(answer.reason, answer)
                case Queued():
                    if waiter is None or last:
                        # Clocks differ: for us the time is over. The place is given back.
                        raise self.denial("wait_timeout", answer)
                    # The wait ends by the server's count, from after its answer, so that the last
                    # question comes when the server, too, says that it is over.
                    left_ms = max(0, answer.wait_deadline_ms - answer.now_ms)
                    self._until_ms = self._clock.boottime_ms() + left_ms
                    self._tell(answer, waiter)
                    last = not await waiter.turn(self._until_ms, self._moved)

    async def _answer(self, waiter: Waiter | None) -> tuple[Granted | Queued | Denied, int]:
        """Ask, and ask the same again as long as no answer comes and patience lasts."""
        call_id = secrets.token_hex(16)
        pause_s, repeats = PAUSE_FIRST_S, 0
        failed: AibsError
        while True:
            sent_at_ms, was_open = self._clock.boottime_ms(), self.open
            try:
                answer = await self._ask(call_id)
            except OutcomeUnknown as error:
                least, failed = REPEATS_WITHOUT_TIME, error
            except (CoordinationUnavailable, PoolMissing) as refusal:
                # Not done; what an earlier call left behind is still there.
                self.open = was_open
                least, failed = 0, refusal
            except (PoolVersionMismatch, FleetMismatch) as refusal:
                self.open = was_open
                reason = (
                    "pool_version" if isinstance(refusal, PoolVersionMismatch) else "fleet_mismatch"
                )
                raise self.denial(reason, None, refusal) from refusal
            else:
                self._outage.answered()
                return answer, sent_at_ms
            self._outage.suspect()
            left_ms = self._patience_ms(waiter)
            if left_ms <= 0 and repeats >= least:
                raise self.denial("coordination_unavailable", None, failed) from failed
            repeats += 1
            logs.get("aibs.placement.acquisition").warning(
                "acquire_unanswered",
                request_id=self.request.request_id,
                error=str(failed),
                left_ms=left_ms,
            )
            await self._clock.sleep(min(pause_s, max(left_ms / 1000, PAUSE_FIRST_S)))
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _ask(self, call_id: str) -> Granted | Queued | Denied:
        """One question. Who is not patient sends none to a server that is known to be away."""
        if self._patient:
            return await self._send(call_id)
        away = await self._outage.error()
        if away is not None:
            raise CoordinationUnavailable(away.sentence, mend=away.mend) from away
        try:
            with within(IMPATIENT_ANSWER_S):
                return await self._send(call_id)
        except TimeoutError as error:
            raise OutcomeUnknown(
                f"acquire: the coordination server did not answer within {IMPATIENT_ANSWER_S:g} s."
            ) from error

    async def _send(self, call_id: str) -> Granted | Queued | Denied:
        self.open = True
        return await self._backend.acquire(self.request, lease_id=self._lease_id, call_id=call_id)

    def _patience_ms(self, waiter: Waiter | None) -> int:
        """How long it goes on asking a server that does not answer."""
        until_ms = self._until_ms
        if not self._patient:
            standing = waiter if self._queued is not None else None
            until_ms = min(until_ms, standing.place_until_ms) if standing else self._started_ms
        return until_ms - self._clock.boottime_ms()

    def denial(
        self, reason: str, answer: Queued | Denied | None, error: AibsError | None = None
    ) -> PlacementDenied:
        """The error, with all that was last known."""
        known = answer or self._queued
        # Why the nodes did not take it is told by the last answer that named them.
        if isinstance(answer, Denied) and not answer.nodes and self._queued:
            known = self._queued
        request = self.request
        return denied(
            Subject(request.model, request.role, request.request_id, self._weight_of(request)),
            reason,
            Circumstances(
                nodes=known.nodes if known else (),
                others=known.others if known else None,
                retry_after_ms=answer.retry_after_ms if isinstance(answer, Denied) else None,
                position=self._queued.position if self._queued else None,
                detail=_detail(answer, error),
                no_owner=known.no_owner if known else False,
                waited_ms=self._clock.boottime_ms() - self._started_ms,
            ),
        )

    def _tell(self, answer: Queued, waiter: Waiter) -> None:
        """Call the application back where its place or the reason is another than before."""
        before = (waiter.position, self._queued.reason if self._queued else None)
        waiter.position = answer.position
        self._queued = answer
        if self._on_queue is not None and before != (answer.position, answer.reason):
            self._on_queue(answer.position, answer.reason)

    def _moved(self, position: int) -> None:
        if self._on_queue is not None and self._queued is not None:
            self._on_queue(position, self._queued.reason)


def _detail(answer: Queued | Denied | None, error: AibsError | None) -> str | None:
    if error is not None:
        return error.sentence
    return answer.detail if isinstance(answer, Denied) else None
