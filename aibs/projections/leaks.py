"""Leases that ended otherwise than by their holder's release, and releases that came late or twice.

A leak is a lease that expired, or was reaped because its holder was gone. What an operator reaped
by hand the operator knows of. Kept are every living lease and the newest `ENDED_MAX` of the rest.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aibs.eventstore.events import LeaseDocument
from aibs.projections.engine import Fold
from aibs.projections.leases import ACKNOWLEDGED_FOR_MS

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler

End = Literal["released", "expired", "reaped"]

HOLDER_RESTARTED = "holder_restarted"

ENDED_MAX = 4096
"""So many ends, and so many of each other kind of mishap, are remembered."""

COUNTED = ("revoked", "reaped", "late_releases", "double_releases")


@dataclass(frozen=True, slots=True)
class EndedLease:
    """A lease that is over. Times in milliseconds by the server's clock. `stored` is its document
    as JSON, `document` the same, read.
    """

    stored: dict[str, Any]
    end: End
    ended_at_ms: int
    held_ms: int
    deadline_ms: int
    last_heartbeat_ms: int | None
    by_hand: bool = False

    @property
    def document(self) -> LeaseDocument:
        """What was granted."""
        return LeaseDocument.model_validate(self.stored)

    @property
    def lease_id(self) -> str:
        """Which lease."""
        return str(self.stored["lease_id"])

    @property
    def leaked(self) -> bool:
        """Whether nobody gave it back, and no operator took it."""
        return self.end == "expired" or (self.end == "reaped" and not self.by_hand)

    def as_json(self) -> list[Any]:
        """As a list of its fields, in their order."""
        return [getattr(self, name) for name in self.__slots__]


class Leaks(Fold):
    """What leaked. Everything that counts or lists looks back to `since_ms` and no further."""

    name = "leaks"
    version = 1

    def __init__(self, since_ms: int = 0) -> None:
        super().__init__()
        self.since_ms = since_ms
        self.acknowledged: dict[str, int] = {}
        self._open: dict[str, list[Any]] = {}
        self._ended: deque[EndedLease] = deque(maxlen=ENDED_MAX)
        self._at_ms: dict[str, deque[int]] = {name: deque(maxlen=ENDED_MAX) for name in COUNTED}

    # --- what it says

    @property
    def ended(self) -> dict[str, EndedLease]:
        """Leases that ended by expiry or reaping, by lease id."""
        return {one.lease_id: one for one in self._ended if one.ended_at_ms >= self.since_ms}

    def unacknowledged(self) -> tuple[EndedLease, ...]:
        """Leaks that nobody has acknowledged."""
        return tuple(
            lease
            for lease_id, lease in self.ended.items()
            if lease.leaked and lease_id not in self.acknowledged
        )

    def _count(self, name: str) -> int:
        return sum(at_ms >= self.since_ms for at_ms in self._at_ms[name])

    @property
    def revoked(self) -> int:
        """Leases that operators took back."""
        return self._count("revoked")

    @property
    def reaped(self) -> int:
        """Leases that were reaped."""
        return self._count("reaped")

    @property
    def late_releases(self) -> int:
        """Releases of leases that had ended otherwise."""
        return self._count("late_releases")

    @property
    def double_releases(self) -> int:
        """Second releases."""
        return self._count("double_releases")

    # --- how it comes to know

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "LeaseAcquired": self._acquired,
            "LeasesRenewed": self._renewed,
            "LeaseReleased": self._released,
            "LeaseExpired": self._expired,
            "LeaseReaped": self._reaped,
            "LeaseRevoked": self._counted("revoked"),
            "LateRelease": self._counted("late_releases"),
            "DoubleRelease": self._counted("double_releases"),
            "LeakAcknowledged": self._leak_acknowledged,
        }

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "acknowledged": dict(self.acknowledged),
            "open": {lease_id: list(held) for lease_id, held in self._open.items()},
            "ended": [one.as_json() for one in self._ended],
            "at_ms": {name: list(found) for name, found in self._at_ms.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become what was written as this."""
        self.acknowledged, self._open = state["acknowledged"], state["open"]
        self._ended.extend(EndedLease(*one) for one in state["ended"])
        for name in COUNTED:
            self._at_ms[name].extend(state["at_ms"][name])

    def copy(self) -> Leaks:
        """An equal one, that looks back as far."""
        other = super().copy()
        other.since_ms = self.since_ms
        return other

    def _acquired(self, _event: Event, data: dict[str, Any]) -> None:
        lease = data["lease"]
        self._open[lease["lease_id"]] = [lease, data["deadline_ms"], None]

    def _renewed(self, event: Event, data: dict[str, Any]) -> None:
        for lease_id, deadline_ms in zip(data["leases"], data["deadlines"], strict=True):
            held = self._open.get(lease_id)
            if held is not None:
                held[1], held[2] = deadline_ms, event.at_ms

    def _released(self, _event: Event, data: dict[str, Any]) -> None:
        self._open.pop(data["lease_id"], None)

    def _expired(self, event: Event, data: dict[str, Any]) -> None:
        self._end(event, data, "expired")

    def _reaped(self, event: Event, data: dict[str, Any]) -> None:
        self._at_ms["reaped"].append(event.at_ms)
        self._end(event, data, "reaped", by_hand=data["why"] != HOLDER_RESTARTED)

    def _end(self, event: Event, data: dict[str, Any], end: End, *, by_hand: bool = False) -> None:
        held = self._open.pop(data["lease_id"], None)
        if held is not None:
            stored, deadline_ms, heard_ms = held
            self._ended.append(
                EndedLease(
                    stored, end, event.at_ms, data["held_ms"], deadline_ms, heard_ms, by_hand
                )
            )

    def _counted(self, name: str) -> Handler:
        def count(event: Event, _data: dict[str, Any]) -> None:
            self._at_ms[name].append(event.at_ms)

        return count

    def _leak_acknowledged(self, event: Event, data: dict[str, Any]) -> None:
        oldest = event.at_ms - ACKNOWLEDGED_FOR_MS
        kept = {key: at for key, at in self.acknowledged.items() if at > oldest}
        self.acknowledged = kept | dict.fromkeys(data["leases"], event.at_ms)


def evolve(state: Leaks, event: Event) -> Leaks:
    """The state after one event; the one given stays. To read a log, `apply` it."""
    after = state.copy()
    after.apply(event)
    return after
