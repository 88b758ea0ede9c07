"""Leases that ended otherwise than by their holder's release, and releases that came late or twice.

A leak is a lease that expired, or was reaped because its holder was gone. What an operator reaped
by hand the operator knows of.

Kept are every living lease, the newest `ENDED_MAX` that expired and that nobody acknowledged, and
the newest `ENDED_MAX` of the rest. A lease that expired never grows out of the verdict by age: it
stays until it is acknowledged. Where there are more than are kept, the oldest are counted, until
all that are kept have been acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, replace
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
    acknowledged: bool = False

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
    """What leaked. It counts and lists what came since `since_ms`, and leases that expired until
    they are acknowledged.
    """

    name = "leaks"
    version = 2
    """2 keeps what expired until it is acknowledged, apart from the rest."""

    def __init__(self, since_ms: int = 0) -> None:
        super().__init__()
        self.since_ms = since_ms
        self.acknowledged: dict[str, int] = {}
        self._open: dict[str, list[Any]] = {}
        self._ended: OrderedDict[str, EndedLease] = OrderedDict()
        self._unacknowledged: OrderedDict[str, EndedLease] = OrderedDict()
        self.unlisted = 0
        self._at_ms: dict[str, deque[int]] = {name: deque(maxlen=ENDED_MAX) for name in COUNTED}

    # --- what it says

    @property
    def ended(self) -> dict[str, EndedLease]:
        """Leases that ended by expiry or reaping, by lease id, as they ended: since `since_ms`, and
        before it those that expired and are not acknowledged.
        """
        since = [one for one in self._ended.values() if one.ended_at_ms >= self.since_ms]
        found = sorted([*self._unacknowledged.values(), *since], key=lambda one: one.ended_at_ms)
        return {one.lease_id: one for one in found}

    def unacknowledged(self) -> tuple[EndedLease, ...]:
        """Leaks that nobody has acknowledged. `unlisted` counts older ones that are not kept."""
        return tuple(one for one in self.ended.values() if one.leaked and not one.acknowledged)

    @property
    def expired_unreleased(self) -> int:
        """Leases that expired, whenever that was, and that nobody has acknowledged."""
        return len(self._unacknowledged) + self.unlisted

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
            "ended": [one.as_json() for one in self._ended.values()],
            "expired": [one.as_json() for one in self._unacknowledged.values()],
            "unlisted": self.unlisted,
            "at_ms": {name: list(found) for name, found in self._at_ms.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become what was written as this."""
        self.acknowledged, self._open = state["acknowledged"], state["open"]
        for kept, told in ((self._ended, state["ended"]), (self._unacknowledged, state["expired"])):
            for one in (EndedLease(*fields) for fields in told):
                kept[one.lease_id] = one
        self.unlisted = int(state["unlisted"])
        for name in COUNTED:
            self._at_ms[name].extend(state["at_ms"][name])

    @classmethod
    def lifted(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Version 1 kept what expired with the rest, and acknowledgements apart."""
        if document["version"] != 1:
            return super().lifted(document)
        state = document["state"]
        told = [EndedLease(*one) for one in state["ended"]]
        marked = [replace(one, acknowledged=one.lease_id in state["acknowledged"]) for one in told]
        expired = [one.as_json() for one in marked if one.end == "expired" and not one.acknowledged]
        ended = [one.as_json() for one in marked if one.end != "expired" or one.acknowledged]
        return {**document, "state": {**state, "ended": ended, "expired": expired, "unlisted": 0}}

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
        if held is None:
            return
        stored, deadline_ms, heard_ms = held
        known = data["lease_id"] in self.acknowledged
        one = EndedLease(
            stored, end, event.at_ms, data["held_ms"], deadline_ms, heard_ms, by_hand, known
        )
        if end != "expired" or known:
            self._remember(one)
            return
        self._unacknowledged[one.lease_id] = one
        if len(self._unacknowledged) > ENDED_MAX:
            self._unacknowledged.popitem(last=False)
            self.unlisted += 1

    def _remember(self, one: EndedLease) -> None:
        self._ended[one.lease_id] = one
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def _counted(self, name: str) -> Handler:
        def count(event: Event, _data: dict[str, Any]) -> None:
            self._at_ms[name].append(event.at_ms)

        return count

    def _leak_acknowledged(self, event: Event, data: dict[str, Any]) -> None:
        oldest = event.at_ms - ACKNOWLEDGED_FOR_MS
        kept = {key: at for key, at in self.acknowledged.items() if at > oldest}
        self.acknowledged = kept | dict.fromkeys(data["leases"], event.at_ms)
        # Noted in the leases themselves: the list of names is forgotten after a week, as the live
        # one is, and what was known once must not leak anew.
        for lease_id in data["leases"]:
            expired = self._unacknowledged.pop(lease_id, None)
            if expired is not None:
                self._remember(replace(expired, acknowledged=True))
            elif lease_id in self._ended:
                self._ended[lease_id] = replace(self._ended[lease_id], acknowledged=True)
        if not self._unacknowledged:
            # Whoever knows of all that could be told knows that it was not all.
            self.unlisted = 0


def evolve(state: Leaks, event: Event) -> Leaks:
    """The state after one event; the one given stays. To read a log, `apply` it."""
    after = state.copy()
    after.apply(event)
    return after
