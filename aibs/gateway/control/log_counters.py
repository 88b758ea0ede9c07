"""What the log's events count up to: the counters and histograms that no state keeps.

Counted from where this process began to read (the newest snapshot, or the log's beginning), each
event once, so that they never go back while the process lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.eventstore.events import EVENT_TYPES
from aibs.gateway.control.tally import LOAD_S, OTHER, REQUEST_S, Count, Spread
from aibs.projections.engine import Fold
from aibs.projections.leaks import HOLDER_RESTARTED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aibs.eventstore.events import Event
    from aibs.gateway.control.names import ModelNames
    from aibs.projections.engine import Handler


class Totals:
    """All of them. They outlive the folds that feed them."""

    def __init__(self) -> None:
        self.events = Count(("type",))
        self.elections = Count(("reason",))
        self.rejected_writes = Count(("script",))
        self.leases = Count(("end",))
        self.leaked = Count(("state",))
        self.held = Spread(("model",), REQUEST_S)
        self.loads = Count(("node", "model", "outcome"))
        self.load_durations = Spread(("node", "model", "outcome"), LOAD_S)

    def forget_all_but(self, nodes: set[str]) -> None:
        """What is known of a node goes with the node."""
        self.loads.forget(0, nodes)
        self.load_durations.forget(0, nodes)


class LogCounters(Fold):
    """Tells `totals` of each event while it is `on`. No snapshot has this fold: it begins with the
    living leases of another one.
    """

    name = "log_counters"

    def __init__(self, totals: Totals, names: ModelNames) -> None:
        super().__init__()
        self.on = False
        self._totals = totals
        self._names = names
        self._models: dict[str, str] = {}

    def begin_with(self, leases: Iterable[tuple[str, str]]) -> None:
        """The living leases, and the model of each."""
        self._models = {lease_id: self._names.of(model) for lease_id, model in leases}

    def count_unknown(self, by: int) -> None:
        """Events whose type this release does not know."""
        if by > 0 and self.on:
            self._totals.events.add((OTHER,), by)

    def handlers(self) -> dict[str, Handler]:
        """Every type that there is."""
        told: dict[str, Handler] = {
            "OwnerElected": self._elected,
            "FencedWriteRejected": self._rejected,
            "LeaseAcquired": self._acquired,
            "LeaseReleased": self._released,
            "LeaseExpired": self._expired,
            "LeaseReaped": self._reaped,
            "ModelLoaded": self._loaded,
        }
        return {type_: self._counting(type_, told.get(type_)) for type_ in EVENT_TYPES}

    def state(self) -> dict[str, Any]:
        """It is kept nowhere."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """It is kept nowhere."""
        raise NotImplementedError

    def _counting(self, type_: str, then: Handler | None) -> Handler:
        labels, events = (type_,), self._totals.events

        def count(event: Event, data: dict[str, Any]) -> None:
            if self.on:
                events.add(labels)
            if then is not None:
                then(event, data)

        return count

    def _elected(self, _event: Event, data: dict[str, Any]) -> None:
        if self.on:
            self._totals.elections.add((data["because"],))

    def _rejected(self, _event: Event, data: dict[str, Any]) -> None:
        if self.on:
            self._totals.rejected_writes.add((data["script"],), 1 + data["repeats"])

    def _acquired(self, _event: Event, data: dict[str, Any]) -> None:
        lease = data["lease"]
        self._models[lease["lease_id"]] = self._names.of(lease["model"])

    def _end(self, data: dict[str, Any], end: str, leaked: str | None = None) -> None:
        model = self._models.pop(data["lease_id"], OTHER)
        if not self.on:
            return
        self._totals.leases.add((end,))
        self._totals.held.observe((model,), data["held_ms"] / 1000)
        if leaked is not None:
            self._totals.leaked.add((leaked,))

    def _released(self, _event: Event, data: dict[str, Any]) -> None:
        self._end(data, "released")

    def _expired(self, _event: Event, data: dict[str, Any]) -> None:
        self._end(data, "expired", "expired_unreleased")

    def _reaped(self, _event: Event, data: dict[str, Any]) -> None:
        # What an operator reaped by hand is no leak: the operator knows of it.
        leaked = "reaped" if data["why"] == HOLDER_RESTARTED else None
        self._end(data, "reaped", leaked)

    def _loaded(self, _event: Event, data: dict[str, Any]) -> None:
        if self.on:
            labels = (data["node_id"], self._names.of(data["model"]), data["outcome"])
            self._totals.loads.add(labels)
            self._totals.load_durations.observe(labels, data["ms"] / 1000)
