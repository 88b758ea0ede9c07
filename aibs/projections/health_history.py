"""How each node fared: what was seen of it when, the newest `SAMPLES_MAX` of each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.projections.engine import Fold

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler

SAMPLES_MAX = 512


@dataclass(frozen=True, slots=True)
class HealthSample:
    """One look at a node. Sizes in bytes; None where this event tells nothing of them."""

    at_ms: int
    healthy: bool
    reason: str
    own_bytes: int | None = None
    foreign_bytes: int | None = None
    latency_ms: int | None = None
    resident_models: int | None = None

    def as_json(self) -> list[Any]:
        """As a list of its fields, in their order."""
        return [getattr(self, name) for name in self.__slots__]


class HealthHistory(Fold):
    """Samples by node, oldest first. A node that left the fleet takes its samples along."""

    name = "health_history"
    version = 1

    def __init__(self) -> None:
        super().__init__()
        self._samples: dict[str, deque[HealthSample]] = {}

    def nodes(self) -> tuple[str, ...]:
        """Every node that has samples."""
        return tuple(sorted(self._samples))

    def of(self, node_id: str, since_ms: int = 0) -> tuple[HealthSample, ...]:
        """A node's samples from that moment on."""
        return tuple(one for one in self._samples.get(node_id, ()) if one.at_ms >= since_ms)

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "ResidencyObserved": self._observed,
            "NodeHealthChanged": self._health_changed,
            "FleetDeclared": self._declared,
        }

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "samples": {
                node_id: [one.as_json() for one in samples]
                for node_id, samples in self._samples.items()
            }
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become what was written as this."""
        for node_id, samples in state["samples"].items():
            self._samples[node_id] = deque((HealthSample(*one) for one in samples), SAMPLES_MAX)

    def _add(self, node_id: str, sample: HealthSample) -> None:
        samples = self._samples.get(node_id)
        if samples is None:
            samples = self._samples[node_id] = deque(maxlen=SAMPLES_MAX)
        samples.append(sample)

    def _observed(self, event: Event, data: dict[str, Any]) -> None:
        sample = HealthSample(
            event.at_ms,
            data["healthy"],
            data["reason"],
            data["own_bytes"],
            data["foreign_bytes"],
            data["latency_ms"],
            len(data["models"]),
        )
        self._add(data["node_id"], sample)

    def _health_changed(self, event: Event, data: dict[str, Any]) -> None:
        self._add(data["node_id"], HealthSample(event.at_ms, data["healthy"], data["reason"]))

    def _declared(self, _event: Event, data: dict[str, Any]) -> None:
        nodes = {node["node_id"] for node in data["fleet"].get("nodes", ())}
        self._samples = {
            node_id: samples for node_id, samples in self._samples.items() if node_id in nodes
        }
