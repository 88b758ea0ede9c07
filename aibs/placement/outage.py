"""Whether the coordination server is away: found out once, and not by every request anew.

A server that hangs costs each caller its timeout. So the first call that fails has a probe sent,
and while probes find the server away, requests that cannot wait are refused unsent.

    serving ── a call failed ──▶ suspected ── a probe failed ──▶ away ─┐
       ▲                             │                           │ ▲   │ a probe each half second
       └────── any call answered ────┴───────────────────────────┘ └───┘

Suspicion alone refuses nobody: a connection that broke, or a moment in which this process stood
still, is no outage. Who asks meanwhile waits for the first probe, which is bounded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aibs import logs
from aibs.errors import CoordinationUnavailable, Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aibs.clock import Clock

PROBE_S = 0.5
"""A server that takes longer for its smallest answer cannot place a request in time."""

PROBE_EVERY_MS = 500
"""From one probe's beginning to the next one's, however many calls fail."""


class Outage:
    """One placer's knowledge of its server. `ping` raises Unreachable where that is away."""

    def __init__(self, ping: Callable[[], Awaitable[object]], clock: Clock) -> None:
        self._ping = ping
        self._clock = clock
        self._error: Unreachable | None = None
        self._probing: asyncio.Task[None] | None = None
        self._told = asyncio.Event()
        self._due_ms = 0
        self._log = logs.get("aibs.placement.outage")

    async def error(self) -> Unreachable | None:
        """Why the server is away; None where it serves, as far as is known."""
        if self._probing is not None and self._error is None:
            await self._told.wait()
        return self._error

    def suspect(self) -> None:
        """A call was not answered, or refused by a server that does not serve."""
        now_ms = self._clock.boottime_ms()
        if self._probing is None and self._due_ms <= now_ms:
            self._told.clear()
            self._probing = asyncio.create_task(self._probe(), name="probe of the server")

    def answered(self) -> None:
        """A call was answered: the server is there."""
        if self._probing is not None:
            self._probing.cancel()
            self._end()

    async def close(self) -> None:
        """End the probes."""
        probing = self._probing
        if probing is not None:
            probing.cancel()
            self._end()
            await asyncio.gather(probing, return_exceptions=True)

    async def _probe(self) -> None:
        """Probe until one is answered."""
        while (error := await self._probe_once()) is not None:
            if self._error is None:
                self._log.warning("coordination_away", error=str(error))
            self._error = error
            self._told.set()
            left_ms = self._due_ms - self._clock.boottime_ms()
            await self._clock.sleep(max(0, left_ms) / 1000)
        self._end()

    async def _probe_once(self) -> Unreachable | None:
        self._due_ms = self._clock.boottime_ms() + PROBE_EVERY_MS
        try:
            async with asyncio.timeout(PROBE_S):
                await self._ping()
        except Unreachable as error:
            return error
        except TimeoutError:
            return CoordinationUnavailable(
                f"The coordination server has not answered within {PROBE_S:g} s."
            )
        except Exception as error:  # noqa: BLE001 - requests are told by their own calls
            self._log.warning("probe_refused", error=repr(error))
        return None

    def _end(self) -> None:
        """The server serves, as far as is known."""
        if self._error is not None:
            self._log.info("coordination_back")
        self._error, self._probing = None, None
        self._told.set()
