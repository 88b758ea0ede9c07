"""Living leases, folded from grants, heartbeats and ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aibs.eventstore.events import LeaseDocument

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler

ACKNOWLEDGED_FOR_MS = 604_800_000


@dataclass(frozen=True, slots=True)
class Revocation:
    """An operator's hand on a lease: reaped at `due_ms` unless its holder gives it back."""

    at_ms: int
    why: str
    by: str
    due_ms: int

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"at_ms": self.at_ms, "why": self.why, "by": self.by, "due_ms": self.due_ms}


class LivingLease:
    """A lease from its grant to its end. Times by the server's clock, in milliseconds.

    `stored` is its document as JSON; `document` is the same, read.
    """

    __slots__ = ("deadline_ms", "last_heartbeat_ms", "loading_since_ms", "revocation", "stored")

    def __init__(self, stored: dict[str, Any], deadline_ms: int) -> None:
        self.stored = stored
        self.deadline_ms = deadline_ms
        self.last_heartbeat_ms: int | None = None
        self.revocation: Revocation | None = None
        self.loading_since_ms: int | None = None

    @property
    def document(self) -> LeaseDocument:
        """What was granted."""
        return LeaseDocument.model_validate(self.stored)

    def heard_at_ms(self) -> int:
        """When its holder was last heard of."""
        heard = self.last_heartbeat_ms
        return int(self.stored["acquired_at_ms"]) if heard is None else heard

    def late(self, at_ms: int, heartbeat_ms: int) -> bool:
        """Whether no renewal came for three heartbeat intervals."""
        return at_ms - self.heard_at_ms() >= 3 * heartbeat_ms

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "document": self.stored,
            "deadline_ms": self.deadline_ms,
            "last_heartbeat_ms": self.last_heartbeat_ms,
            "loading_since_ms": self.loading_since_ms,
            "revocation": None if self.revocation is None else self.revocation.document(),
        }

    @classmethod
    def of_json(cls, document: dict[str, Any]) -> LivingLease:
        """The lease that was written as this."""
        lease = cls(document["document"], document["deadline_ms"])
        lease.last_heartbeat_ms = document["last_heartbeat_ms"]
        lease.loading_since_ms = document["loading_since_ms"]
        mark = document["revocation"]
        lease.revocation = None if mark is None else Revocation(**mark)
        return lease


@dataclass(slots=True)
class Leases:
    """Every living lease, and what operators acknowledged. `granted_twice` counts grants of a
    lease that was alive already: never, in a log that a working pool wrote.
    """

    living: dict[str, LivingLease] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
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
                node_id = lease.stored["node_id"]
                marks[f"loading|{lease_id}"] = f"{lease.loading_since_ms} {node_id}"
            if lease.revocation is not None:
                revoked[lease_id] = lease.revocation.document()
        return {
            "leases": {lease_id: dict(lease.stored) for lease_id, lease in self.living.items()},
            "deadlines": {lease_id: lease.deadline_ms for lease_id, lease in self.living.items()},
            "marks": marks,
            "revoked": revoked,
            "acks": dict(self.acknowledged),
        }

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "LeaseAcquired": self._acquired,
            "LeasesRenewed": self._renewed,
            "LeaseReleased": self._ended,
            "LeaseExpired": self._ended,
            "LeaseReaped": self._ended,
            "LeaseRevoked": self._revoked,
            "ModelLoading": self._loading,
            "ModelLoaded": self._loaded,
            "LeakAcknowledged": self._leak_acknowledged,
            "ClockStepped": self._clock_stepped,
        }

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "living": {lease_id: lease.as_json() for lease_id, lease in self.living.items()},
            "acknowledged": dict(self.acknowledged),
            "granted_twice": self.granted_twice,
            "ended_unknown": self.ended_unknown,
        }

    def restore(self, document: dict[str, Any]) -> None:
        """Become what was written as this."""
        self.living = {
            lease_id: LivingLease.of_json(lease) for lease_id, lease in document["living"].items()
        }
        self.acknowledged = document["acknowledged"]
        self.granted_twice = document["granted_twice"]
        self.ended_unknown = document["ended_unknown"]

    def _acquired(self, _event: Event, data: dict[str, Any]) -> None:
        stored = data["lease"]
        lease_id = stored["lease_id"]
        if lease_id in self.living:
            self.granted_twice += 1
        self.living[lease_id] = LivingLease(stored, data["deadline_ms"])

    def _renewed(self, event: Event, data: dict[str, Any]) -> None:
        at_ms, living = event.at_ms, self.living
        for lease_id, deadline_ms in zip(data["leases"], data["deadlines"], strict=True):
            lease = living.get(lease_id)
            if lease is not None:
                lease.deadline_ms = deadline_ms
                lease.last_heartbeat_ms = at_ms

    def _ended(self, _event: Event, data: dict[str, Any]) -> None:
        if self.living.pop(data["lease_id"], None) is None:
            self.ended_unknown += 1

    def _revoked(self, event: Event, data: dict[str, Any]) -> None:
        lease = self.living.get(data["lease_id"])
        if lease is not None:
            due_ms = data["due_ms"]
            lease.revocation = Revocation(event.at_ms, data["why"], data["by"], due_ms)
            lease.deadline_ms = due_ms

    def _loading(self, event: Event, data: dict[str, Any]) -> None:
        lease = self.living.get(data["lease_id"])
        if lease is not None:
            lease.loading_since_ms = event.at_ms

    def _loaded(self, _event: Event, data: dict[str, Any]) -> None:
        lease = self.living.get(data["lease_id"])
        if lease is not None:
            lease.loading_since_ms = None

    def _leak_acknowledged(self, event: Event, data: dict[str, Any]) -> None:
        oldest = event.at_ms - ACKNOWLEDGED_FOR_MS
        kept = {key: at for key, at in self.acknowledged.items() if at > oldest}
        self.acknowledged = kept | dict.fromkeys(data["leases"], event.at_ms)

    def _clock_stepped(self, event: Event, data: dict[str, Any]) -> None:
        for lease in self.living.values():
            _step(lease, data["delta_ms"], event.at_ms)


def _step(lease: LivingLease, delta_ms: int, at_ms: int) -> None:
    """After a step forward every time moves along; after one back no deadline lies further ahead
    than its TTL.
    """
    if delta_ms <= 0:
        lease.deadline_ms = min(lease.deadline_ms, at_ms + lease.stored["ttl_ms"])
        return
    lease.deadline_ms += delta_ms
    if lease.last_heartbeat_ms is not None:
        lease.last_heartbeat_ms += delta_ms
    if lease.loading_since_ms is not None:
        lease.loading_since_ms += delta_ms
    if lease.revocation is not None:
        lease.revocation = replace(lease.revocation, due_ms=lease.revocation.due_ms + delta_ms)
