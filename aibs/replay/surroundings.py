"""What the log tells beside the coordination state: slots that drain, when nodes were seen.

On the server both live outside the fold. Here they are read from the same events, so a state of
the past shows them as far as the log knows: polls that changed nothing are told once a minute only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.coordination import Coordination

TOLD_EVERY_MS = 60_000
"""How often the log tells of a node that does not change."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A lease's hold on a node; `ended_at_ms` while its slot drains."""

    lease_id: str
    node_id: str
    base_url: str
    key: str
    weight_bytes: int
    drain_ms: int
    ended_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest observation of a node that the log knows of."""

    observed_at_ms: int
    epoch: int


class Surroundings:
    """`leases` and `drains` by lease id, `seen` by node id."""

    def __init__(self) -> None:
        self.leases: dict[str, Holding] = {}
        self.drains: dict[str, Holding] = {}
        self.seen: dict[str, Seen] = {}

    @classmethod
    def around(cls, coordination: Coordination) -> Self:
        """What a state that was folded before tells; slots that drained then are not known."""
        found = cls()
        for lease_id, document in coordination.leases.live_part()["leases"].items():
            found.leases[lease_id] = _holding(document)
        for node_id, node in coordination.residency.live_part().items():
            found.seen[node_id] = Seen(node["observed_at_ms"], coordination.identity.epoch)
        return found

    def apply(self, event: Event, epoch: int) -> None:
        """One more event that was readable."""
        data = event.data
        match event.type:
            case "ResidencyObserved":
                self._see(data["node_id"], data["observed_at_ms"], epoch)
            case "LeaseAcquired":
                lease = data["lease"]
                self.leases[lease["lease_id"]] = _holding(lease)
                # A grant says how fresh its node's stamp was, also where no event told of the poll.
                self._see(lease["node_id"], data["evidence"]["observed_at_ms"], epoch)
            case "LeaseReleased":
                self.leases.pop(data["lease_id"], None)
            case "LeaseExpired":
                self._drain(data["lease_id"], event.at_ms)
            case "LeaseReaped":
                if data["drained"]:
                    self._drain(data["lease_id"], event.at_ms)
                else:
                    self.leases.pop(data["lease_id"], None)
            case "FleetDeclared":
                urls = {node["node_id"]: node["base_url"] for node in data["fleet"]["nodes"]}
                self.drains = {
                    lease_id: one
                    for lease_id, one in self.drains.items()
                    if urls.get(one.node_id) == one.base_url
                }

    def draining(self, at_ms: int) -> list[Holding]:
        """The slots that are not free again at that moment."""
        return [one for one in self.drains.values() if not self._drained(one, at_ms)]

    def _drained(self, one: Holding, at_ms: int) -> bool:
        seen, ended = self.seen.get(one.node_id), one.ended_at_ms
        assert ended is not None
        return at_ms >= ended + one.drain_ms and seen is not None and seen.observed_at_ms > ended

    def _see(self, node_id: str, observed_at_ms: int, epoch: int) -> None:
        known = self.seen.get(node_id)
        if known is None or known.epoch != epoch or known.observed_at_ms < observed_at_ms:
            self.seen[node_id] = Seen(observed_at_ms, epoch)
        for lease_id, one in list(self.drains.items()):
            if one.node_id == node_id and self._drained(one, observed_at_ms):
                del self.drains[lease_id]

    def _drain(self, lease_id: str, ended_at_ms: int) -> None:
        held = self.leases.pop(lease_id, None)
        if held is not None:
            self.drains[lease_id] = Holding(
                held.lease_id,
                held.node_id,
                held.base_url,
                held.key,
                held.weight_bytes,
                held.drain_ms,
                ended_at_ms,
            )


def _holding(lease: dict[str, Any]) -> Holding:
    return Holding(
        lease["lease_id"],
        lease["node_id"],
        lease["base_url"],
        lease["key"],
        lease["weight_bytes"],
        lease["drain_ms"],
    )
