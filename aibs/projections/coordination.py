"""The fold of everything that the scripts keep live: it must equal the live state at any event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.projections.drains import Drains, unknown_drains
from aibs.projections.engine import Fold
from aibs.projections.identity import Declared, Identity
from aibs.projections.leases import Leases
from aibs.projections.marks import Marks
from aibs.projections.ownership import Ownership
from aibs.projections.queue import Queue
from aibs.projections.residency import Residency

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler


class Coordination(Fold):
    """All parts, and how far the log was folded.

    `began` says from where: the ID of the snapshot that it was read on from, None where that is
    the log's beginning. It is no part of the state.
    """

    name = "coordination"
    version = 2
    """2 keeps the slots that drain, and when a term ended."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = Identity()
        self.ownership = Ownership()
        self.declared = Declared()
        self.residency = Residency()
        self.leases = Leases()
        self.queue = Queue()
        self.marks = Marks()
        self.drains = Drains(self.leases, self.identity)
        self.began: str | None = None

    def handlers(self) -> dict[str, Handler]:
        """By event type; where several parts fold one, all of them in turn."""
        told: dict[str, list[Handler]] = {}
        for part in (
            self.identity,
            self.ownership,
            self.declared,
            self.residency,
            # An end tells which lease: what that held is asked before the lease is gone.
            self.drains,
            self.leases,
            self.queue,
            self.marks,
        ):
            for type_, handler in part.handlers().items():
                told.setdefault(type_, []).append(handler)
        return {
            type_: handlers[0] if len(handlers) == 1 else _in_turn(handlers)
            for type_, handlers in told.items()
        }

    def state(self) -> dict[str, Any]:
        """Part by part."""
        return {
            "identity": self.identity.document(),
            "ownership": self.ownership.document(),
            "declared": self.declared.live_part(),
            "residency": self.residency.document(),
            "leases": self.leases.document(),
            "queue": self.queue.document(),
            "marks": self.marks.document(),
            "drains": self.drains.document(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Part by part."""
        self.identity.restore(state["identity"])
        self.ownership.restore(state["ownership"])
        self.declared.restore(state["declared"])
        self.residency.restore(state["residency"])
        self.leases.restore(state["leases"])
        self.queue.restore(state["queue"])
        self.marks.restore(state["marks"])
        self.drains.restore(state["drains"])

    @classmethod
    def lifted(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Version 1 knew no drains: those of its moment stay unknown, and are told to be."""
        if document["version"] != 1:
            return super().lifted(document)
        state = document["state"]
        drains = unknown_drains(state, document["position"]["at_ms"])
        ownership = {**state["ownership"], "ended_at_ms": None}
        return {**document, "state": {**state, "ownership": ownership, "drains": drains}}


def _in_turn(handlers: list[Handler]) -> Handler:
    if len(handlers) == 2:
        # The most frequent of a long log's events.
        first, second = handlers

        def both_of_them(event: Event, data: dict[str, Any]) -> None:
            first(event, data)
            second(event, data)

        return both_of_them

    def all_of_them(event: Event, data: dict[str, Any]) -> None:
        for handler in handlers:
            handler(event, data)

    return all_of_them


def evolve(state: Coordination, event: Event) -> Coordination:
    """The state after one event; the one given stays. To read a log, `apply` or `fold` it."""
    after = state.copy()
    after.apply(event)
    return after


def fold(events: Iterable[Event], start: Coordination | None = None) -> Coordination:
    """The state after all events, from the beginning or from a state folded before, which stays."""
    state = Coordination() if start is None else start.copy()
    state.engine.apply_all(events)
    return state
