"""Who holds the term, folded from elections and their ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from aibs.eventstore.events import (
    EventData,
    FencedWriteRejected,
    OwnerElected,
    OwnerExpired,
    OwnerResigned,
)


@dataclass(frozen=True, slots=True)
class Ownership:
    """The term as the log tells it. `owner` is None while nobody holds it.

    `interleaved` counts elections whose fence was not above every fence before: never, in a log
    that a working pool wrote.
    """

    owner: str | None = None
    fence: int = 0
    elected_at_ms: int | None = None
    ended: str | None = None
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


def evolve(state: Ownership, data: EventData, event_id: str, at_ms: int) -> Ownership:
    """The state after one event; events of other concern leave it as it is."""
    match data:
        case OwnerElected():
            return replace(
                state,
                owner=data.owner,
                fence=data.fence,
                elected_at_ms=at_ms,
                ended=None,
                event_id=event_id,
                elections=state.elections + 1,
                interleaved=state.interleaved + (data.fence <= state.fence),
            )
        case OwnerResigned() | OwnerExpired():
            return replace(
                state, owner=None, ended=data.how, last_owner=data.owner, event_id=event_id
            )
        case FencedWriteRejected():
            return replace(state, rejected_writes=state.rejected_writes + 1 + data.repeats)
    return state
