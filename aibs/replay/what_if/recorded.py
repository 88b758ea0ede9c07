"""What the log tells of requests and nodes, as a simulation takes it. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from aibs.fleet import Fleet
from aibs.lanes import lane_name

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.placement.values import Class
    from aibs.projections.coordination import Coordination

WAIT_MS_WITHOUT_ANY = 300_000
"""How long a request would wait that was granted at once, where no request tells its own limit."""


@dataclass(slots=True)
class Arrival:
    """One request: what it asked for, and how long it would wait and work. `gave_up_ms` is when it
    was cancelled while it waited, counted from its arrival; `work_ms` is without its load. One that
    is not `counted` was there when the range began: it takes room, and is in no figure.
    """

    number: int
    at_ms: int
    lane: str
    priority: Class
    environment: str
    wait_ms: int | None = None
    gave_up_ms: int | None = None
    work_ms: int | None = None
    key: str = ""
    drain_ms: int = 0
    counted: bool = True


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What became of a node: others' bytes and health, or an operator's word."""

    at_ms: int
    node_id: str
    kind: Literal["seen", "health", "cordon", "uncordon"]
    foreign: int = 0
    own: tuple[tuple[str, int], ...] = ()
    healthy: bool = True
    until_ms: int | None = None


@dataclass(slots=True)
class Tally:
    """What happened, or would have: the figures that are compared."""

    requests: int = 0
    granted: int = 0
    denied: Counter[str] = field(default_factory=Counter)
    gave_up: int = 0
    waits_ms: list[int] = field(default_factory=list)
    loads: int = 0
    unloads: int = 0
    peak_leased: dict[str, int] = field(default_factory=dict)
    peak_slots: dict[str, int] = field(default_factory=dict)

    def granted_on(self, node_id: str, leased: int, used: int) -> None:
        """One more lease there."""
        self.peak_leased[node_id] = max(self.peak_leased.get(node_id, 0), leased)
        self.peak_slots[node_id] = max(self.peak_slots.get(node_id, 0), used)


@dataclass(slots=True)
class Recorded:
    """A range of the log: requests by their arrival, changes of nodes and fleets, its figures."""

    arrivals: list[Arrival] = field(default_factory=list)
    changes: list[NodeChange] = field(default_factory=list)
    fleets: list[tuple[int, Fleet]] = field(default_factory=list)
    load_ms: dict[str, int] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    begins_ms: int = 0
    ends_ms: int = 0

    def fill_in(self) -> None:
        """What requests did not tell: the longest limit, the median work of the lane or of all."""
        longest = self.longest_wait_ms()
        by_lane: defaultdict[str, list[int]] = defaultdict(list)
        for one in self.arrivals:
            if one.work_ms is not None:
                by_lane[one.lane].append(one.work_ms)
        every = [ms for known in by_lane.values() for ms in known]
        typical = round(statistics.median(every or [0]))
        medians = {lane: round(statistics.median(known)) for lane, known in by_lane.items()}
        for one in self.arrivals:
            if one.wait_ms is None:
                one.wait_ms = longest
            if one.work_ms is None:
                one.work_ms = medians.get(one.lane, typical)

    def longest_wait_ms(self) -> int:
        """The longest limit that a request told."""
        told = [a.wait_ms for a in self.arrivals if a.wait_ms]
        return max(told, default=WAIT_MS_WITHOUT_ANY)


class Reader:
    """Feed it every event of the range; `done` gives what it read."""

    def __init__(self, fleet: Fleet | None, begins_ms: int) -> None:
        self._found = Recorded(begins_ms=begins_ms)
        if fleet is not None:
            self._found.fleets.append((begins_ms, fleet))
        self._waiting: dict[str, Arrival] = {}
        self._held: dict[str, tuple[Arrival, int]] = {}
        self._loaded: dict[str, int] = {}
        self._loads: defaultdict[str, list[int]] = defaultdict(list)
        self._started = fleet is not None

    def begin_with(self, state: Coordination) -> None:
        """What is there when the range begins: nodes as last seen, leases, and waiters."""
        at_ms = self._found.begins_ms
        for node_id, node in sorted(state.residency.live_part().items()):
            own = tuple(
                (model["key"], model["charge_bytes"] or 0)
                for model in node["models"]
                if model["ownership"] == "own" and model["key"]
            )
            healthy, foreign = node["healthy"] is not False, node["foreign"] or 0
            self._found.changes.append(NodeChange(at_ms, node_id, "seen", foreign, own, healthy))
        for lease_id, lease in sorted(state.leases.live_part()["leases"].items()):
            arrival = self._arrive(at_ms, _lane_of(lease), lease, None)
            arrival.key, arrival.counted = lease["key"], False
            arrival.drain_ms = lease["drain_ms"]
            self._held[lease_id] = (arrival, at_ms)
        for key, waiter in sorted(state.queue.live_part()["waiters"].items()):
            wait_ms = max(0, waiter["wait_deadline_ms"] - at_ms)
            arrival = self._arrive(at_ms, waiter["lane"], waiter, wait_ms)
            arrival.counted = False
            self._waiting[key] = arrival

    def feed(self, event: Event) -> None:
        """One event. What cannot be used is left out."""
        found, data = self._found, event.data
        if not self._started:
            found.begins_ms, self._started = event.at_ms, True
        found.ends_ms = max(found.ends_ms, event.at_ms)
        handler = getattr(self, f"_on_{event.type}", None)
        if handler is not None:
            handler(event, data)

    def done(self) -> Recorded:
        """Everything, with what is missing filled in from what is known."""
        found = self._found
        for arrival, acquired_ms in self._held.values():
            arrival.work_ms = max(0, found.ends_ms - acquired_ms)
        found.load_ms = {key: round(statistics.median(all_)) for key, all_ in self._loads.items()}
        found.fill_in()
        found.arrivals.sort(key=lambda one: (one.at_ms, one.number))
        found.tally.requests = sum(one.counted for one in found.arrivals)
        return found

    def _arrive(self, at_ms: int, lane: str, asked: dict[str, Any], wait_ms: int | None) -> Arrival:
        arrival = Arrival(
            number=len(self._found.arrivals),
            at_ms=at_ms,
            lane=lane,
            priority=asked.get("class", "normal"),
            environment=asked["environment"],
            wait_ms=wait_ms,
        )
        self._found.arrivals.append(arrival)
        return arrival

    def _on_FleetDeclared(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._found.fleets.append((event.at_ms, Fleet.from_document(data["fleet"])))

    def _on_LeaseQueued(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        waiter = data["waiter"]
        wait_ms = max(0, waiter["wait_deadline_ms"] - event.at_ms)
        self._waiting[waiter["request_key"]] = self._arrive(
            event.at_ms, waiter["lane"], waiter, wait_ms
        )

    def _on_WaitEnded(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        how = data["how"]
        if how == "granted":
            return
        arrival = self._waiting.pop(data["request_key"], None)
        if arrival is None:
            return
        if how in ("cancelled", "forgotten"):
            arrival.gave_up_ms = max(0, event.at_ms - arrival.at_ms)
            self._found.tally.gave_up += arrival.counted
        elif arrival.counted:
            self._found.tally.denied["wait_timeout" if how == "timed_out" else how] += 1

    def _on_LeaseAcquired(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        lease, evidence = data["lease"], data["evidence"]
        arrival = self._waiting.pop(lease["request_key"], None)
        if arrival is None:
            arrival = self._arrive(event.at_ms, _lane_of(lease), lease, None)
        arrival.key, arrival.drain_ms = lease["key"], lease["drain_ms"]
        self._held[lease["lease_id"]] = (arrival, event.at_ms)
        if not arrival.counted:
            return
        tally = self._found.tally
        tally.granted += 1
        tally.waits_ms.append(lease["queue_ms"])
        tally.loads += not lease["warm"]
        tally.unloads += 0 if lease["warm"] else len(lease["unload_first"])
        tally.granted_on(
            lease["node_id"], evidence["leased_after_bytes"], evidence["slots_used_after"]
        )

    def _on_LeaseDenied(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._arrive(event.at_ms, data["lane"], data, 0)
        self._found.tally.denied[data["reason"]] += 1

    def _on_ModelLoaded(self, _: Event, data: dict[str, Any]) -> None:  # noqa: N802
        held = self._held.get(data["lease_id"])
        if held is not None and data["outcome"] == "ok":
            self._loaded[data["lease_id"]] = data["ms"]
            self._loads[held[0].key].append(data["ms"])

    def _ended(self, event: Event, data: dict[str, Any], *, drained: bool = False) -> None:
        """A slot that drained was as good as held meanwhile."""
        held = self._held.pop(data["lease_id"], None)
        if held is not None:
            load_ms = self._loaded.pop(data["lease_id"], 0)
            drain_ms = held[0].drain_ms if drained else 0
            held[0].work_ms = max(0, event.at_ms - held[1] - load_ms) + drain_ms

    def _on_LeaseReleased(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._ended(event, data)

    def _on_LeaseExpired(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._ended(event, data, drained=True)

    def _on_LeaseReaped(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._ended(event, data, drained=data["drained"])

    def _on_ResidencyObserved(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        own = tuple(
            (model["key"], model["charge_bytes"] or 0)
            for model in data["models"]
            if model["ownership"] == "own" and model["key"]
        )
        busy = sum(charge for key, charge in own if key in (data.get("busy") or ()))
        foreign = max(0, (data["foreign_bytes"] or 0) - busy)
        self._found.changes.append(
            NodeChange(event.at_ms, data["node_id"], "seen", foreign, own, data["healthy"])
        )

    def _on_NodeHealthChanged(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._found.changes.append(
            NodeChange(event.at_ms, data["node_id"], "health", healthy=data["healthy"])
        )

    def _on_NodeCordoned(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._found.changes.append(
            NodeChange(event.at_ms, data["node_id"], "cordon", until_ms=data["until_ms"] or 0)
        )

    def _on_NodeUncordoned(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._found.changes.append(NodeChange(event.at_ms, data["node_id"], "uncordon"))


def _lane_of(lease: dict[str, Any]) -> str:
    """What a lease's request asked for, as far as the lease tells."""
    role = lease["role"]
    return lane_name(None, role) if role else lane_name(lease["key"], None)
