"""Which pool this is, in which condition, and which fleet it serves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from aibs.eventstore.events import (
    EventData,
    FleetDeclared,
    PoolClosed,
    PoolCreated,
    PoolReopened,
    PoolSuspect,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """The pool as the log tells it. `state` is open or suspect."""

    pool_id: str | None = None
    run_id: str | None = None
    state: str | None = None
    epoch: int = 0
    suspicions: int = 0

    def live_part(self) -> dict[str, Any]:
        """What the live pool must equal."""
        return {
            "pool_id": self.pool_id,
            "run_id": self.run_id,
            "state": self.state,
            "epoch": self.epoch,
        }


@dataclass(frozen=True, slots=True)
class Declared:
    """The fleet as declared; None before the first declaration."""

    revision: int | None = None
    fingerprint: str | None = None
    document: dict[str, Any] | None = None
    event_id: str | None = None

    def live_part(self) -> dict[str, Any]:
        """What the live fleet must equal."""
        return {
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "document": self.document,
            "event_id": self.event_id,
        }


def evolve_identity(state: Identity, data: EventData) -> Identity:
    """The pool after one event; events of other concern leave it as it is."""
    match data:
        case PoolCreated():
            return replace(
                state, pool_id=data.pool_id, run_id=data.run_id, state="open", epoch=data.epoch
            )
        case PoolSuspect():
            return replace(
                state,
                state="suspect",
                run_id=data.run_id,
                epoch=data.epoch,
                suspicions=state.suspicions + 1,
            )
        case PoolReopened():
            return replace(state, state="open", run_id=data.run_id, epoch=data.epoch)
        case PoolClosed():
            return state
    return state


def evolve_declared(state: Declared, data: EventData, event_id: str) -> Declared:
    """The fleet after one event; events of other concern leave it as it is."""
    if isinstance(data, FleetDeclared):
        return Declared(data.revision, data.fingerprint, data.fleet, event_id)
    return state
