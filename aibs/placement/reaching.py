"""A back end behind a server that may be away: reached by the first call that finds it there.

Until then every call is refused, so that an application starts while the server is away, and
nothing is decided without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from aibs import logs
from aibs.errors import AibsError, ConfigurationError, CoordinationUnavailable, Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from aibs.clock import Clock
    from aibs.placement.backend import Backend
    from aibs.placement.values import (
        Beat,
        Denied,
        Granted,
        Lease,
        Outcome,
        Place,
        Queued,
        Released,
        ReportKind,
        Request,
        Session,
    )

    Reach = Callable[[], Coroutine[None, None, Backend]]

AGAIN_S = 1.0
"""Between two attempts for the sake of wake-ups alone: requests make their own."""


class ReachedBackend:
    """`reach` connects and gives the back end. One attempt at a time serves all callers.

    Calls raise as the back end's do, and CoordinationUnavailable while it is not reached: what
    failed was the way there, so the call itself was surely not done.
    """

    def __init__(self, reach: Reach, clock: Clock) -> None:
        self._reach = reach
        self._clock = clock
        self._backend: Backend | None = None
        self._attempt: asyncio.Task[Backend] | None = None
        self._closed = False
        self._log = logs.get("aibs.placement.reaching")

    async def open(self, timeout_s: float) -> None:
        """Try once, at most so long. A server that is away is left to later calls.

        Raises ConfigurationError and its kinds, PoolVersionMismatch: waiting mends neither.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._reached()
        except (Unreachable, TimeoutError) as error:
            why = str(error) or f"no answer in {timeout_s:g} s"
            self._log.warning("coordination_away_at_opening", error=why)

    async def acquire(
        self, request: Request, *, lease_id: str, call_id: str
    ) -> Granted | Queued | Denied:
        """As Backend.acquire."""
        backend = await self._serving()
        return await backend.acquire(request, lease_id=lease_id, call_id=call_id)

    async def heartbeat(self, holder: str, leases: Sequence[Lease]) -> list[Beat]:
        """As Backend.heartbeat."""
        return await (await self._serving()).heartbeat(holder, leases)

    async def release(self, lease: Lease, outcome: Outcome, *, call_id: str) -> Released:
        """As Backend.release."""
        return await (await self._serving()).release(lease, outcome, call_id=call_id)

    async def cancel(self, request: Request) -> str:
        """As Backend.cancel."""
        return await (await self._serving()).cancel(request)

    async def refresh(self, holder: str, request_keys: Sequence[str]) -> list[Place]:
        """As Backend.refresh."""
        return await (await self._serving()).refresh(holder, request_keys)

    async def report(
        self, lease: Lease, kind: ReportKind, model: str, *, ms: int, outcome: str
    ) -> None:
        """As Backend.report."""
        await (await self._serving()).report(lease, kind, model, ms=ms, outcome=outcome)

    async def trip(self, node_id: str, why: str) -> bool:
        """As Backend.trip."""
        return await (await self._serving()).trip(node_id, why)

    async def open_session(self, session: Session) -> None:
        """As Backend.open_session."""
        await (await self._serving()).open_session(session)

    async def ping(self) -> None:
        """As Backend.ping."""
        await (await self._serving()).ping()

    def wakes(self) -> AsyncIterator[frozenset[str]]:
        """As Backend.wakes."""
        # The back end's own iterator where there is one: its reader closes it.
        return self._wakes_later() if self._backend is None else self._backend.wakes()

    async def _wakes_later(self) -> AsyncIterator[frozenset[str]]:
        while True:
            try:
                backend = await self._serving()
            except AibsError:
                await self._clock.sleep(AGAIN_S)
            else:
                break
        wakes = backend.wakes()
        try:
            async for names in wakes:
                yield names
        finally:
            if isinstance(wakes, AsyncGenerator):
                # Else its connection is closed at some later time, by the garbage collector.
                await wakes.aclose()

    async def aclose(self) -> None:
        """As Backend.aclose; an attempt under way is given up."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
        if self._backend is not None:
            await self._backend.aclose()

    async def _serving(self) -> Backend:
        """The back end. Raises CoordinationUnavailable, PoolVersionMismatch."""
        try:
            return await self._reached()
        except (Unreachable, ConfigurationError) as error:
            # A server that is not ours to use is, to a request, one that does not serve.
            raise CoordinationUnavailable(str(error)) from error

    async def _reached(self) -> Backend:
        if self._backend is not None:
            return self._backend
        if self._closed:
            raise CoordinationUnavailable("The placer is closed.")
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._reach(), name="reach the back end")
            self._attempt.add_done_callback(self._attempted)
        attempt = self._attempt
        # One caller's cancellation does not end what others wait for.
        await asyncio.wait({attempt})
        if attempt.cancelled():
            raise CoordinationUnavailable("The placer was closed meanwhile.")
        return attempt.result()

    def _attempted(self, attempt: asyncio.Task[Backend]) -> None:
        self._attempt = None
        if not attempt.cancelled() and attempt.exception() is None:
            self._backend = attempt.result()
