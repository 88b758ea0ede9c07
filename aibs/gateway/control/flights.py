"""Requests of the Placements API on their way to a lease, one flight for all who ask for the same.

A client that repeats a request while the first asking still waits joins it. The request is given up
at the pool when the last of its clients has left, and its lease when it was granted to nobody.

A process on its way out gives nothing up that only waits: the place lives on a while without it
(QUEUE_GRACE_SECONDS), and the same request at another instance goes on there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from aibs.errors import ConfigurationError, PlacementDenied
from aibs.gateway.control.answering import Refused
from aibs.gateway.control.placement_bodies import new_lease_id
from aibs.gateway.denials import SHUTTING_DOWN, SHUTTING_DOWN_RETRY_MS
from aibs.placement.acquisition import Acquisition

if TYPE_CHECKING:
    from aibs.placement import Placer
    from aibs.placement.backend import Backend
    from aibs.placement.values import Denied, Granted, Queued, Request

SHUTTING_DOWN_NOW = (
    "This gateway is shutting down, and the request did not get its place in the time it had: send "
    "the same one to another gateway."
)


class _Flight:
    """One request under way."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.lease_id = new_lease_id(request.request_id)
        self.clients = 0
        self.task: asyncio.Task[Granted] | None = None


class _Questions:
    """The back end as one acquisition asks it. `in_doubt`: a question was sent whose answer is not
    known, which may be a grant.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.in_doubt = False

    async def acquire(self, *args: Any, **more: Any) -> Granted | Queued | Denied:
        """As Backend.acquire."""
        self.in_doubt = True
        answer = await self._backend.acquire(*args, **more)
        self.in_doubt = False
        return answer


class Flights:
    """All of this process."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._flights: dict[str, _Flight] = {}
        self._all: set[asyncio.Task[Granted]] = set()
        self._closing = False

    async def grant(self, request: Request) -> tuple[Granted, bool]:
        """The lease, and whether it is new: else it is the first answer's. Raises PlacementDenied,
        Refused.

        Cancelled, it gives the request up unless another client still waits for it.
        """
        flight = self._flights.get(request.request_key)
        if flight is None or flight.request.request_hash != request.request_hash:
            flight = self._begin(request)
        flight.clients += 1
        task = flight.task
        assert task is not None
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            flight.clients -= 1
            if flight.clients == 0:
                await self._abandon(flight)
            raise
        flight.clients -= 1
        if task.cancelled():
            raise _shutting_down()
        try:
            granted = task.result()
        except ConfigurationError as error:
            # The placer was closed while the request waited.
            raise _shutting_down() from error
        return granted, granted.lease.lease_id == flight.lease_id

    async def close(self) -> None:
        """End every request under way; whoever waits is told. May be repeated."""
        self._closing = True
        tasks = tuple(self._all)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, request: Request) -> _Flight:
        flight = _Flight(request)
        task = asyncio.create_task(self._fly(flight), name=f"placement {request.request_id}")
        flight.task = task
        # One of other parameters flies beside it: the pool says that it is a conflict.
        self._flights.setdefault(request.request_key, flight)
        self._all.add(task)
        task.add_done_callback(lambda _: self._landed(flight))
        return flight

    def _landed(self, flight: _Flight) -> None:
        task = flight.task
        assert task is not None
        self._all.discard(task)
        if self._flights.get(flight.request.request_key) is flight:
            del self._flights[flight.request.request_key]
        if not task.cancelled():
            # Asked for here: it may be that nobody waits any more.
            task.exception()

    async def _fly(self, flight: _Flight) -> Granted:
        placer, request = self._placer, flight.request
        questions = _Questions(placer.backend)
        acquisition = Acquisition(
            request,
            cast("Backend", questions),
            placer.room,
            placer.clock,
            placer.outage,
            # Who waits for a node does not wait for a coordination server that is away.
            patient=False,
            weight_of=placer.weight_of,
            on_queue=None,
            lease_id=flight.lease_id,
        )
        try:
            granted, _ = await acquisition.run()
        except BaseException as error:
            # A wait that is over ends at the pool by its own deadline; the same request may wait
            # on at another instance.
            over = isinstance(error, PlacementDenied) and error.reason == "wait_timeout"
            # Nobody is granted a lease who does not ask for it, so a place may be left.
            stands = self._closing and not questions.in_doubt
            if acquisition.open and not over and not stands:
                await self._cancel(request)
            raise
        if granted.lease.holder != request.holder:
            # Its first grant is a process's own, which renews and ends it.
            raise acquisition.denial("request_conflict", None)
        return granted

    async def _abandon(self, flight: _Flight) -> None:
        """Nobody waits for it any more."""
        task = flight.task
        assert task is not None
        if not task.done():
            task.cancel()
            return
        if task.cancelled() or task.exception() is not None:
            return
        # The first answer of a request that was granted before is in somebody's hands.
        if task.result().lease.lease_id == flight.lease_id:
            await self._cancel(flight.request)

    async def _cancel(self, request: Request) -> None:
        await self._placer.endings.cancel(request, done=lambda: None, in_background=True)


def _shutting_down() -> Refused:
    return Refused(503, SHUTTING_DOWN, SHUTTING_DOWN_NOW, retry_after_ms=SHUTTING_DOWN_RETRY_MS)
