"""Follows the log for the end of a term, so that a standby need not wait for its next retry."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from aibs.errors import AibsError
from aibs.eventstore.events import OwnerExpired, OwnerResigned

if TYPE_CHECKING:
    from aibs.clock import Clock
    from aibs.eventstore.log import Log

BLOCK_MS = 1000
PAUSE_AFTER_ERROR_S = 1.0

_ENDS = (OwnerResigned.TYPE, OwnerExpired.TYPE)


class LogVacancy:
    """A Vacancy that reads the log on a connection of its own."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock

    async def wait(self) -> None:
        """Return at the next event that ends a term. A log that cannot be read is no news."""
        while True:
            try:
                following = self._log.follow(await self._log.last_id(), block_ms=BLOCK_MS)
                async with aclosing(following) as events:
                    async for event in events:
                        if event.type in _ENDS:
                            return
            except AibsError:
                # The retry of the election goes on without us.
                await self._clock.sleep(PAUSE_AFTER_ERROR_S)
