"""Leases that ended otherwise than by their holder's release, and releases that came late or twice.

Keeps what ended since `since_ms` and every living lease; a leak is a lease that expired, or was
reaped because its holder was gone. What an operator reaped by hand the operator knows of.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from aibs.eventstore.events import (
    DoubleRelease,
    LateRelease,
    LeakAcknowledged,
    LeaseAcquired,
    LeaseDocument,
    LeaseExpired,
    LeaseReaped,
    LeaseReleased,
    LeaseRevoked,
    LeasesRenewed,
    Unreadable,
    decode,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aibs.eventstore.events import Event

End = Literal["released", "expired", "reaped"]

HOLDER_RESTARTED = "holder_restarted"


@dataclass(frozen=True, slots=True)
class EndedLease:
    """A lease that is over. Times in milliseconds by the server's clock."""

    document: LeaseDocument
    end: End
    ended_at_ms: int
    held_ms: int
    deadline_ms: int
    last_heartbeat_ms: int | None
    by_hand: bool = False

    @property
    def leaked(self) -> bool:
        """Whether nobody gave it back, and no operator took it."""
        return self.end == "expired" or (self.end == "reaped" and not self.by_hand)


@dataclass(frozen=True, slots=True)
class _Open:
    document: LeaseDocument
    deadline_ms: int
    last_heartbeat_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Leaks:
    """What leaked since `since_ms`. Released leases are kept only where something was wrong."""

    since_ms: int
    open_: Mapping[str, _Open] = field(default_factory=dict)
    ended: Mapping[str, EndedLease] = field(default_factory=dict)
    acknowledged: frozenset[str] = frozenset()
    revoked: int = 0
    reaped: int = 0
    late_releases: int = 0
    double_releases: int = 0

    def unacknowledged(self) -> tuple[EndedLease, ...]:
        """Leaks that nobody has acknowledged."""
        return tuple(
            lease
            for lease_id, lease in self.ended.items()
            if lease.leaked and lease_id not in self.acknowledged
        )


def evolve(state: Leaks, event: Event) -> Leaks:
    """The state after one event; what this release cannot read changes nothing."""
    data = decode(event)
    if isinstance(data, Unreadable):
        return state
    at_ms = event.at_ms
    counts = at_ms >= state.since_ms
    match data:
        case LeaseAcquired():
            opened = _Open(data.lease, data.deadline_ms)
            return replace(state, open_={**state.open_, data.lease.lease_id: opened})
        case LeasesRenewed():
            return _renewed(state, data, at_ms)
        case LeaseReleased():
            return _ended(state, data.lease_id, "released", at_ms, data.held_ms)
        case LeaseExpired():
            return _ended(state, data.lease_id, "expired", at_ms, data.held_ms)
        case LeaseReaped():
            ended = _ended(
                state,
                data.lease_id,
                "reaped",
                at_ms,
                data.held_ms,
                by_hand=data.why != HOLDER_RESTARTED,
            )
            return replace(ended, reaped=state.reaped + counts)
        case LeaseRevoked():
            return replace(state, revoked=state.revoked + counts)
        case LateRelease():
            return replace(state, late_releases=state.late_releases + counts)
        case DoubleRelease():
            return replace(state, double_releases=state.double_releases + counts)
        case LeakAcknowledged():
            return replace(state, acknowledged=state.acknowledged | set(data.leases))
    return state


def _renewed(state: Leaks, data: LeasesRenewed, at_ms: int) -> Leaks:
    opened = dict(state.open_)
    for lease_id, deadline_ms in zip(data.leases, data.deadlines, strict=False):
        if lease_id in opened:
            opened[lease_id] = replace(
                opened[lease_id], deadline_ms=deadline_ms, last_heartbeat_ms=at_ms
            )
    return replace(state, open_=opened)


def _ended(
    state: Leaks, lease_id: str, end: End, at_ms: int, held_ms: int, *, by_hand: bool = False
) -> Leaks:
    opened = state.open_.get(lease_id)
    if opened is None:
        return state
    rest = {key: value for key, value in state.open_.items() if key != lease_id}
    if end == "released" or at_ms < state.since_ms:
        return replace(state, open_=rest)
    over = EndedLease(
        opened.document,
        end,
        at_ms,
        held_ms,
        opened.deadline_ms,
        opened.last_heartbeat_ms,
        by_hand,
    )
    return replace(state, open_=rest, ended={**state.ended, lease_id: over})
