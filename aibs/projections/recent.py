"""The timeline's end: the newest `EVENTS_MAX` events, each with a readable clause."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from aibs.projections.engine import EVERY, Fold
from aibs.projections.timeline import describe

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler

EVENTS_MAX = 256


class Recent(Fold):
    """The newest lines, oldest first; events that cannot be read are among them, as stored."""

    name = "timeline"
    version = 1

    def __init__(self) -> None:
        super().__init__()
        self._told: list[dict[str, Any]] = []
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)

    def lines(self) -> list[dict[str, Any]]:
        """Each with id, seq, at_ms, type, actor and clause."""
        # Worded when asked for: most events of a long log are pushed out before anybody asks.
        told = [*self._told, *map(_line, self._events)]
        return told[-EVENTS_MAX:]

    def handlers(self) -> dict[str, Handler]:
        """Every event."""
        return {EVERY: self._add}

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {"lines": self.lines()}

    def restore(self, state: dict[str, Any]) -> None:
        """Become what was written as this."""
        self._told = state["lines"]

    def _add(self, event: Event, _data: dict[str, Any]) -> None:
        self._events.append(event)


def _line(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "seq": event.seq,
        "at_ms": event.at_ms,
        "type": event.type,
        "actor": event.actor,
        "clause": describe(event),
    }
