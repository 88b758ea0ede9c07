"""Two loops: the follower stands for election, the leader renews and does the owner's work."""

from __future__ import annotations

import asyncio
import random
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aibs import logs
from aibs.errors import CoordinationUnavailable, Fenced, OutcomeUnknown
from aibs.eventstore.replies import ClockDiffers, Elected, Held, TermEnded
from aibs.monitor.term import RENEW_RATIO, TIMEOUT_RATIO, Term, trusted_until_ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aibs.clock import Clock
    from aibs.eventstore.pool import CoordinationPool

RETRY_JITTER = 0.2
"""Standbys wait 80 to 100 % of their retry, so that they do not all knock at once."""

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0

RESIGN_REPEAT_S = 0.1


_NOT_OURS = ("fenced", "trust_over")
"""Ends after which the term is not ours to give back."""


class TermLost(Exception):
    """The owner's work ends: the term is over, or must be thought of as over."""


class Vacancy(Protocol):
    """Tells when the term seems to have become vacant, ahead of the next retry."""

    async def wait(self) -> None:
        """Return once the log says that the term was given back."""
        ...


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """Milliseconds."""

    ttl_ms: int
    standby_retry_ms: int


class Elector:
    """Holds this process's part in the election. `term` is None while it stands by."""

    def __init__(
        self,
        pool: CoordinationPool,
        owner: str,
        timing: ElectionTiming,
        clock: Clock,
        *,
        vacancy: Vacancy,
        on_unreachable: Callable[[], Awaitable[None]],
    ) -> None:
        self._pool = pool
        self.owner = owner
        self._timing = timing
        self._clock = clock
        self._vacancy = vacancy
        self._on_unreachable = on_unreachable
        self._log = logs.get("aibs.monitor.elector", owner=owner)
        self.term: Term | None = None
        self.held_by: str | None = None

    def require_term(self) -> Term:
        """The term, for a write that is about to be sent. Raises TermLost when trust is over."""
        if self.term is None or not self.term.trusted(self._clock.boottime_ms()):
            raise TermLost("trust_over")
        return self.term

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Follow and lead by turns until cancelled; a term still held then is resigned."""
        while True:
            self.term = await self._follow()
            self.held_by = self.owner
            self._log.info("owner_elected", fence=self.term.fence)
            await self._lead(lead)

    async def _follow(self) -> Term:
        """Stand for election until it is won."""
        backoff_s = BACKOFF_FIRST_S
        attempt = secrets.token_hex(8)
        reachable = True
        while True:
            sent_at_ms = self._clock.boottime_ms()
            answer_in_s = self._timing.ttl_ms * TIMEOUT_RATIO / 1000
            try:
                async with asyncio.timeout(answer_in_s):
                    answer = await self._pool.elect(
                        attempt, self.owner, ttl_ms=self._timing.ttl_ms, mono_ms=sent_at_ms
                    )
            except (OutcomeUnknown, CoordinationUnavailable, TimeoutError) as error:
                # The same attempt goes on: if it was granted unheard, its repeat says so.
                if reachable:
                    self._log.warning("coordination_unreachable", error=_why(error, answer_in_s))
                    reachable = False
                await self._on_unreachable()
                await self._clock.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            if not reachable:
                self._log.info("coordination_reachable")
                reachable = True
            backoff_s = BACKOFF_FIRST_S
            match answer:
                case Elected(fence=fence, remaining_ms=granted_ms):
                    until_ms = trusted_until_ms(sent_at_ms, granted_ms, self._timing.ttl_ms)
                    term = Term(self.owner, fence, self._timing.ttl_ms, until_ms)
                    if term.trusted(self._clock.boottime_ms()):
                        return term
                    attempt = secrets.token_hex(8)
                case TermEnded():
                    attempt = secrets.token_hex(8)
                case Held():
                    await self._stand_by(answer)

    async def _stand_by(self, held: Held) -> None:
        if self.held_by != held.owner:
            self.held_by = held.owner
            self._log.info("standing_by", holder=held.owner, fence=held.fence)
        retry_s = self._timing.standby_retry_ms / 1000 * (1 - RETRY_JITTER * random.random())  # noqa: S311 - spreads retries, guards nothing
        # The server said when the term ends: asking a moment later beats asking at random.
        wait_s = min(retry_s, max(held.remaining_ms, 0) / 1000 + 0.005)
        try:
            async with asyncio.timeout(wait_s):
                await self._vacancy.wait()
        except TimeoutError:
            return

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Renew and work until the term is lost; resign it when we are told to stop."""
        try:
            reason = await self._work(lead)
            fence = self.term.fence if self.term else None
            self._log.warning("term_lost", reason=reason, fence=fence)
            if reason not in _NOT_OURS:
                await self._resign()
        except BaseException:
            await self._resign()
            raise
        finally:
            self.term = None
            self.held_by = None

    async def _work(self, lead: Callable[[], Awaitable[None]]) -> str:
        """Run the renewals and the owner's work side by side; the reason why they ended."""
        reason = ""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renewals(), name="renewals")
                group.create_task(_forever(lead), name="owner's work")
        except* TermLost as lost:
            reason = _first_reason(lost)
        return reason

    async def _renewals(self) -> None:
        """Renew every third of the TTL; raise TermLost when refused or when trust is over."""
        while True:
            term = self.require_term()
            await self._clock.sleep(term.ttl_ms * RENEW_RATIO / 1000)
            await self._renew_once()

    async def _renew_once(self) -> None:
        """Get one renewal answered, or lose the term."""
        confirmed_step_ms = 0
        unreachable = False
        while True:
            term = self.require_term()
            sent_at_ms = self._clock.boottime_ms()
            left_ms = term.trusted_until_ms - sent_at_ms
            answer_in_s = min(term.ttl_ms * TIMEOUT_RATIO, left_ms) / 1000
            try:
                async with asyncio.timeout(answer_in_s):
                    answer = await self._pool.renew(
                        term.owner,
                        term.fence,
                        ttl_ms=term.ttl_ms,
                        mono_ms=sent_at_ms,
                        confirmed_step_ms=confirmed_step_ms,
                    )
            except Fenced as error:
                raise TermLost("fenced") from error
            except (OutcomeUnknown, CoordinationUnavailable, TimeoutError) as error:
                if not unreachable:
                    why = _why(error, answer_in_s)
                    self._log.warning("renewal_unanswered", error=why, left_ms=left_ms)
                    unreachable = True
                await self._on_unreachable()
                await self._clock.sleep(BACKOFF_FIRST_S)
                continue
            if isinstance(answer, ClockDiffers):
                # Read our clock anew: had we been paused, the difference is gone.
                confirmed_step_ms = answer.step_ms
                self._log.warning("server_clock_differs", step_ms=answer.step_ms)
                continue
            self.term = term.renewed(sent_at_ms, answer.ttl_ms)
            return

    async def _resign(self) -> None:
        """Give the term back, tried until answered or until it would be over anyway."""
        term = self.term
        while term is not None and term.trusted(self._clock.boottime_ms()):
            try:
                async with asyncio.timeout(term.ttl_ms * TIMEOUT_RATIO / 1000):
                    await self._pool.resign(term.owner, term.fence)
            except Fenced:
                return
            except (OutcomeUnknown, CoordinationUnavailable, TimeoutError):
                await self._clock.sleep(RESIGN_REPEAT_S)
                continue
            self._log.info("owner_resigned", fence=term.fence)
            return


def _why(error: Exception, answer_in_s: float) -> str:
    """What went wrong: a time-out has no words of its own."""
    return str(error) or f"no answer within {answer_in_s:.3g} s"


async def _forever(lead: Callable[[], Awaitable[None]]) -> None:
    await lead()
    raise TermLost("work_ended")


def _first_reason(lost: BaseExceptionGroup[TermLost]) -> str:
    first: BaseException = lost
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return str(first)
