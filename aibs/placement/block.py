"""The `async with` block of a lease: entered with a grant, left with a release, whatever happens.

The block's task is cancelled when the lease is lost, and the block turns that cancellation, and no
other one, into LeaseLost: it counts the task's cancellations as asyncio.timeout does.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from aibs.errors import PlacementDenied
from aibs.placement.acquisition import Acquisition
from aibs.placement.held import HeldLease

if TYPE_CHECKING:
    from types import TracebackType

    from aibs.placement.acquisition import OnQueue
    from aibs.placement.placer import Placer
    from aibs.placement.values import Granted, Outcome, Request


class LeaseBlock:
    """Made by `Placer.lease`; to be entered once."""

    def __init__(
        self, placer: Placer, request: Request, on_queue: OnQueue | None, *, patient: bool
    ) -> None:
        self._placer = placer
        self._request = request
        self._on_queue = on_queue
        self._patient = patient
        self._lease: HeldLease | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelled_before = 0
        self._interrupted = False
        self._pid = os.getpid()

    async def __aenter__(self) -> HeldLease:
        """Wait for a place. Raises PlacementDenied, LeaseLost."""
        placer, request = self._placer, self._request
        placer.require_usable()
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelled_before = self._task.cancelling()
        acquisition = Acquisition(
            request,
            placer.backend,
            placer.room,
            placer.clock,
            placer.outage,
            patient=self._patient,
            weight_of=placer.weight_of,
            on_queue=self._on_queue,
        )
        if not placer.claim(request):
            # Never cancelled: that would end the one who has it.
            raise acquisition.denial("request_conflict", None)
        try:
            granted, trusted_until_ms = await acquisition.run()
            if granted.lease.holder != request.holder:
                # Its first grant lives in another process, and is that one's to end.
                acquisition.open = False
                raise acquisition.denial("request_conflict", None)
        except BaseException as error:
            await self._give_up(acquisition, error)
            raise
        return await self._hold(granted, trusted_until_ms)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. Raises LeaseLost where the lease ended under the block."""
        lease = self._lease
        if lease is None or os.getpid() != self._pid:
            # A forked child leaves the block of its parent, whose lease it is not.
            return
        self._placer.heart.discard(lease)
        lost = lease.error
        again: asyncio.CancelledError | None = None
        try:
            cancelled_by_us_only = await self._take_back_cancellation(error)
        except asyncio.CancelledError as cancellation:
            # Somebody else's, at that very moment: not before the release.
            cancelled_by_us_only, again = False, cancellation
        # Lease, block and task name each other: left so, all three would wait for the collector.
        self._lease = self._task = None
        await self._placer.endings.release(
            lease.grant,
            _outcome(lease, error),
            until_ms=lease.trusted_until_ms,
            done=lambda: self._placer.unclaim(self._request),
            in_background=isinstance(error, GeneratorExit),
        )
        if again is not None:
            raise again
        if lost is None:
            return
        if error is None or (isinstance(error, asyncio.CancelledError) and cancelled_by_us_only):
            raise lost from error

    async def _hold(self, granted: Granted, trusted_until_ms: int) -> HeldLease:
        placer = self._placer
        lease = HeldLease(
            granted.lease,
            trusted_until_ms=trusted_until_ms,
            clock=placer.clock,
            loads=placer.loads,
        )
        self._lease = lease
        if trusted_until_ms <= placer.clock.boottime_ms():
            # The answer took longer than the lease lives.
            lease.lose("trust_over")
            await self.__aexit__(None, None, None)
        lease.on_lost(self._interrupt)
        placer.heart.add(lease)
        return lease

    async def _give_up(self, acquisition: Acquisition, error: BaseException) -> None:
        """Leave nothing behind: a late grant would be held by nobody."""

        def unclaim() -> None:
            self._placer.unclaim(self._request)

        if not acquisition.open:
            unclaim()
            return
        # A coroutine that is being closed may not wait any more.
        in_background = isinstance(error, PlacementDenied | GeneratorExit)
        await self._placer.endings.cancel(self._request, done=unclaim, in_background=in_background)

    def _interrupt(self) -> None:
        assert self._task is not None
        self._interrupted = True
        self._task.cancel("the lease is lost")

    async def _take_back_cancellation(self, error: BaseException | None) -> bool:
        """Undo our own cancellation of the task; whether nobody else cancelled it."""
        task = self._task
        if not self._interrupted or task is None:
            return True
        self._interrupted = False
        if task.uncancel() > self._cancelled_before:
            return False
        if not isinstance(error, asyncio.CancelledError | GeneratorExit):
            # The block ended before ours arrived: it would strike at the next await.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if task.cancelling() > self._cancelled_before:
                    raise
        return True


def _outcome(lease: HeldLease, error: BaseException | None) -> Outcome:
    if lease.outcome == "failed":
        return "failed"
    if lease.error is not None:
        return "cancelled"
    if error is None:
        return lease.outcome
    # An abandoned generator and a person's Ctrl-C are no fault of the node.
    return "failed" if isinstance(error, Exception) else "cancelled"
