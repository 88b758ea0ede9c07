"""The waiters of one process: who is told to ask again, and when.

A waiter asks again when the log says that it may go now (wakes), when the refresh of its place says
that it is over or leased, and, for the first few of the process, at each poll interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import islice
from typing import TYPE_CHECKING

from aibs import logs
from aibs.errors import AibsError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aibs.clock import Clock
    from aibs.placement.backend import Backend
    from aibs.placement.values import Place

POLLERS_MAX = 8
"""Waiters of a process that ask on their own; the others are woken."""

REFRESH_MS = 2_000
PLACES_A_CALL = 256
WAKES_AGAIN_S = 1.0
HEARING_S = 0.25
"""By then the log is followed."""


class Waiter:
    """One request that waits. `queued` while the back end keeps a place for it."""

    def __init__(
        self,
        request_key: str,
        clock: Clock,
        grace_ms: int,
        *,
        patient: bool,
        on_queued: Callable[[], object] = lambda: None,
    ) -> None:
        self.request_key = request_key
        self._on_queued = on_queued
        self.patient = patient
        self._grace_ms = grace_ms
        self._heard_ms = clock.boottime_ms()
        self.queued = False
        self.asking = True
        self.position: int | None = None
        self._clock = clock
        self._go = False
        self._moved = False
        self._closed = False
        self._news = asyncio.Event()

    def ask(self) -> None:
        """It is to ask again."""
        self._go = True
        self._news.set()

    def close(self) -> None:
        """Its placer is closed: it cannot go on waiting."""
        self._closed = True
        self._news.set()

    def move(self, position: int | None) -> None:
        """Its place in the queue is another."""
        if position is not None and position != self.position:
            self.position = position
            self._moved = True
            self._news.set()

    @property
    def place_until_ms(self) -> int:
        """Until when its place is kept, as far as is known here, on the clock of `boottime_ms`."""
        return self._heard_ms + self._grace_ms

    def heard(self) -> None:
        """The back end has just told that it keeps the place."""
        self._heard_ms = self._clock.boottime_ms()

    def before_asking(self) -> None:
        """News from before the question are answered by it."""
        self.asking = True
        self._go = False

    async def turn(self, until_ms: int, on_move: Callable[[int], object]) -> bool:
        """Wait to be told to ask; False when `until_ms` came first. `on_move` hears of places.

        One that is not patient asks by itself when nothing was heard of its place for too long.
        Raises ConfigurationError where the placer is closed meanwhile.
        """
        self.queued, self.asking = True, False
        self._on_queued()
        self.heard()
        while True:
            if self._closed:
                raise ConfigurationError(
                    "The placer was closed while a request waited for a place.",
                    mend="Keep it open until every lease has ended.",
                )
            if self._moved and self.position is not None:
                self._moved = False
                on_move(self.position)
            if self._go:
                return True
            left_ms = until_ms - self._clock.boottime_ms()
            if left_ms <= 0:
                return False
            if not self.patient:
                left_ms = min(left_ms, self.place_until_ms - self._clock.boottime_ms())
                if left_ms <= 0:
                    return True
            self._news.clear()
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                continue


class WaitingRoom:
    """All waiters of a placer, in the order in which they came."""

    def __init__(
        self, backend: Backend, holder: str, clock: Clock, *, poll_ms: int, grace_ms: int
    ) -> None:
        self._backend = backend
        self._holder = holder
        self._clock = clock
        self._poll_ms = poll_ms
        self._grace_ms = grace_ms
        self._waiters: dict[str, Waiter] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._hearing: asyncio.Task[None] | None = None
        self._log = logs.get("aibs.placement.waiting", holder=holder)

    def join(self, request_key: str, *, patient: bool = True) -> Waiter:
        """A new waiter. The first one starts the room's tasks, which then stay."""
        waiter = Waiter(
            request_key, self._clock, self._grace_ms, patient=patient, on_queued=self._listen
        )
        self._waiters[request_key] = waiter
        if not self._tasks:
            for name, work in (("polls", self._poll()), ("refresh", self._refresh())):
                self._tasks.append(asyncio.create_task(work, name=f"placer {name}"))
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """It waits no more."""
        if self._waiters.get(waiter.request_key) is waiter:
            del self._waiters[waiter.request_key]

    def close_waits(self) -> None:
        """Tell every waiter that it cannot go on."""
        for waiter in self._waiters.values():
            waiter.close()

    async def close(self) -> None:
        """End the room's tasks."""
        await self._fall_deaf()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _listen(self) -> None:
        """Somebody stands in the queue: hear what the log says. Nobody else needs it, and a busy
        process would read all of the log for nothing.
        """
        if self._hearing is None:
            self._hearing = asyncio.create_task(self._hear(), name="placer wakes")

    async def _fall_deaf(self) -> None:
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def _hear(self) -> None:
        # What was told before the log is followed is made up for by asking once more.
        asyncio.get_running_loop().call_later(HEARING_S, self._ask_all)
        while True:
            wakes = self._backend.wakes()
            try:
                async for request_keys in wakes:
                    for request_key in request_keys:
                        waiter = self._waiters.get(request_key)
                        if waiter is not None:
                            waiter.ask()
            except Exception as error:  # noqa: BLE001 - all waiters of the process hear by this task
                self._log.warning("wakes_interrupted", error=repr(error))
            finally:
                if isinstance(wakes, AsyncGenerator):
                    # Else its connection is closed at some later time, by the garbage collector.
                    await wakes.aclose()
            await self._clock.sleep(WAKES_AGAIN_S)

    def _ask_all(self) -> None:
        for waiter in self._waiters.values():
            if waiter.queued and not waiter.asking:
                waiter.ask()

    async def _poll(self) -> None:
        while True:
            await self._clock.sleep(self._poll_ms / 1000)
            for waiter in islice(self._waiters.values(), POLLERS_MAX):
                # One that is asking right now is not told to ask once more.
                if waiter.queued and not waiter.asking:
                    waiter.ask()

    async def _refresh(self) -> None:
        due_ms = self._clock.boottime_ms() + REFRESH_MS
        while True:
            await self._clock.sleep(max(0, due_ms - self._clock.boottime_ms()) / 1000)
            due_ms = max(due_ms, self._clock.boottime_ms() - REFRESH_MS) + REFRESH_MS
            keys = [key for key, waiter in self._waiters.items() if waiter.queued]
            if not keys:
                await self._fall_deaf()
            for start in range(0, len(keys), PLACES_A_CALL):
                await self._quietly(self._refresh_some(keys[start : start + PLACES_A_CALL]))

    async def _refresh_some(self, keys: list[str]) -> None:
        async with asyncio.timeout(REFRESH_MS / 1000):
            places = await self._backend.refresh(self._holder, keys)
        for place in places:
            self._told(place)

    def _told(self, place: Place) -> None:
        waiter = self._waiters.get(place.request_key)
        if waiter is None:
            return
        if place.word == "queued":
            waiter.heard()
            waiter.move(place.position)
        else:
            # Granted unheard, ended, or forgotten: asking tells which.
            waiter.ask()

    async def _quietly(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except (AibsError, TimeoutError) as error:
            self._log.warning("refresh_failed", error=str(error) or "no answer in time")
        except Exception as error:  # noqa: BLE001 - the places of all waiters hang on this task
            self._log.error("refresh_broken", error=repr(error))
