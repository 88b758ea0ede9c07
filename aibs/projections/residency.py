"""What is resident on each node and whether it is healthy, folded from observations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aibs.eventstore.events import ObservedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler


@dataclass(frozen=True, slots=True)
class NodeResidency:
    """What the log last said of a node. Sizes in bytes; `foreign` None: not accounted for.

    `resident` has the models as they are stored.
    """

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
    resident: Sequence[dict[str, Any]] = ()

    @property
    def models(self) -> tuple[ObservedModel, ...]:
        """The resident models, read."""
        return tuple(ObservedModel.model_validate(model) for model in self.resident)

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
            "models": list(self.resident),
        }


@dataclass(slots=True)
class Residency:
    """Every node that was heard of under its present URL."""

    nodes: dict[str, NodeResidency] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)

    def live_part(self) -> dict[str, dict[str, Any]]:
        """What the live nodes must equal."""
        return {node_id: node.live_part() for node_id, node in self.nodes.items()}

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "ResidencyObserved": self._observed,
            "NodeHealthChanged": self._health_changed,
            "FleetDeclared": self._declared,
        }

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"nodes": self.live_part(), "urls": dict(self.urls)}

    def restore(self, document: dict[str, Any]) -> None:
        """Become what was written as this."""
        self.nodes = {
            node_id: NodeResidency(
                resident=node["models"],
                **{name: value for name, value in node.items() if name != "models"},
            )
            for node_id, node in document["nodes"].items()
        }
        self.urls = document["urls"]

    def _observed(self, event: Event, data: dict[str, Any]) -> None:
        self.nodes[data["node_id"]] = NodeResidency(
            data["base_url"],
            data["healthy"],
            data["reason"],
            event.id,
            data["fingerprint"],
            event.fence or 0,
            data["observed_at_ms"],
            data["own_bytes"],
            data["foreign_bytes"],
            data["unaccounted"],
            data["models"],
        )

    def _health_changed(self, event: Event, data: dict[str, Any]) -> None:
        known = self.nodes.get(data["node_id"]) or NodeResidency(
            base_url=data["base_url"], healthy=False, reason="", event_id=event.id
        )
        self.nodes[data["node_id"]] = replace(
            known, healthy=data["healthy"], reason=data["reason"], event_id=event.id
        )

    def _declared(self, _event: Event, data: dict[str, Any]) -> None:
        urls = {node["node_id"]: node["base_url"] for node in data["fleet"].get("nodes", ())}
        # A node that is gone, or that moved, is another node: nothing known of it stays.
        self.nodes = {
            node_id: node
            for node_id, node in self.nodes.items()
            if urls.get(node_id) == self.urls.get(node_id)
        }
        self.urls = urls
