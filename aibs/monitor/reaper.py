"""The owner's sweep: ends what time has ended, at the pace of the renewals.

It needs no fence: the script looks at deadlines by the server's clock, and whoever calls it, the
same leases are over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs import logs
from aibs.errors import AibsError

if TYPE_CHECKING:
    from aibs.clock import Clock
    from aibs.eventstore.pool import CoordinationPool

SWEEPS_IN_A_ROW_MAX = 16


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What the queue's order depends on, in milliseconds."""

    staleness_ms: int
    swap_min_ms: int
    swap_max_ms: int

    def arguments(self) -> dict[str, int]:
        """By the names of the scripts' headers."""
        return {
            "staleness_ms": self.staleness_ms,
            "swap_min_ms": self.swap_min_ms,
            "swap_max_ms": max(1, self.swap_max_ms),
        }


async def reap_for_ever(
    pool: CoordinationPool, rules: QueueRules, clock: Clock, *, every_ms: int
) -> None:
    """Sweep until cancelled. A sweep that fails is told once and tried again at the next."""
    log = logs.get("aibs.monitor.reaper")
    failing = False
    while True:
        await clock.sleep(every_ms / 1000)
        try:
            for _ in range(SWEEPS_IN_A_ROW_MAX):
                answer = await pool.call("reap", rules.arguments())
                _, expired, reaped, forgotten, more = answer.texts
                if expired != "0" or reaped != "0" or forgotten != "0":
                    log.info("swept", expired=expired, reaped=reaped, forgotten=forgotten)
                if more != "1":
                    break
            failing = False
        except AibsError as error:
            if not failing:
                log.warning("sweep_failed", error=str(error))
            failing = True
