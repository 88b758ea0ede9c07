"""What the fleet was asked and gave: counts a minute, by model, node and environment."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from aibs.projections.engine import Fold

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler

MINUTES_MAX = 1440
SERIES_MAX = 256
"""In one minute; what is beyond is counted under OTHER."""

OTHER = "other"
MINUTE_MS = 60_000

Minute = dict[str, dict[str, int]]
"""Counts by series (`model|node|environment`, empty where it does not apply) and by what."""


class Workload(Fold):
    """`minutes` has (its beginning in ms, counts), oldest first, as many as had events."""

    name = "workload"
    version = 1

    def __init__(self) -> None:
        super().__init__()
        self.minutes: deque[tuple[int, Minute]] = deque(maxlen=MINUTES_MAX)
        self._series: dict[str, str] = {}

    def since(self, since_ms: int) -> tuple[tuple[int, Minute], ...]:
        """The minutes that ended after that moment."""
        return tuple(one for one in self.minutes if one[0] + MINUTE_MS > since_ms)

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "LeaseAcquired": self._acquired,
            "LeaseReleased": self._released,
            "LeaseExpired": lambda event, data: self._ended(event, data, "expired"),
            "LeaseReaped": lambda event, data: self._ended(event, data, "reaped"),
            "LeaseQueued": self._queued,
            "LeaseDenied": self._denied,
            "DenialsCounted": self._denials_counted,
            "ModelLoaded": self._loaded,
        }

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "minutes": [
                [begun, {name: dict(counts) for name, counts in minute.items()}]
                for begun, minute in self.minutes
            ],
            "series": dict(self._series),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become what was written as this."""
        self.minutes.extend((begun, minute) for begun, minute in state["minutes"])
        self._series = state["series"]

    def _count(self, event: Event, series: str, what: str, by: int = 1) -> None:
        begun = event.at_ms - event.at_ms % MINUTE_MS
        # After the clock stepped back the newest minute takes what the log says next.
        if not self.minutes or self.minutes[-1][0] < begun:
            self.minutes.append((begun, {}))
        minute = self.minutes[-1][1]
        counts = minute.get(series)
        if counts is None:
            if len(minute) >= SERIES_MAX:
                series = OTHER
            counts = minute.setdefault(series, {})
        counts[what] = counts.get(what, 0) + by

    def _acquired(self, event: Event, data: dict[str, Any]) -> None:
        lease = data["lease"]
        series = f"{lease['model']}|{lease['node_id']}|{lease['environment']}"
        self._series[lease["lease_id"]] = series
        self._count(event, series, "granted_warm" if lease["warm"] else "granted_cold")

    def _ended(self, event: Event, data: dict[str, Any], how: str) -> None:
        series = self._series.pop(data["lease_id"], None)
        if series is not None:
            self._count(event, series, how)
            self._count(event, series, "held_ms", data["held_ms"])

    def _released(self, event: Event, data: dict[str, Any]) -> None:
        self._ended(event, data, data["outcome"])

    def _queued(self, event: Event, data: dict[str, Any]) -> None:
        waiter = data["waiter"]
        self._count(event, f"{waiter['model']}||{waiter['environment']}", "queued")

    def _denied(self, event: Event, data: dict[str, Any]) -> None:
        self._count(event, f"{data['lane']}||{data['environment']}", f"denied_{data['reason']}")

    def _denials_counted(self, event: Event, data: dict[str, Any]) -> None:
        series = f"{data['lane']}||{data['environment']}"
        self._count(event, series, f"denied_{data['reason']}", data["count"])

    def _loaded(self, event: Event, data: dict[str, Any]) -> None:
        series = self._series.get(data["lease_id"])
        if series is not None:
            self._count(event, series, f"load_{data['outcome']}")
            self._count(event, series, "load_ms", data["ms"])
