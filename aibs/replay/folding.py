"""The state that a log adds up to, item by item: the one place that knows how folds are run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.projections.coordination import Coordination
from aibs.projections.engine import UnusableDocument
from aibs.replay.entries import Damaged, event_of

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.replay.entries import Item


class Folded:
    """The coordination state. `damaged` counts entries that are no events.

    `at_ms` is the time of the last event, the state's that it began with before the first; 0 where
    there is neither.
    """

    def __init__(self, start: Coordination | None = None) -> None:
        self.coordination = Coordination() if start is None else start
        self.damaged = 0
        self.last_damage = ""
        self.at_ms = 0 if start is None else start.position.at_ms

    def apply(self, item: Item) -> None:
        """Fold one more; a damaged one changes nothing and is counted."""
        event = event_of(item)
        if event is None:
            assert isinstance(item, Damaged)
            self.damaged += 1
            self.last_damage = f"{item.id or 'an entry'} {item.why}"
            return
        self.apply_event(event)

    def apply_event(self, event: Event) -> None:
        """Fold one more event."""
        self.coordination.apply(event)
        self.at_ms = event.at_ms

    @property
    def last_id(self) -> str:
        """The ID of the last event folded."""
        return self.coordination.last_id

    @property
    def unread(self) -> int:
        """Events that this release could not read, and entries that are none."""
        return self.coordination.unread + self.damaged

    @property
    def last_unread(self) -> str:
        """A clause about one of them."""
        return self.last_damage or self.coordination.last_unread

    def document(self) -> dict[str, Any]:
        """The coordination state, to begin with later."""
        return self.coordination.document()


def from_document(document: dict[str, Any]) -> Coordination | None:
    """The state that was written as this; None where this release cannot read it."""
    try:
        return Coordination.from_document(document)
    except UnusableDocument:
        return None
