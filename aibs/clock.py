"""Local time, injected wherever a decision depends on it.

Local clocks decide only how long this process trusts what it holds. They never enter coordination
state: that is stamped by the server's TIME inside the scripts.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

# CLOCK_BOOTTIME counts suspended time, so that a laptop lid or a paused VM cannot stretch a term.
# macOS has no such name: its CLOCK_MONOTONIC goes on while asleep.
_TRUST_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What the loops need of time."""

    def boottime_ms(self) -> int:
        """Milliseconds that only grow, suspended time included."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch by this machine's clock, for display only."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait, cancellably."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def boottime_ms(self) -> int:
        return time.clock_gettime_ns(_TRUST_CLOCK) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
