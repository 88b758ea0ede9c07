"""Which pool this is, in which condition, and which fleet it serves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler


@dataclass(slots=True)
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

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "PoolCreated": self._created,
            "PoolSuspect": self._suspect,
            "PoolReopened": self._reopened,
            # What a clean stop spares is read from the event that follows it.
            "PoolClosed": lambda _event, _data: None,
        }

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def restore(self, document: dict[str, Any]) -> None:
        """Become what was written as this."""
        for name in self.__slots__:
            setattr(self, name, document[name])

    def _created(self, _event: Event, data: dict[str, Any]) -> None:
        self.pool_id, self.run_id, self.epoch = data["pool_id"], data["run_id"], data["epoch"]
        self.state = "open"

    def _suspect(self, _event: Event, data: dict[str, Any]) -> None:
        self.state, self.run_id, self.epoch = "suspect", data["run_id"], data["epoch"]
        self.suspicions += 1

    def _reopened(self, _event: Event, data: dict[str, Any]) -> None:
        self.state, self.run_id, self.epoch = "open", data["run_id"], data["epoch"]


@dataclass(slots=True)
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

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {"FleetDeclared": self._declared}

    def restore(self, document: dict[str, Any]) -> None:
        """Become what `live_part` wrote."""
        self.revision, self.fingerprint = document["revision"], document["fingerprint"]
        self.document, self.event_id = document["document"], document["event_id"]

    def _declared(self, event: Event, data: dict[str, Any]) -> None:
        self.revision, self.fingerprint = data["revision"], data["fingerprint"]
        self.document, self.event_id = data["fleet"], event.id
