"""Living leases, folded from grants, heartbeats and ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aibs.eventstore.events import (
    ClockStepped,
    EventData,
    LeakAcknowledged,
    LeaseAcquired,
    LeaseDocument,
    LeaseExpired,
    LeaseReaped,
    LeaseReleased,
    LeaseRevoked,
    LeasesRenewed,
    ModelLoaded,
    ModelLoading,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

ACKNOWLEDGED_FOR_MS = 604_800_000


@dataclass(frozen=True, slots=True)
class Revocation:
    """An operator's hand on a lease: reaped at `due_ms` unless its holder gives it back."""

    at_ms: int
    why: str
    by: str
    due_ms: int


@dataclass(frozen=True, slots=True)
class LivingLease:
    """A lease from its grant to its end. Times by the server's clock, in milliseconds."""

    document: LeaseDocument
    deadline_ms: int
    last_heartbeat_ms: int | None = None
    revocation: Revocation | None = None
    loading_since_ms: int | None = None

    def heard_at_ms(self) -> int:
        """When its holder was last heard of."""
        heard = self.last_heartbeat_ms
        return self.document.acquired_at_ms if heard is None else heard

    def late(self, at_ms: int, heartbeat_ms: int) -> bool:
        """Whether no renewal came for three heartbeat intervals."""
        return at_ms - self.heard_at_ms() >= 3 * heartbeat_ms


@dataclass(frozen=True, slots=True)
class Leases:
    """Every living lease, and what operators acknowledged. `granted_twice` counts grants of a
    lease that was alive already: never, in a log that a working pool wrote.
    """

    living: Mapping[str, LivingLease] = field(default_factory=dict)
    acknowledged: Mapping[str, int] = field(default_factory=dict)
    granted_twice: int = 0
    ended_unknown: int = 0

    def live_part(self) -> dict[str, Any]:
        """What the live state must equal, by the names of its keys."""
        marks: dict[str, str] = {}
        revoked: dict[str, dict[str, Any]] = {}
        for lease_id, lease in self.living.items():
            if lease.last_heartbeat_ms is not None:
                marks[f"beat|{lease_id}"] = str(lease.last_heartbeat_ms)
            if lease.loading_since_ms is not None:
                node_id = lease.document.node_id
                marks[f"loading|{lease_id}"] = f"{lease.loading_since_ms} {node_id}"
            if lease.revocation is not None:
                mark = lease.revocation
                revoked[lease_id] = {
                    "at_ms": mark.at_ms,
                    "why": mark.why,
                    "by": mark.by,
                    "due_ms": mark.due_ms,
                }
        return {
            "leases": {
                lease_id: lease.document.model_dump() for lease_id, lease in self.living.items()
            },
            "deadlines": {lease_id: lease.deadline_ms for lease_id, lease in self.living.items()},
            "marks": marks,
            "revoked": revoked,
            "acks": dict(self.acknowledged),
        }


def evolve(state: Leases, data: EventData, at_ms: int) -> Leases:
    """The state after one event; events of other concern leave it as it is."""
    match data:
        case LeaseAcquired():
            lease = LivingLease(data.lease, data.deadline_ms)
            lease_id = data.lease.lease_id
            return replace(
                state,
                living={**state.living, lease_id: lease},
                granted_twice=state.granted_twice + (lease_id in state.living),
            )
        case LeasesRenewed():
            return _renewed(state, data, at_ms)
        case LeaseReleased() | LeaseExpired() | LeaseReaped():
            living = {key: lease for key, lease in state.living.items() if key != data.lease_id}
            missing = len(living) == len(state.living)
            return replace(state, living=living, ended_unknown=state.ended_unknown + missing)
        case LeaseRevoked():
            mark = Revocation(at_ms, data.why, data.by, data.due_ms)
            return _changed(state, data.lease_id, revocation=mark, deadline_ms=data.due_ms)
        case ModelLoading():
            return _changed(state, data.lease_id, loading_since_ms=at_ms)
        case ModelLoaded():
            return _changed(state, data.lease_id, loading_since_ms=None)
        case LeakAcknowledged():
            oldest = at_ms - ACKNOWLEDGED_FOR_MS
            kept = {key: at for key, at in state.acknowledged.items() if at > oldest}
            return replace(state, acknowledged=kept | dict.fromkeys(data.leases, at_ms))
        case ClockStepped():
            return replace(
                state,
                living={
                    key: _stepped(lease, data.delta_ms, at_ms)
                    for key, lease in state.living.items()
                },
            )
    return state


def _changed(state: Leases, lease_id: str, **changes: Any) -> Leases:
    lease = state.living.get(lease_id)
    if lease is None:
        return state
    return replace(state, living={**state.living, lease_id: replace(lease, **changes)})


def _renewed(state: Leases, data: LeasesRenewed, at_ms: int) -> Leases:
    living = dict(state.living)
    for lease_id, deadline_ms in zip(data.leases, data.deadlines, strict=True):
        if lease_id in living:
            living[lease_id] = replace(
                living[lease_id], deadline_ms=deadline_ms, last_heartbeat_ms=at_ms
            )
    return replace(state, living=living)


def _stepped(lease: LivingLease, delta_ms: int, at_ms: int) -> LivingLease:
    """After a step forward every time moves along; after one back no deadline lies further ahead
    than its TTL.
    """
    if delta_ms <= 0:
        return replace(lease, deadline_ms=min(lease.deadline_ms, at_ms + lease.document.ttl_ms))
    heard, loading, mark = lease.last_heartbeat_ms, lease.loading_since_ms, lease.revocation
    return replace(
        lease,
        deadline_ms=lease.deadline_ms + delta_ms,
        last_heartbeat_ms=None if heard is None else heard + delta_ms,
        loading_since_ms=None if loading is None else loading + delta_ms,
        revocation=None if mark is None else replace(mark, due_ms=mark.due_ms + delta_ms),
    )
