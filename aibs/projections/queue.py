"""Who waits, since when at the head of their class, and which nodes are reserved for whom."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aibs.eventstore.events import (
    ClockStepped,
    EventData,
    FleetDeclared,
    LeaseQueued,
    NodeReserved,
    ReservationEnded,
    WaitEnded,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

RANKS = {"high": 0, "normal": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that waits. `document` is the stored one; `head_ms` is when it first stood first
    in the list of its class; `reason` is the nearest one of when it was queued.
    """

    document: Mapping[str, Any]
    reason: str
    head_ms: int | None = None

    @property
    def priority(self) -> str:
        """Its class."""
        return str(self.document["class"])

    @property
    def number(self) -> int:
        """Its place in the order of arrival."""
        return int(self.document["number"])

    @property
    def arrival_ms(self) -> int:
        """When it came."""
        return int(self.document["arrival_ms"])

    def rank(self, at_ms: int, swap_max_ms: int) -> int:
        """0 high, 1 normal, 2 low, one better for each `swap_max_ms` that it has waited."""
        risen = max(0, at_ms - self.arrival_ms) // max(1, swap_max_ms)
        return max(0, RANKS[self.priority] - risen)


@dataclass(frozen=True, slots=True)
class Queue:
    """The waiters by request key, and the reservations by node."""

    waiters: Mapping[str, Waiter] = field(default_factory=dict)
    reservations: Mapping[str, str] = field(default_factory=dict)

    def in_order(self, at_ms: int, swap_max_ms: int) -> tuple[Waiter, ...]:
        """The waiters as they stand at that moment."""
        return tuple(
            sorted(
                self.waiters.values(),
                key=lambda one: (one.rank(at_ms, swap_max_ms), one.arrival_ms, one.number),
            )
        )

    def reserves(self, request_key: str) -> str | None:
        """The node that is kept for a waiter."""
        return next((node for node, key in self.reservations.items() if key == request_key), None)

    def live_part(self) -> dict[str, Any]:
        """What the live state must equal, by the names of its keys."""
        return {
            "waiters": {key: dict(waiter.document) for key, waiter in self.waiters.items()},
            "heads": {
                key: waiter.head_ms
                for key, waiter in self.waiters.items()
                if waiter.head_ms is not None
            },
            "reservations": dict(self.reservations),
        }


def evolve(state: Queue, data: EventData, at_ms: int) -> Queue:
    """The state after one event; events of other concern leave it as it is."""
    match data:
        case LeaseQueued():
            waiter = Waiter(data.waiter.model_dump(), data.reason)
            waiters = {**state.waiters, data.waiter.request_key: waiter}
            return replace(state, waiters=_with_head(waiters, waiter.priority, at_ms))
        case WaitEnded():
            ended = state.waiters.get(data.request_key)
            if ended is None:
                return state
            waiters = {key: one for key, one in state.waiters.items() if key != data.request_key}
            return replace(state, waiters=_with_head(waiters, ended.priority, at_ms))
        case NodeReserved():
            kept = {**state.reservations, data.node_id: data.request_key}
            return replace(state, reservations=kept)
        case ReservationEnded():
            return replace(state, reservations=_without(state.reservations, data.node_id))
        case FleetDeclared():
            nodes = {node["node_id"] for node in data.fleet.get("nodes", ())}
            kept = {node: key for node, key in state.reservations.items() if node in nodes}
            return replace(state, reservations=kept)
        case ClockStepped() if data.delta_ms > 0:
            return replace(
                state,
                waiters={
                    key: _stepped(waiter, data.delta_ms) for key, waiter in state.waiters.items()
                },
            )
    return state


def _with_head(waiters: dict[str, Waiter], priority: str, at_ms: int) -> dict[str, Waiter]:
    """The first of a class's list is noted once, when it comes to stand there."""
    of_class = [one for one in waiters.values() if one.priority == priority]
    if of_class:
        head = min(of_class, key=lambda one: (one.arrival_ms, one.number))
        if head.head_ms is None:
            waiters[str(head.document["request_key"])] = replace(head, head_ms=at_ms)
    return waiters


def _without(kept: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in kept.items() if key != name}


def _stepped(waiter: Waiter, delta_ms: int) -> Waiter:
    document = dict(waiter.document)
    document["arrival_ms"] += delta_ms
    document["wait_deadline_ms"] += delta_ms
    head = waiter.head_ms
    return replace(waiter, document=document, head_ms=None if head is None else head + delta_ms)
