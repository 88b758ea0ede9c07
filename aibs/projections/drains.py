"""Slots that ended without a release and rest, folded from ends and from polls that the log tells.

A slot comes back once a poll that began after its end answered and its time is over. On the server
that needs no event; here it is known as far as the log tells of polls: each change, one a minute,
and each grant's evidence. Until then a slot is shown to rest, never free too early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler
    from aibs.projections.identity import Identity
    from aibs.projections.leases import Leases


@dataclass(frozen=True, slots=True)
class RestingSlot:
    """What a lease held that ended without a release. Times in milliseconds."""

    lease_id: str
    node_id: str
    base_url: str
    key: str
    weight_bytes: int
    ended_at_ms: int
    until_ms: int

    def as_json(self) -> list[Any]:
        """As a list of its fields, in their order."""
        return [getattr(self, name) for name in self.__slots__]


class Seen(NamedTuple):
    """The newest poll of a node that the log knows of, and in which epoch of the pool it began."""

    observed_at_ms: int
    epoch: int


class Drains:
    """`held` by lease id, in the order of their ends; `seen` by node id.

    `unknown_at_ms` is the time of the state that was read on from, where an older release had
    kept it without its drains. Reads `leases` before an end takes the lease from there.
    """

    def __init__(self, leases: Leases, identity: Identity) -> None:
        self.held: dict[str, RestingSlot] = {}
        self.seen: dict[str, Seen] = {}
        self.unknown_at_ms: int | None = None
        self._urls: dict[str, str] = {}
        self._leases = leases
        self._identity = identity

    def draining(self, at_ms: int) -> tuple[RestingSlot, ...]:
        """The slots that are not free again at that moment. A node that moved took its slots with
        it.
        """
        return tuple(
            one
            for one in self.held.values()
            if self._urls.get(one.node_id, one.base_url) == one.base_url
            and not self._over(one, at_ms)
        )

    def stands(self, one: RestingSlot) -> bool:
        """Whether its node is declared where the lease was."""
        return self._urls.get(one.node_id) == one.base_url

    def _over(self, one: RestingSlot, at_ms: int) -> bool:
        seen = self.seen.get(one.node_id)
        return at_ms >= one.until_ms and seen is not None and seen.observed_at_ms > one.ended_at_ms

    # --- how it comes to know

    def handlers(self) -> dict[str, Handler]:
        """By event type. They are to be told before the leases are."""
        return {
            "LeaseAcquired": self._acquired,
            "LeaseExpired": self._ended,
            "LeaseReaped": self._reaped,
            "ResidencyObserved": self._observed,
            "FleetDeclared": self._declared,
        }

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "held": [one.as_json() for one in self.held.values()],
            "seen": {
                node_id: [one.observed_at_ms, one.epoch] for node_id, one in self.seen.items()
            },
            "urls": dict(self._urls),
            "unknown_at_ms": self.unknown_at_ms,
        }

    def restore(self, document: dict[str, Any]) -> None:
        """Become what was written as this."""
        slots = [RestingSlot(*one) for one in document["held"]]
        self.held = {one.lease_id: one for one in slots}
        self.seen = {node_id: Seen(*one) for node_id, one in document["seen"].items()}
        self._urls = document["urls"]
        self.unknown_at_ms = document["unknown_at_ms"]

    def _see(self, node_id: str, observed_at_ms: int, at_ms: int) -> None:
        epoch, known = self._identity.epoch, self.seen.get(node_id)
        if known is None or known[0] < observed_at_ms or known[1] != epoch:
            self.seen[node_id] = Seen(observed_at_ms, epoch)
        if self.held:
            for lease_id, one in list(self.held.items()):
                if one.node_id == node_id and self._over(one, at_ms):
                    del self.held[lease_id]

    def _let_go(self, at_ms: int) -> None:
        """Slots of nodes that are gone: no poll will tell of them, and a node that comes back is
        given nothing before it was seen.
        """
        for lease_id, one in list(self.held.items()):
            if at_ms >= one.until_ms and not self.stands(one):
                del self.held[lease_id]

    def _acquired(self, event: Event, data: dict[str, Any]) -> None:
        # A grant says how fresh its node's stamp was, also where no event told of the poll.
        self._see(data["lease"]["node_id"], data["evidence"]["observed_at_ms"], event.at_ms)

    def _observed(self, event: Event, data: dict[str, Any]) -> None:
        self._see(data["node_id"], data["observed_at_ms"], event.at_ms)

    def _ended(self, event: Event, data: dict[str, Any]) -> None:
        lease = self._leases.living.get(data["lease_id"])
        if lease is None:
            return
        self._let_go(event.at_ms)
        held = lease.stored
        self.held[held["lease_id"]] = RestingSlot(
            held["lease_id"],
            held["node_id"],
            held["base_url"],
            held["key"],
            held["weight_bytes"],
            event.at_ms,
            event.at_ms + held["drain_ms"],
        )

    def _reaped(self, event: Event, data: dict[str, Any]) -> None:
        if data["drained"]:
            self._ended(event, data)

    def _declared(self, event: Event, data: dict[str, Any]) -> None:
        """A node that is gone, or that moved, must be seen anew."""
        urls = {node["node_id"]: node["base_url"] for node in data["fleet"].get("nodes", ())}
        for node_id in [name for name, url in self._urls.items() if urls.get(name) != url]:
            self.seen.pop(node_id, None)
        self._urls = urls
        self._let_go(event.at_ms)


def unknown_drains(state: dict[str, Any], at_ms: int) -> dict[str, Any]:
    """The document of this part, out of a coordination state that was kept without it."""
    epoch = state["identity"]["epoch"]
    return {
        "held": [],
        "seen": {
            node_id: [node["observed_at_ms"], epoch]
            for node_id, node in state["residency"]["nodes"].items()
        },
        "urls": dict(state["residency"]["urls"]),
        "unknown_at_ms": at_ms,
    }
