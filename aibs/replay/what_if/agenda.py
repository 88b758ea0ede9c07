"""What happens next in a simulation: of what the log tells and of what follows from it. Pure."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aibs.replay.what_if.recorded import Recorded

    Happening = tuple[int, int, int, "Kind", object]

Kind = Literal["fleet", "node", "end", "loaded", "give_up", "deadline", "arrive", "tick"]
ORDER: dict[Kind, int] = {
    "fleet": 0,
    "node": 1,
    "loaded": 2,
    "end": 3,
    "give_up": 4,
    "deadline": 5,
    "arrive": 6,
    "tick": 7,
}
"""What comes first of what happens in the same millisecond: room before requests, and a model that
was loaded for no work before that work's end.
"""


class Agenda:
    """In the order of time, then of rank, then of coming to be known."""

    def __init__(self, recorded: Recorded) -> None:
        self._told = _log(recorded)
        self._following = next(self._told, None)
        self._made: list[Happening] = []
        self._count = 0

    def put(self, at_ms: int, kind: Kind, what: object) -> None:
        """Something that the log does not tell."""
        self._count += 1
        heapq.heappush(self._made, _ranked(at_ms, kind, self._count, what))

    def next(self) -> Happening | None:
        """What happens next: its time, rank, number, kind and what; None at the end."""
        told = self._following
        # Nothing of the log has the rank of anything that was put: ties cannot be.
        if told is not None and (not self._made or told[:2] < self._made[0][:2]):
            self._following = next(self._told, None)
            return told
        return heapq.heappop(self._made) if self._made else None


def _log(recorded: Recorded) -> Iterator[Happening]:
    """What the log tells, in its order; one at a time, for a long log has many."""
    fleets = (_ranked(at, "fleet", n, f) for n, (at, f) in enumerate(recorded.fleets))
    nodes = (_ranked(one.at_ms, "node", n, one) for n, one in enumerate(recorded.changes))
    asked = (_ranked(one.at_ms, "arrive", n, one) for n, one in enumerate(recorded.arrivals))
    return heapq.merge(fleets, nodes, asked)


def _ranked(at_ms: int, kind: Kind, number: int, what: object) -> Happening:
    return (at_ms, ORDER[kind], number, kind, what)
