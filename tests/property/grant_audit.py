"""Recomputes every grant of a log from the events before it: what the evidence says must add up.

Knows nothing of the scripts: it holds the leases that the log grants and ends, and the fleet that
it declares.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aibs.eventstore.events import Event


@dataclass
class Holding:
    """A lease that takes room on a node; `ended_at_ms` while it drains."""

    node_id: str
    base_url: str
    key: str
    weight: int
    drain_ms: int
    ended_at_ms: int | None = None


@dataclass
class GrantAudit:
    """Feed it every event in order; it raises AssertionError at the first that does not add up."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    foreign: dict[str, int | None] = field(default_factory=dict)
    holdings: dict[str, Holding] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    recovering: bool = False
    grants: int = 0

    def feed(self, event: Event) -> None:
        """One more event."""
        data = event.data
        match event.type:
            case "FleetDeclared":
                self.nodes = {node["node_id"]: node for node in data["fleet"]["nodes"]}
            case "PoolSuspect":
                self.recovering = True
            case "PoolReopened":
                self.recovering = False
            case "LeaseAcquired":
                self._granted(event)
            case "LeaseReleased":
                self._ended(data["lease_id"], "released")
                self.holdings.pop(data["lease_id"])
            case "LeaseExpired":
                self._ended(data["lease_id"], "expired")
                self.holdings[data["lease_id"]].ended_at_ms = event.at_ms
            case "LeaseReaped":
                self._ended(data["lease_id"], "reaped")
                if data["drained"]:
                    self.holdings[data["lease_id"]].ended_at_ms = event.at_ms
                else:
                    self.holdings.pop(data["lease_id"])

    def _ended(self, lease_id: str, how: str) -> None:
        assert lease_id in self.holdings, f"{lease_id} ended and was never granted"
        assert lease_id not in self.ended, f"{lease_id} ended twice"
        self.ended[lease_id] = how

    def _granted(self, event: Event) -> None:
        lease, evidence = event.data["lease"], event.data["evidence"]
        assert not self.recovering, "granted while the pool recovers"
        assert lease["lease_id"] not in self.holdings
        assert lease["lease_id"] not in self.ended
        node = self.nodes[lease["node_id"]]
        assert node["base_url"] == lease["base_url"]
        assert evidence["budget_bytes"] == node["vram_budget_bytes"]
        assert evidence["slots"] == node["max_parallel_requests"]
        assert 0 <= evidence["stamp_age_ms"] == event.at_ms - evidence["observed_at_ms"]
        before = self._on(lease, event.at_ms, evidence["observed_at_ms"])
        models: dict[str, int] = {}
        for holding in before:
            models[holding.key] = max(models.get(holding.key, 0), holding.weight)
        assert evidence["slots_used_before"] == len(before)
        assert evidence["leased_before_bytes"] == sum(models.values())
        models[lease["key"]] = max(models.get(lease["key"], 0), lease["weight_bytes"])
        assert evidence["leased_after_bytes"] == sum(models.values())
        assert evidence["slots_used_after"] == len(before) + 1 <= evidence["slots"]
        charged = evidence["foreign_bytes"] + evidence["leased_after_bytes"]
        assert charged <= evidence["budget_bytes"], "a grant over what was declared"
        self.holdings[lease["lease_id"]] = Holding(
            lease["node_id"],
            lease["base_url"],
            lease["key"],
            lease["weight_bytes"],
            lease["drain_ms"],
        )
        self.grants += 1

    def _on(self, lease: dict[str, Any], at_ms: int, observed_at_ms: int) -> list[Holding]:
        """What takes room on the lease's node: living leases, and slots that still drain."""
        kept = []
        for lease_id, holding in list(self.holdings.items()):
            if (holding.node_id, holding.base_url) != (lease["node_id"], lease["base_url"]):
                continue
            ended = holding.ended_at_ms
            if ended is not None and observed_at_ms > ended and at_ms >= ended + holding.drain_ms:
                del self.holdings[lease_id]
                continue
            kept.append(holding)
        return kept
