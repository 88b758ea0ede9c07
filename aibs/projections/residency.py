"""What is resident on each node and whether it is healthy, folded from observations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aibs.eventstore.events import (
    EventData,
    FleetDeclared,
    NodeHealthChanged,
    ObservedModel,
    ResidencyObserved,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class NodeResidency:
    """What the log last said of a node. Sizes in bytes; `foreign` None: not accounted for."""

    base_url: str
    healthy: bool
    reason: str
    event_id: str
    fingerprint: str = ""
    fence: int = 0
    observed_at_ms: int = 0
    own: int | None = None
    foreign: int | None = None
    unaccounted: bool = False
    models: tuple[ObservedModel, ...] = ()

    def live_part(self) -> dict[str, Any]:
        """What the live node must equal."""
        return {
            "base_url": self.base_url,
            "healthy": self.healthy,
            "reason": self.reason,
            "event_id": self.event_id,
            "fingerprint": self.fingerprint,
            "fence": self.fence,
            "observed_at_ms": self.observed_at_ms,
            "own": self.own,
            "foreign": self.foreign,
            "unaccounted": self.unaccounted,
            "models": [model.model_dump() for model in self.models],
        }


@dataclass(frozen=True, slots=True)
class Residency:
    """Every node that was heard of under its present URL."""

    nodes: Mapping[str, NodeResidency] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict)

    def live_part(self) -> dict[str, dict[str, Any]]:
        """What the live nodes must equal."""
        return {node_id: node.live_part() for node_id, node in self.nodes.items()}


def evolve(state: Residency, data: EventData, event_id: str, fence: int | None) -> Residency:
    """The state after one event; events of other concern leave it as it is."""
    match data:
        case ResidencyObserved():
            node = NodeResidency(
                base_url=data.base_url,
                healthy=data.healthy,
                reason=data.reason,
                event_id=event_id,
                fingerprint=data.fingerprint,
                fence=fence or 0,
                observed_at_ms=data.observed_at_ms,
                own=data.own_bytes,
                foreign=data.foreign_bytes,
                unaccounted=data.unaccounted,
                models=tuple(data.models),
            )
            return replace(state, nodes={**state.nodes, data.node_id: node})
        case NodeHealthChanged():
            known = state.nodes.get(data.node_id) or NodeResidency(
                base_url=data.base_url, healthy=False, reason="", event_id=event_id
            )
            node = replace(known, healthy=data.healthy, reason=data.reason, event_id=event_id)
            return replace(state, nodes={**state.nodes, data.node_id: node})
        case FleetDeclared():
            urls = {node["node_id"]: node["base_url"] for node in data.fleet.get("nodes", ())}
            # A node that is gone, or that moved, is another node: nothing known of it stays.
            kept = {
                node_id: node
                for node_id, node in state.nodes.items()
                if urls.get(node_id) == state.urls.get(node_id)
            }
            return Residency(nodes=kept, urls=urls)
    return state
