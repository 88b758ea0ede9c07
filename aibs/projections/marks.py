"""What is known of nodes beside residency: cordons, trips, weights seen there; and holders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler

Marked = dict[str, dict[str, Any]]


@dataclass(slots=True)
class Marks:
    """By node id; `weights` by `node|key`; `sessions` by holder. Values as they are stored, and
    replaced as a whole when they change.
    """

    cordons: Marked = field(default_factory=dict)
    trips: Marked = field(default_factory=dict)
    weights: Marked = field(default_factory=dict)
    sessions: Marked = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)

    def cordoned(self, node_id: str, at_ms: int) -> bool:
        """Whether an operator keeps the node closed at that moment."""
        mark = self.cordons.get(node_id)
        return mark is not None and (mark["until_ms"] is None or at_ms < mark["until_ms"])

    def live_part(self) -> dict[str, Any]:
        """What the live state must equal, by the names of its keys."""
        return {
            "cordons": dict(self.cordons),
            "trips": dict(self.trips),
            "weights": dict(self.weights),
            "sessions": dict(self.sessions),
        }

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "NodeCordoned": self._cordoned,
            "NodeUncordoned": lambda _event, data: _drop(self.cordons, data["node_id"]),
            "NodeTripped": self._tripped,
            "NodeRestored": lambda _event, data: _drop(self.trips, data["node_id"]),
            "ResidencyObserved": self._weighed,
            "WeightsForgotten": self._forgotten,
            "SessionOpened": self._opened,
            "SessionEnded": lambda _event, data: _drop(self.sessions, data["holder"]),
            "FleetDeclared": self._declared,
        }

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.live_part(), "urls": dict(self.urls)}

    def restore(self, document: dict[str, Any]) -> None:
        """Become what was written as this."""
        for name in self.__slots__:
            setattr(self, name, document[name])

    def _cordoned(self, event: Event, data: dict[str, Any]) -> None:
        self.cordons[data["node_id"]] = {
            "why": data["why"],
            "by": data["by"],
            "since_ms": event.at_ms,
            "until_ms": data["until_ms"],
        }

    def _tripped(self, event: Event, data: dict[str, Any]) -> None:
        self.trips[data["node_id"]] = {
            "why": data["why"],
            "by": data["by"],
            "since_ms": event.at_ms,
            "reopen_at_ms": data["reopen_at_ms"],
            "backoff_ms": data["backoff_ms"],
        }

    def _weighed(self, _event: Event, data: dict[str, Any]) -> None:
        """The most that a model was seen to weigh there while its digest and context stay."""
        for model in data["models"]:
            weight = model["charge_bytes"]
            if model["ownership"] != "own" or not weight or weight <= 0:
                continue
            digest, context = model["digest"], model["context_length"]
            for key in model.get("roster_keys") or ([model["key"]] if model["key"] else ()):
                name = f"{data['node_id']}|{key}"
                held = self.weights.get(name)
                same = held is not None and (held["digest"], held["context"]) == (digest, context)
                self.weights[name] = {
                    "weight": max(weight, held["weight"]) if held is not None and same else weight,
                    "seen_at_ms": data["observed_at_ms"],
                    "digest": digest,
                    "context": context,
                }

    def _forgotten(self, _event: Event, data: dict[str, Any]) -> None:
        for key in data["keys"]:
            _drop(self.weights, f"{data['node_id']}|{key}")

    def _opened(self, event: Event, data: dict[str, Any]) -> None:
        session = {**data, "since_ms": event.at_ms}
        del session["holder"]
        self.sessions[data["holder"]] = session

    def _declared(self, _event: Event, data: dict[str, Any]) -> None:
        """A node that is gone, or that moved, is another node: nothing known of it stays."""
        urls = {node["node_id"]: node["base_url"] for node in data["fleet"].get("nodes", ())}
        moved = {node_id for node_id, url in self.urls.items() if urls.get(node_id) != url}
        for node_id in moved:
            _drop(self.cordons, node_id)
            _drop(self.trips, node_id)
        self.weights = {
            name: mark for name, mark in self.weights.items() if name.partition("|")[0] not in moved
        }
        self.urls = urls


def _drop(kept: Marked, name: str) -> None:
    kept.pop(name, None)
