"""The synchronous twin: leases for threads, kept alive by an event loop in a thread of its own.

A forked child starts afresh: its own loop, its own holder, and never a word about the leases that
its parent holds. A thread cannot be cancelled: a lost lease sets `lost`, and the block raises
LeaseLost at its end; long work asks `raise_if_lost` between its steps.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Self

from aibs.errors import ConfigurationError, LeaseLost
from aibs.placement.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from aibs.placement.held import HeldLease
    from aibs.placement.loop_thread import Opener
    from aibs.placement.placer import Placer
    from aibs.placement.values import Lease, Outcome
    from aibs.settings import Settings

GIVE_UP_WAIT_S = 6.0
"""How long an interrupted thread waits for its request to be taken back: the placer's patience."""

_placers: weakref.WeakSet[SyncPlacer] = weakref.WeakSet()

_of_parents: list[LoopThread] = []
"""Kept for ever: to collect the loop of a parent would touch what the parent's own still uses."""


class SyncPlacer:
    """Leases for threads: `with placer.lease(model=...) as lease:`. One may serve all threads.

    Opens itself with the first lease, in each process anew. Takes the settings, or a function that
    opens a placer; without either it reads this process's settings. Raises ConfigurationError where
    these cannot be used.
    """

    def __init__(self, settings: Settings | None = None, *, opener: Opener | None = None) -> None:
        if settings is not None and opener is not None:
            raise ValueError("A SyncPlacer takes either settings or an opener.")
        self._opener = opener or _opener_of(settings)
        self._lock = threading.Lock()
        self._running: LoopThread | None = None
        self._closed = False
        _placers.add(self)

    def lease(self, **asked: Any) -> SyncLeaseBlock:
        """As Placer.lease. `on_queue` is called in the placer's thread."""
        return SyncLeaseBlock(self, asked)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every lease of it in this process, and its thread. May be repeated."""
        with self._lock:
            running, self._running = self._running, None
            self._closed = True
        if running is not None:
            running.close()

    def start(self) -> LoopThread:
        """The loop of this process, made by the first who needs it."""
        with self._lock:
            if self._closed:
                raise ConfigurationError("The placer is closed.", mend="Make a new one.")
            if self._running is None:
                self._running = LoopThread(self._opener)
            running = self._running
        try:
            running.placer()
        except Exception:
            # The next one tries anew: what was away may be back.
            with self._lock:
                if self._running is running:
                    self._running = None
            raise
        return running

    def after_fork(self) -> None:
        """In a forked child: the parent's thread does not live here, and its leases are not ours.

        The lock is new, because another thread of the parent may have held it.
        """
        self._lock = threading.Lock()
        if self._running is not None:
            _of_parents.append(self._running)
            self._running = None


class SyncLeaseBlock:
    """Made by `SyncPlacer.lease`; to be entered once."""

    def __init__(self, placer: SyncPlacer, asked: dict[str, Any]) -> None:
        self._placer = placer
        self._asked = asked
        self._pid = os.getpid()
        self._running: LoopThread | None = None
        self._entered: Future[HeldLease] = Future()
        self._left: Future[None] = Future()
        self._end: asyncio.Event | None = None
        self._outcome: Outcome | None = None
        self._work: Future[None] | None = None
        self._abandoned = False

    def __enter__(self) -> SyncLease:
        """Wait for a place. Raises PlacementDenied, LeaseLost, ValueError."""
        self._pid = os.getpid()
        self._running = running = self._placer.start()
        try:
            self._work = running.run(self._hold(running.placer()))
            return SyncLease(self._entered.result(), running)
        except BaseException:
            # Ctrl-C, mostly: the request is taken back before this thread goes on.
            if not self._left.done():
                self._interrupt()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. Raises LeaseLost where the lease ended under the block."""
        running = self._running
        if running is None or os.getpid() != self._pid:
            # A forked child leaves the block of its parent, whose lease it is not.
            return
        if error is not None:
            self._outcome = "failed" if isinstance(error, Exception) else "cancelled"
            if isinstance(error, LeaseLost):
                self._outcome = "cancelled"
        self._tell_end(running)
        try:
            self._left.result()
        except LeaseLost:
            if error is None:
                raise

    async def _hold(self, placer: Placer) -> None:
        """The block in the loop: it stands for the thread's, and is left when that is."""
        self._end = asyncio.Event()
        try:
            async with placer.lease(**self._asked) as lease:
                self._entered.set_result(lease)
                if not self._abandoned:
                    await self._end.wait()
                if self._outcome is not None:
                    lease.end_as(self._outcome)
        except BaseException as error:
            for told in (self._entered, self._left):
                if not told.done():
                    told.set_exception(_for_thread(error))
            if not isinstance(error, Exception):
                raise
        else:
            self._left.set_result(None)

    def _tell_end(self, running: LoopThread) -> None:
        assert self._end is not None
        try:
            running.loop.call_soon_threadsafe(self._end.set)
        except RuntimeError:
            # The loop is closed, and every lease ended with it.
            if not self._left.done():
                self._left.set_result(None)

    def _interrupt(self) -> None:
        self._abandoned = True
        self._outcome = "cancelled"
        if self._work is not None:
            self._work.cancel()
            try:
                self._left.exception(GIVE_UP_WAIT_S)
            except FutureTimeout:
                return


class SyncLease:
    """A lease in a thread's hands. What HeldLease tells, this tells too."""

    def __init__(self, held: HeldLease, running: LoopThread) -> None:
        self._held = held
        self._running = running
        self._pid = os.getpid()
        self.lost = threading.Event()
        self.on_lost(self.lost.set)

    @property
    def grant(self) -> Lease:
        """The lease as a value, with every field."""
        return self._held.grant

    @property
    def lease_id(self) -> str:
        return self.grant.lease_id

    @property
    def request_id(self) -> str:
        return self.grant.request_id

    @property
    def token(self) -> str:
        return self.grant.token

    @property
    def node_id(self) -> str:
        return self.grant.node_id

    @property
    def node_base_url(self) -> str:
        return self.grant.base_url

    @property
    def model(self) -> str:
        return self.grant.model

    @property
    def role(self) -> str | None:
        return self.grant.role

    @property
    def warm(self) -> bool:
        return self.grant.warm

    @property
    def remaining_ms(self) -> int:
        return self._held.remaining_ms

    def prepare(self) -> None:
        """As HeldLease.prepare. Raises LeaseLost where the lease ends meanwhile."""
        self._require_own()
        work = self._running.run(self._prepare())
        try:
            work.result()
        except BaseException:
            work.cancel()
            raise

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Call back, in the placer's thread, when the lease is lost."""
        self._running.loop.call_soon_threadsafe(self._held.on_lost, callback)

    def end_as(self, outcome: Outcome) -> None:
        """What the release says where the block ends without an exception."""
        self._held.end_as(outcome)

    def raise_if_lost(self) -> None:
        """Raises LeaseLost where the lease is lost, ConfigurationError in a forked child."""
        self._require_own()
        self._held.raise_if_lost()

    def _require_own(self) -> None:
        if os.getpid() != self._pid:
            raise ConfigurationError(
                f"This lease is held by process {self._pid}, and this is a forked child of it.",
                mend="Ask for a lease of its own in each process.",
            )

    async def _prepare(self) -> None:
        preparing = asyncio.ensure_future(self._held.prepare())
        self._held.on_lost(preparing.cancel)
        try:
            await preparing
        except asyncio.CancelledError:
            self._held.raise_if_lost()
            raise
        finally:
            preparing.cancel()


def _for_thread(error: BaseException) -> BaseException:
    """The loop's cancellation is no event of the thread's."""
    if isinstance(error, asyncio.CancelledError):
        return ConfigurationError("The placer was closed while a lease of it was in use.")
    return error


def _opener_of(settings: Settings | None) -> Opener:
    if settings is None:
        from aibs.settings import load

        settings = load()
    given = settings

    def opener() -> AbstractAsyncContextManager[Placer]:
        from aibs.placement.opening import open_placer

        return open_placer(given)

    return opener


def _after_fork() -> None:
    for placer in tuple(_placers):
        placer.after_fork()


def _at_exit() -> None:
    for placer in tuple(_placers):
        placer.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
