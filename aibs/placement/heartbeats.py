"""The heart of a placer: renews all its leases together, and ends the trust in those it cannot."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from aibs import logs
from aibs.errors import AibsError
from aibs.placement.trust import trusted_until_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aibs.clock import Clock
    from aibs.placement.backend import Backend
    from aibs.placement.held import HeldLease

LEASES_A_CALL = 256

CALLS_AN_INTERVAL = 2
"""A call that hangs is dropped after this part of the interval, so that another fits in."""

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0
RETRIES_FIT = 10
"""Of the first pauses this many fit into an interval, however short that is."""

WATCH_MAX_MS = 1_000
"""The longest sleep of the watch: timers stand still while the machine is suspended, trust not."""

_NEVER_MS = 1 << 62


class Heart:
    """One heartbeat task and one watch for all leases of a holder."""

    def __init__(self, backend: Backend, holder: str, clock: Clock, *, interval_ms: int) -> None:
        self._backend = backend
        self._holder = holder
        self._clock = clock
        self._interval_ms = interval_ms
        self._leases: dict[str, HeldLease] = {}
        self._changed = asyncio.Event()
        self._next_look_ms = _NEVER_MS
        self._log = logs.get("aibs.placement.heart", holder=holder)

    @property
    def leases(self) -> tuple[HeldLease, ...]:
        """What is kept alive."""
        return tuple(self._leases.values())

    def add(self, lease: HeldLease) -> None:
        """Keep a lease alive from now on."""
        self._leases[lease.lease_id] = lease
        # A look goes over all leases: one more of them is no reason for it.
        if lease.trusted_until_ms < self._next_look_ms:
            self._changed.set()

    def discard(self, lease: HeldLease) -> None:
        """No more heartbeats for it: its work is over."""
        self._leases.pop(lease.lease_id, None)

    def lose(self, lease: HeldLease, why: str) -> None:
        """The lease is over: its work is told."""
        if self._leases.pop(lease.lease_id, None) is not None:
            lease.lose(why)

    async def beat(self) -> None:
        """Renew at each interval, on a schedule that no slow answer shifts. Runs until cancelled.

        Times are those of the clock of trust, so that a beat is due at once after a suspension.
        """
        due_ms = self._clock.boottime_ms() + self._interval_ms
        while True:
            await self._sleep_until(due_ms)
            due_ms += self._interval_ms
            now_ms = self._clock.boottime_ms()
            if due_ms <= now_ms:
                # Intervals slept through are not made up for.
                due_ms = now_ms + self._interval_ms
            if self._leases:
                await self._beat_once(due_ms)

    async def watch(self) -> None:
        """End the trust of each lease when its time has come. Runs until cancelled."""
        while True:
            self._changed.clear()
            now_ms = self._clock.boottime_ms()
            for lease in self.leases:
                if lease.trusted_until_ms <= now_ms:
                    self.lose(lease, "trust_over")
            until_ms = min((lease.trusted_until_ms for lease in self.leases), default=None)
            if until_ms is None:
                self._next_look_ms = _NEVER_MS
                await self._changed.wait()
                continue
            pause_ms = min(until_ms - now_ms, WATCH_MAX_MS)
            self._next_look_ms = now_ms + pause_ms
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _sleep_until(self, due_ms: int) -> None:
        while (left_ms := due_ms - self._clock.boottime_ms()) > 0:
            await self._clock.sleep(min(left_ms, WATCH_MAX_MS) / 1000)

    async def _beat_once(self, next_due_ms: int) -> None:
        """Renew all; give up what is unanswered when the next beat is due."""
        left_ms = next_due_ms - self._clock.boottime_ms()
        try:
            async with asyncio.timeout(left_ms / 1000), asyncio.TaskGroup() as group:
                for leases in _batches(self.leases):
                    group.create_task(self._renew(leases), name="heartbeat")
        except TimeoutError:
            self._log.warning("heartbeat_unanswered", leases=len(self._leases))

    async def _renew(self, leases: tuple[HeldLease, ...]) -> None:
        """Repeat until answered: the beat's deadline ends it."""
        pause_s = min(RETRY_FIRST_S, self._interval_ms / RETRIES_FIT / 1000)
        while True:
            leases = tuple(lease for lease in leases if lease.lease_id in self._leases)
            if not leases:
                return
            try:
                async with asyncio.timeout(self._interval_ms / CALLS_AN_INTERVAL / 1000):
                    await self._ask(leases)
            except (AibsError, TimeoutError) as error:
                self._log.warning("heartbeat_failed", error=str(error) or "no answer in time")
            except Exception as error:  # noqa: BLE001 - the heart of all leases must not stop
                self._log.error("heartbeat_broken", error=repr(error))
            else:
                return
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def _ask(self, leases: tuple[HeldLease, ...]) -> None:
        sent_at_ms = self._clock.boottime_ms()
        answers = await self._backend.heartbeat(self._holder, [lease.grant for lease in leases])
        words = {beat.lease_id: beat.word for beat in answers}
        for lease in leases:
            word = words.get(lease.lease_id, "unknown")
            if word == "ok":
                # A renewal gives the whole TTL anew, from after the request was sent.
                ttl_ms = lease.grant.ttl_ms
                lease.renew(trusted_until_ms(sent_at_ms, ttl_ms, ttl_ms))
            else:
                self.lose(lease, word)


def _batches(leases: tuple[HeldLease, ...]) -> Iterator[tuple[HeldLease, ...]]:
    rest = iter(leases)
    while batch := tuple(islice(rest, LEASES_A_CALL)):
        yield batch
