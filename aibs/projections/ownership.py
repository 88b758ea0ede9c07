"""Who holds the term, folded from elections and their ends."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler


@dataclass(slots=True)
class Ownership:
    """The term as the log tells it. `owner` is None while nobody holds it; `ended_at_ms` is when
    the last term ended, also while the next one lasts.

    `interleaved` counts elections whose fence was not above every fence before: never, in a log
    that a working pool wrote.
    """

    owner: str | None = None
    fence: int = 0
    elected_at_ms: int | None = None
    ended: str | None = None
    ended_at_ms: int | None = None
    last_owner: str | None = None
    event_id: str | None = None
    elections: int = 0
    rejected_writes: int = 0
    interleaved: int = 0

    def live_part(self) -> dict[str, Any]:
        """What the live term must equal; its deadline moves without events."""
        return {
            "owner": self.owner,
            "fence": self.fence,
            "elected_at_ms": self.elected_at_ms,
            "ended": self.ended,
            "last_owner": self.last_owner,
            "event_id": self.event_id,
        }

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "OwnerElected": self._elected,
            "OwnerResigned": self._ended,
            "OwnerExpired": self._ended,
            "FencedWriteRejected": self._rejected,
        }

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def restore(self, document: dict[str, Any]) -> None:
        """Become what was written as this."""
        for name in self.__slots__:
            setattr(self, name, document[name])

    def _elected(self, event: Event, data: dict[str, Any]) -> None:
        self.interleaved += data["fence"] <= self.fence
        self.owner, self.fence, self.elected_at_ms = data["owner"], data["fence"], event.at_ms
        self.ended, self.event_id = None, event.id
        self.elections += 1

    def _ended(self, event: Event, data: dict[str, Any]) -> None:
        self.owner, self.ended, self.last_owner = None, data["how"], data["owner"]
        self.event_id = event.id
        # An expired term was over at its deadline, and may have been found so much later.
        self.ended_at_ms = min(event.at_ms, data.get("deadline_ms", event.at_ms))

    def _rejected(self, _event: Event, data: dict[str, Any]) -> None:
        self.rejected_writes += 1 + data["repeats"]
