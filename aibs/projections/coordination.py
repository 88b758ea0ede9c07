"""The fold of everything that the scripts keep live: it must equal the live state at any event."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aibs.eventstore.events import Event, Unreadable, decode
from aibs.projections import identity, leases, marks, ownership, queue, residency
from aibs.projections.identity import Declared, Identity
from aibs.projections.leases import Leases
from aibs.projections.marks import Marks
from aibs.projections.ownership import Ownership
from aibs.projections.queue import Queue
from aibs.projections.residency import Residency

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Coordination:
    """All parts, and how far the log was folded.

    `holes` counts gaps in `seq`; `unread` counts events that this release could not read,
    `last_unread` is a clause about the newest of them.
    """

    identity: Identity = field(default_factory=Identity)
    ownership: Ownership = field(default_factory=Ownership)
    declared: Declared = field(default_factory=Declared)
    residency: Residency = field(default_factory=Residency)
    leases: Leases = field(default_factory=Leases)
    queue: Queue = field(default_factory=Queue)
    marks: Marks = field(default_factory=Marks)
    last_id: str = "0-0"
    seq: int = 0
    holes: int = 0
    unread: int = 0
    last_unread: str = ""


def evolve(state: Coordination, event: Event) -> Coordination:
    """The state after one event."""
    holes = state.holes + (state.seq != 0 and event.seq != state.seq + 1)
    data = decode(event)
    if isinstance(data, Unreadable):
        return replace(
            state,
            last_id=event.id,
            seq=event.seq,
            holes=holes,
            unread=state.unread + 1,
            last_unread=f"{event.id}: {data.detail}",
        )
    return replace(
        state,
        identity=identity.evolve_identity(state.identity, data),
        ownership=ownership.evolve(state.ownership, data, event.id, event.at_ms),
        declared=identity.evolve_declared(state.declared, data, event.id),
        residency=residency.evolve(state.residency, data, event.id, event.fence),
        leases=leases.evolve(state.leases, data, event.at_ms),
        queue=queue.evolve(state.queue, data, event.at_ms),
        marks=marks.evolve(state.marks, data, event.at_ms),
        last_id=event.id,
        seq=event.seq,
        holes=holes,
    )


def fold(events: Iterable[Event], start: Coordination | None = None) -> Coordination:
    """The state after all events, from the beginning or from a state folded before."""
    state = start or Coordination()
    for event in events:
        state = evolve(state, event)
    return state
