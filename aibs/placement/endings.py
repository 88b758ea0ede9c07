"""The calls that must be answered: a release, and the cancel of an interrupted request.

Each is repeated with the same call id until it is answered or has become pointless, by a task of
its own, which no cancellation of the caller reaches. The caller waits for it a while. A release is
first tried by the caller itself, which most often is all: a cancelled try counts as a lost one.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from aibs import logs
from aibs.errors import PoolMissing, Unreachable
from aibs.timeouts import within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aibs.clock import Clock
    from aibs.placement.backend import Backend
    from aibs.placement.values import Lease, Outcome, Request

PATIENCE_S = 5.0
"""How long a caller waits for the answer before it goes on without."""

ANSWER_S = 10.0
"""A call that has no answer by then is sent again."""

PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 2.0


class Endings:
    """Ends leases and requests."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._backend = backend
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._tries = 0
        self._news: asyncio.Event | None = None
        self._closed = False
        self._log = logs.get("aibs.placement.endings")

    async def release(
        self,
        lease: Lease,
        outcome: Outcome,
        *,
        until_ms: int,
        done: Callable[[], object],
        in_background: bool = False,
    ) -> None:
        """Release, at least once, repeated until `until_ms` (boot time). `done` is called then."""
        call_id = secrets.token_hex(16)

        async def call() -> None:
            answer = await self._backend.release(lease, outcome, call_id=call_id)
            if answer.word not in ("ok", "duplicate"):
                self._log.warning(
                    "release_was_not_needed",
                    lease_id=lease.lease_id,
                    word=answer.word,
                    ended_by=answer.ended_by,
                )

        if in_background:
            self._start("release", lease.lease_id, call, until_ms, done)
            return
        began_s = self._loop.time()
        self._tries += 1
        try:
            if await self._tried(lease.lease_id, call, until_ms, done):
                return
            task = self._start("release", lease.lease_id, call, until_ms, done, paused=True)
        finally:
            self._tries -= 1
            self._tell_end()
        if task is not None:
            await self._wait_for(task, PATIENCE_S - (self._loop.time() - began_s))

    async def cancel(
        self, request: Request, *, done: Callable[[], object], in_background: bool = False
    ) -> None:
        """Cancel a request whatever became of it, repeated as long as a lease of it could live."""

        async def call() -> None:
            await self._backend.cancel(request)

        until_ms = self._clock.boottime_ms() + request.ttl_ms
        task = self._start("cancel", request.request_id, call, until_ms, done)
        if not in_background and task is not None:
            await self._wait_for(task, PATIENCE_S)

    async def settle(self, timeout_s: float) -> None:
        """Wait for what is under way, then give up the rest, and what would begin from then on."""
        self._news = news = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks or self._tries:
                    news.clear()
                    await news.wait()
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tried(
        self,
        which: str,
        call: Callable[[], Awaitable[None]],
        until_ms: int,
        done: Callable[[], object],
    ) -> bool:
        """Whether the release is answered, or a task has taken it over; else it may be lost."""
        try:
            with within(PATIENCE_S):
                await call()
        except (Unreachable, PoolMissing):
            return False
        except TimeoutError:
            self._start("release", which, call, until_ms, done)
            self._log.warning("unanswered_so_far", what="release")
        except Exception as error:  # noqa: BLE001 - nobody waits here to hear of it
            self._refused("release", which, error)
            done()
        except GeneratorExit:
            # Collected as garbage, in whatever thread; its loop may be closed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._start, "release", which, call, until_ms, done)
            raise
        except BaseException:
            self._start("release", which, call, until_ms, done)
            raise
        else:
            done()
        return True

    def _start(
        self,
        what: str,
        which: str,
        call: Callable[[], Awaitable[None]],
        until_ms: int,
        done: Callable[[], object],
        *,
        paused: bool = False,
    ) -> asyncio.Task[None] | None:
        if self._closed:
            done()
            return None
        # The loop of the placer: a block that is collected as garbage runs in none.
        task = self._loop.create_task(
            self._until_answered(what, which, call, until_ms, paused=paused), name=what
        )
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: done())
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._tell_end()

    def _tell_end(self) -> None:
        if self._news is not None:
            self._news.set()

    async def _wait_for(self, task: asyncio.Task[None], patience_s: float) -> None:
        """Wait while the caller's patience lasts; its cancellation does not reach the task."""
        over = self._loop.create_future()

        def end(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        task.add_done_callback(end)
        timer = self._loop.call_later(max(0.0, patience_s), end)
        try:
            await over
        finally:
            timer.cancel()
        if not task.done():
            self._log.warning("unanswered_so_far", what=task.get_name())

    async def _until_answered(
        self,
        what: str,
        which: str,
        call: Callable[[], Awaitable[None]],
        until_ms: int,
        *,
        paused: bool,
    ) -> None:
        pause_s = PAUSE_FIRST_S
        if paused:
            await self._clock.sleep(pause_s)
        while True:
            try:
                with within(ANSWER_S):
                    await call()
                return
            except (Unreachable, PoolMissing, TimeoutError) as error:
                left_ms = until_ms - self._clock.boottime_ms()
                if left_ms <= 0:
                    self._log.error("given_up", what=what, which=which, error=str(error))
                    return
            except Exception as error:  # noqa: BLE001 - nobody waits here to hear of it
                self._refused(what, which, error)
                return
            await self._clock.sleep(min(pause_s, left_ms / 1000))
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def _refused(self, what: str, which: str, error: Exception) -> None:
        # An answer, and one that no repetition changes.
        self._log.error("refused", what=what, which=which, error=repr(error))
