"""Who waits, since when at the head of their class, and which nodes are reserved for whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler

RANKS = {"high": 0, "normal": 1, "low": 2}


@dataclass(slots=True)
class Waiter:
    """A request that waits. `document` is the stored one; `head_ms` is when it first stood first
    in the list of its class; `reason` is the nearest one of when it was queued.
    """

    document: dict[str, Any]
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


@dataclass(slots=True)
class Queue:
    """The waiters by request key, and the reservations by node."""

    waiters: dict[str, Waiter] = field(default_factory=dict)
    reservations: dict[str, str] = field(default_factory=dict)
    _lists: dict[str, list[tuple[int, int, str]]] = field(
        default_factory=lambda: {name: [] for name in RANKS}, repr=False, compare=False
    )
    """Each class's list as a heap; who left it is taken out when they come to its top."""

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

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "LeaseQueued": self._queued,
            "WaitEnded": self._wait_ended,
            "NodeReserved": self._reserved,
            "ReservationEnded": self._reservation_ended,
            "FleetDeclared": self._declared,
            "ClockStepped": self._clock_stepped,
        }

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "waiters": {
                key: {"document": one.document, "reason": one.reason, "head_ms": one.head_ms}
                for key, one in self.waiters.items()
            },
            "reservations": dict(self.reservations),
        }

    def restore(self, document: dict[str, Any]) -> None:
        """Become what was written as this."""
        self.waiters = {key: Waiter(**one) for key, one in document["waiters"].items()}
        self.reservations = document["reservations"]
        self._rebuild()

    def _rebuild(self) -> None:
        self._lists = {name: [] for name in RANKS}
        for key, waiter in self.waiters.items():
            self._lists[waiter.priority].append((waiter.arrival_ms, waiter.number, key))
        for listed in self._lists.values():
            heapify(listed)

    def _queued(self, event: Event, data: dict[str, Any]) -> None:
        stored = data["waiter"]
        key = stored["request_key"]
        self.waiters[key] = Waiter(stored, data["reason"])
        heappush(self._lists[stored["class"]], (stored["arrival_ms"], stored["number"], key))
        self._note_head(stored["class"], event.at_ms)

    def _wait_ended(self, event: Event, data: dict[str, Any]) -> None:
        ended = self.waiters.pop(data["request_key"], None)
        if ended is not None:
            self._note_head(ended.priority, event.at_ms)

    def _note_head(self, priority: str, at_ms: int) -> None:
        """The first of a class's list is noted once, when it comes to stand there."""
        listed = self._lists[priority]
        while listed:
            arrival_ms, number, key = listed[0]
            waiter = self.waiters.get(key)
            if (
                waiter is not None
                and waiter.document["number"] == number
                and waiter.document["arrival_ms"] == arrival_ms
                and waiter.document["class"] == priority
            ):
                if waiter.head_ms is None:
                    waiter.head_ms = at_ms
                return
            heappop(listed)

    def _reserved(self, _event: Event, data: dict[str, Any]) -> None:
        self.reservations[data["node_id"]] = data["request_key"]

    def _reservation_ended(self, _event: Event, data: dict[str, Any]) -> None:
        self.reservations.pop(data["node_id"], None)

    def _declared(self, _event: Event, data: dict[str, Any]) -> None:
        nodes = {node["node_id"] for node in data["fleet"].get("nodes", ())}
        self.reservations = {node: key for node, key in self.reservations.items() if node in nodes}

    def _clock_stepped(self, _event: Event, data: dict[str, Any]) -> None:
        delta_ms = data["delta_ms"]
        if delta_ms <= 0:
            return
        for waiter in self.waiters.values():
            moved = dict(waiter.document)
            moved["arrival_ms"] += delta_ms
            moved["wait_deadline_ms"] += delta_ms
            waiter.document = moved
            if waiter.head_ms is not None:
                waiter.head_ms += delta_ms
        self._rebuild()
