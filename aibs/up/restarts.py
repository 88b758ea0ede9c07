"""Whether and when a child that ended is started again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 30.0

STEADY_S = 60.0
"""A child that ran so long counts as well again: its next death is a first one."""

DEATHS_MAX = 6
"""So many deaths in a row, each before it ran steadily, and it is given up."""

UNUSABLE = 2
"""The exit status of a command whose settings cannot be used: starting it again mends nothing."""


@dataclass(slots=True)
class Restarts:
    """The deaths of one child so far."""

    in_a_row: int = 0

    def after(self, status: int, ran_s: float) -> float | None:
        """Seconds to wait before it is started again; None: it is given up."""
        if status == UNUSABLE:
            return None
        self.in_a_row = 1 if ran_s >= STEADY_S else self.in_a_row + 1
        if self.in_a_row >= DEATHS_MAX:
            return None
        pause_s: float = PAUSE_FIRST_S * 2 ** (self.in_a_row - 1)
        return min(pause_s, PAUSE_MAX_S)
