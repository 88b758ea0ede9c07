"""A node that failed its requests is closed in the pool, for everybody.

It is a service to others: a server that does not hear of it costs them some failures more, and
never the caller its answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aibs import logs
from aibs.errors import AibsError, PoolMissing, Unreachable
from aibs.placement.wording import printable

if TYPE_CHECKING:
    from aibs.clock import Clock
    from aibs.placement.backend import Backend

TRIES_MAX = 4
ANSWER_S = 2.0
PAUSE_FIRST_S = 0.1
"""Doubled with each try."""

WHY_MAX = 200
"""Characters of a reason, which every reader of the log is shown."""


async def trip(backend: Backend, clock: Clock, node_id: str, why: str) -> bool:
    """As Backend.trip, asked again a few times; False where nothing answers."""
    log, pause_s = logs.get("aibs.placement.trip", node_id=node_id), PAUSE_FIRST_S
    for left in reversed(range(TRIES_MAX)):
        try:
            async with asyncio.timeout(ANSWER_S):
                return await backend.trip(node_id, printable(why, WHY_MAX))
        except (Unreachable, PoolMissing, TimeoutError) as error:
            log.warning("trip_unanswered", error=str(error) or "no answer in time", tries_left=left)
        except AibsError as error:
            log.error("trip_refused", error=str(error))
            return False
        if left:
            await clock.sleep(pause_s)
            pause_s *= 2
    return False
