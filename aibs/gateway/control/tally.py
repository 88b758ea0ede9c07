"""Counts and histograms that only grow, by labels. Plain values, read by a scrape as they stand."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Labels = tuple[str, ...]

OTHER: Final = "other"
"""The label of what is no name of the fleet's or the roster's."""

LABELS_MAX: Final = 4096
"""So many series of one name; what comes beyond is counted under OTHER alone."""

LOAD_S: Final = (0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
REQUEST_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
FIRST_BYTE_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
QUEUE_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300)
POLL_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)
"""Upper bounds in seconds. They reach the minutes that local models take."""


class Count:
    """A number for each set of labels."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self._values: dict[Labels, int] = {}

    def add(self, labels: Labels, by: int = 1) -> None:
        """Count so many more."""
        values = self._values
        if labels not in values and len(values) >= LABELS_MAX:
            labels = (OTHER,) * len(self.labels)
        values[labels] = values.get(labels, 0) + by

    def items(self) -> list[tuple[Labels, int]]:
        """All series, as they are now."""
        return list(self._values.items())

    def forget(self, position: int, kept: Iterable[str]) -> None:
        """Drop the series whose label at that place is none of the kept."""
        names = set(kept)
        for labels in [one for one in self._values if one[position] not in names]:
            del self._values[labels]


class Spread:
    """A histogram for each set of labels. `bounds` are upper bounds in seconds."""

    def __init__(self, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self.labels = tuple(labels)
        self.bounds = tuple(float(bound) for bound in bounds)
        self._values: dict[Labels, tuple[list[int], list[float]]] = {}

    def observe(self, labels: Labels, seconds: float) -> None:
        """One more value."""
        held = self._values.get(labels)
        if held is None:
            if len(self._values) >= LABELS_MAX:
                labels = (OTHER,) * len(self.labels)
            held = self._values.setdefault(labels, ([0] * (len(self.bounds) + 1), [0.0]))
        held[0][bisect_left(self.bounds, seconds)] += 1
        held[1][0] += seconds

    def items(self) -> list[tuple[Labels, list[tuple[str, float]], float]]:
        """All series as (labels, cumulative buckets up to +Inf, sum)."""
        found = []
        for labels, (counts, total) in list(self._values.items()):
            buckets: list[tuple[str, float]] = []
            below = 0
            for bound, count in zip((*self.bounds, None), counts, strict=True):
                below += count
                buckets.append(("+Inf" if bound is None else repr(bound), float(below)))
            found.append((labels, buckets, total[0]))
        return found

    def forget(self, position: int, kept: Iterable[str]) -> None:
        """Drop the series whose label at that place is none of the kept."""
        names = set(kept)
        for labels in [one for one in self._values if one[position] not in names]:
            del self._values[labels]
