"""What is known of nodes beside residency: cordons, trips, weights seen there; and holders."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aibs.eventstore.events import (
    EventData,
    FleetDeclared,
    NodeCordoned,
    NodeRestored,
    NodeTripped,
    NodeUncordoned,
    ResidencyObserved,
    SessionEnded,
    SessionOpened,
    WeightsForgotten,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Marks:
    """By node id; `weights` by `node|key`; `sessions` by holder. Values as they are stored."""

    cordons: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    trips: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    weights: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    sessions: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict)

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


def evolve(state: Marks, data: EventData, at_ms: int) -> Marks:
    """The state after one event; events of other concern leave it as it is."""
    match data:
        case NodeCordoned():
            mark = {
                "why": data.why,
                "by": data.by,
                "since_ms": at_ms,
                "until_ms": data.until_ms,
            }
            return replace(state, cordons={**state.cordons, data.node_id: mark})
        case NodeUncordoned():
            return replace(state, cordons=_without(state.cordons, data.node_id))
        case NodeTripped():
            mark = {
                "why": data.why,
                "by": data.by,
                "since_ms": at_ms,
                "reopen_at_ms": data.reopen_at_ms,
                "backoff_ms": data.backoff_ms,
            }
            return replace(state, trips={**state.trips, data.node_id: mark})
        case NodeRestored():
            return replace(state, trips=_without(state.trips, data.node_id))
        case ResidencyObserved():
            return _weighed(state, data)
        case WeightsForgotten():
            gone = {f"{data.node_id}|{key}" for key in data.keys}
            kept = {field: value for field, value in state.weights.items() if field not in gone}
            return replace(state, weights=kept)
        case SessionOpened():
            session = {**data.model_dump(), "since_ms": at_ms}
            del session["holder"]
            return replace(state, sessions={**state.sessions, data.holder: session})
        case SessionEnded():
            return replace(state, sessions=_without(state.sessions, data.holder))
        case FleetDeclared():
            return _declared(state, data)
    return state


def _without(kept: Mapping[str, dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    return {key: value for key, value in kept.items() if key != name}


def _weighed(state: Marks, data: ResidencyObserved) -> Marks:
    """The most that a model was seen to weigh there while its digest and context stay the same."""
    weights = dict(state.weights)
    for model in data.models:
        weight = model.charge_bytes
        if model.ownership != "own" or not weight or weight <= 0:
            continue
        listed = (model.model_extra or {}).get("roster_keys") or ([model.key] if model.key else [])
        for key in listed:
            name = f"{data.node_id}|{key}"
            held = weights.get(name)
            same = held is not None and (held["digest"], held["context"]) == (
                model.digest,
                model.context_length,
            )
            weights[name] = {
                "weight": max(weight, held["weight"]) if held is not None and same else weight,
                "seen_at_ms": data.observed_at_ms,
                "digest": model.digest,
                "context": model.context_length,
            }
    return replace(state, weights=weights)


def _declared(state: Marks, data: FleetDeclared) -> Marks:
    """A node that is gone, or that moved, is another node: nothing known of it stays."""
    urls = {node["node_id"]: node["base_url"] for node in data.fleet.get("nodes", ())}
    moved = {node_id for node_id, url in state.urls.items() if urls.get(node_id) != url}
    return replace(
        state,
        cordons={key: mark for key, mark in state.cordons.items() if key not in moved},
        trips={key: mark for key, mark in state.trips.items() if key not in moved},
        weights={
            key: mark for key, mark in state.weights.items() if key.partition("|")[0] not in moved
        },
        urls=urls,
    )
