"""Which events concern a node, a lease, a request, a model or a holder. Pure.

Many events name only a lease or a request key; what belongs to those is remembered from the event
that began them, so the filter must hear of every event, also of those before the range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.errors import ConfigurationError
from aibs.eventstore.events import EVENT_TYPES
from aibs.model_names import InvalidModelName, comparison_key
from aibs.replay.entries import event_of
from aibs.settings.nearest import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aibs.projections.coordination import Coordination
    from aibs.replay.entries import Item

KINDS = ("node", "lease", "request", "model", "holder")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for; empty: everything. One of each kind must match, and all kinds."""

    nodes: frozenset[str] = frozenset()
    leases: frozenset[str] = frozenset()
    requests: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    holders: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return not (self.types or self.by_concern)

    @property
    def by_concern(self) -> bool:
        """Whether an event's concern matters, beside its type."""
        return bool(self.nodes or self.leases or self.requests or self.models or self.holders)


def wanted(
    *,
    nodes: Iterable[str] = (),
    leases: Iterable[str] = (),
    requests: Iterable[str] = (),
    models: Iterable[str] = (),
    holders: Iterable[str] = (),
    types: Iterable[str] = (),
) -> Wanted:
    """The options as they were typed. Raises ConfigurationError for a type that there is not."""
    return Wanted(
        frozenset(nodes),
        frozenset(leases),
        frozenset(requests),
        frozenset(_model(name) for name in models),
        frozenset(holders),
        frozenset(_type(name) for name in types),
    )


def _type(name: str) -> str:
    known = {one.lower(): one for one in EVENT_TYPES}
    found = known.get(name.strip().lower())
    if found is None:
        near = nearest(name.strip().lower(), known)
        hint = f"Did you mean {known[near]}?" if near else "docs/events.md lists the types."
        raise ConfigurationError(f"--type is {name[:60]!r}, which is no type of event.", mend=hint)
    return found


def _model(name: str) -> str:
    try:
        return comparison_key(name)
    except InvalidModelName as error:
        raise ConfigurationError(f"--model is {name[:60]!r}, no model's name: {error}.") from error


@dataclass(frozen=True, slots=True)
class Concern:
    """What an event, a lease or a request is about."""

    nodes: frozenset[str] = frozenset()
    leases: frozenset[str] = frozenset()
    requests: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    holders: frozenset[str] = frozenset()

    def __or__(self, other: Concern) -> Concern:
        return Concern(
            self.nodes | other.nodes,
            self.leases | other.leases,
            self.requests | other.requests,
            self.models | other.models,
            self.holders | other.holders,
        )


NOTHING = Concern()


class Filter:
    """Feed it every event in order: whether it is wanted."""

    def __init__(self, asked: Wanted, start: Coordination | None = None) -> None:
        self._asked = asked
        self._leases: dict[str, Concern] = {}
        self._requests: dict[str, Concern] = {}
        if start is not None:
            for document in start.leases.live_part()["leases"].values():
                self._begin_lease(document)
            for document in start.queue.live_part()["waiters"].values():
                self._begin_wait(document)

    def takes(self, item: Item) -> bool:
        """Whether the item is wanted. A damaged entry is, unless a filter is set."""
        asked = self._asked
        event = event_of(item)
        if event is None:
            return asked.everything
        if not asked.by_concern:
            return not asked.types or event.type in asked.types
        try:
            found = self._concern(event.type, event.data)
        except (KeyError, TypeError, ValueError, AttributeError):
            found = NOTHING  # another version's fields, or a damaged event
        return (
            (not asked.types or event.type in asked.types)
            and (not asked.nodes or bool(asked.nodes & found.nodes))
            and (not asked.leases or bool(asked.leases & found.leases))
            and (not asked.requests or bool(asked.requests & found.requests))
            and (not asked.models or bool(asked.models & found.models))
            and (not asked.holders or bool(asked.holders & found.holders))
        )

    def _begin_lease(self, lease: dict[str, Any]) -> Concern:
        concern = Concern(
            frozenset((lease["node_id"],)),
            frozenset((lease["lease_id"],)),
            frozenset((lease["request_id"], lease["request_key"])),
            frozenset((lease["key"],)),
            frozenset((lease["holder"],)),
        )
        self._leases[lease["lease_id"]] = self._requests[lease["request_key"]] = concern
        return concern

    def _begin_wait(self, waiter: dict[str, Any]) -> Concern:
        concern = Concern(
            requests=frozenset((waiter["request_id"], waiter["request_key"])),
            models=frozenset(lane["key"] for lane in waiter["lanes"]),
            holders=frozenset((waiter["holder"],)),
        )
        self._requests[waiter["request_key"]] = concern
        return concern

    def _concern(self, type_: str, data: dict[str, Any]) -> Concern:
        match type_:
            case "LeaseAcquired":
                return self._begin_lease(data["lease"])
            case "LeaseQueued":
                return self._begin_wait(data["waiter"]) | Concern(
                    nodes=frozenset(reason["node_id"] for reason in data["reasons"])
                )
            case "LeaseDenied":
                return Concern(
                    nodes=frozenset(reason["node_id"] for reason in data["reasons"]),
                    requests=frozenset(
                        (
                            data["request_id"],
                            f"{data['environment']}|{data['requester']}|{data['request_id']}",
                        )
                    ),
                    models=_lane_models(data["lane"]),
                    holders=frozenset((data["requester"],)),
                )
            case "FleetDeclared":
                return Concern(
                    nodes=frozenset(node["node_id"] for node in data["fleet"]["nodes"]),
                    models=frozenset(
                        comparison_key(worker["model"]) for worker in data["fleet"]["workers"]
                    ),
                )
        found = Concern(
            nodes=frozenset(_texts(data, "node_id")),
            leases=frozenset((*_texts(data, "lease_id"), *data.get("leases", ()))),
            requests=frozenset(_texts(data, "request_key")),
            models=frozenset(_models(data)),
            holders=frozenset(_texts(data, "holder")),
        )
        for lease_id in found.leases:
            found |= self._leases.get(lease_id, NOTHING)
        for request_key in tuple(found.requests):
            found |= self._requests.get(request_key, NOTHING)
        return self._forget(type_, data, found)

    def _forget(self, type_: str, data: dict[str, Any], found: Concern) -> Concern:
        """What ended is remembered no longer, so that a long log does not fill the memory; only a
        release that comes after the end is then known by its lease alone.
        """
        if type_ in ("LeaseReleased", "LeaseExpired", "LeaseReaped"):
            self._leases.pop(data["lease_id"], None)
            self._requests.pop(data["request_key"], None)
        elif type_ == "WaitEnded" and data["how"] != "granted":
            self._requests.pop(data["request_key"], None)
        return found


def _texts(data: dict[str, Any], name: str) -> Iterator[str]:
    value = data.get(name)
    if isinstance(value, str):
        yield value


def _models(data: dict[str, Any]) -> Iterator[str]:
    yield from _lane_models(data.get("lane", ""))
    yield from data.get("keys", ())
    if isinstance(data.get("model"), str):
        yield comparison_key(data["model"])
    for model in data.get("models", ()):
        yield from model.get("roster_keys") or ([model["key"]] if model["key"] else [])


def _lane_models(lane: str) -> frozenset[str]:
    """`m|key`, `r|role`, `mr|key|role`."""
    kind, _, rest = lane.partition("|")
    return frozenset((rest.partition("|")[0],)) if kind in ("m", "mr") else frozenset()
