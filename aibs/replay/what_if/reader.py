"""Reads a range of the log into what a simulation takes. Pure."""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aibs.fleet import Fleet
from aibs.lanes import lane_name
from aibs.projections.marks import Marks
from aibs.replay.what_if.recorded import Arrival, NodeChange, Recorded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aibs.eventstore.events import Event
    from aibs.projections.coordination import Coordination


class Reader:
    """Feed it every event of the range; `done` gives what it read."""

    def __init__(self, fleet: Fleet | None, begins_ms: int) -> None:
        self._found = Recorded(begins_ms=begins_ms)
        if fleet is not None:
            self._found.fleets.append((begins_ms, fleet))
        self._waiting: dict[str, Arrival] = {}
        self._held: dict[str, tuple[Arrival, int]] = {}
        self._loaded: dict[str, int] = {}
        self._loads: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._marks = Marks()
        self._marked = self._marks.handlers()
        self._last_seen: dict[str, NodeChange] = {}
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        self._started = fleet is not None

    def begin_with(self, state: Coordination) -> None:
        """What is there when the range begins: nodes as last seen, cordons, leases, slots that
        drain, waiters.
        """
        at_ms = self._found.begins_ms
        self._marks.restore(state.marks.document())
        for name in self._marks.weights:
            node_id, _, key = name.partition("|")
            self._known[node_id].add(key)
        for node_id, node in sorted(state.residency.live_part().items()):
            self._seen(
                NodeChange(
                    at_ms,
                    node_id,
                    "seen",
                    node["foreign"] or 0,
                    _own(node["models"]),
                    healthy=node["healthy"] is not False,
                )
            )
        for node_id, mark in sorted(self._marks.cordons.items()):
            self._found.changes.append(
                NodeChange(at_ms, node_id, "cordon", until_ms=mark["until_ms"] or 0)
            )
        for lease_id, lease in sorted(state.leases.live_part()["leases"].items()):
            arrival = self._arrive(at_ms, _lane_of(lease), lease, None)
            arrival.key, arrival.counted = lease["key"], False
            arrival.drain_ms, arrival.node_id = lease["drain_ms"], lease["node_id"]
            self._held[lease_id] = (arrival, at_ms)
        for slot in state.drains.draining(at_ms):
            resting = {"environment": "", "class": "high"}
            arrival = self._arrive(at_ms, lane_name(slot.key, None), resting, None)
            arrival.counted, arrival.work_ms = False, max(0, slot.until_ms - at_ms)
        for key, waiter in sorted(state.queue.live_part()["waiters"].items()):
            wait_ms = max(0, waiter["wait_deadline_ms"] - at_ms)
            arrival = self._arrive(at_ms, waiter["lane"], waiter, wait_ms)
            arrival.counted = False
            self._waiting[key] = arrival

    def feed(self, event: Event) -> None:
        """One event. Raises KeyError, TypeError, AttributeError where its data is damaged."""
        found, data = self._found, event.data
        if not self._started:
            found.begins_ms, self._started = event.at_ms, True
        found.ends_ms = max(found.ends_ms, event.at_ms)
        mark = self._marked.get(event.type)
        if mark is not None:
            mark(event, data)
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
        found.changes.sort(key=lambda one: one.at_ms)
        found.fleets.sort(key=lambda one: one[0])
        found.tally.requests = sum(one.counted for one in found.arrivals)
        return found

    def _arrive(self, at_ms: int, lane: str, asked: dict[str, Any], wait_ms: int | None) -> Arrival:
        arrival = Arrival(
            number=len(self._found.arrivals),
            at_ms=at_ms,
            lane=sys.intern(lane),
            priority=asked.get("class", "normal"),
            environment=sys.intern(asked["environment"]),
            wait_ms=wait_ms,
        )
        self._found.arrivals.append(arrival)
        return arrival

    def _on_FleetDeclared(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._found.fleets.append((event.at_ms, Fleet.from_document(data["fleet"])))
        # A node that moved is another node: its next look is news.
        self._last_seen.clear()

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
            arrival.end = "gave_up"
            self._found.tally.gave_up += arrival.counted
            return
        arrival.end = "denied"
        if arrival.counted:
            self._found.tally.denied["wait_timeout" if how == "timed_out" else how] += 1

    def _on_LeaseAcquired(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        lease, evidence = data["lease"], data["evidence"]
        arrival = self._waiting.pop(lease["request_key"], None)
        if arrival is None:
            arrival = self._arrive(event.at_ms, _lane_of(lease), lease, None)
        arrival.key, arrival.drain_ms = sys.intern(lease["key"]), lease["drain_ms"]
        arrival.end, arrival.node_id = "granted", sys.intern(lease["node_id"])
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
        self._arrive(event.at_ms, data["lane"], data, 0).end = "denied"
        self._found.tally.denied[data["reason"]] += 1

    def _on_ModelLoaded(self, _: Event, data: dict[str, Any]) -> None:  # noqa: N802
        held = self._held.get(data["lease_id"])
        if held is not None and data["outcome"] == "ok":
            self._loaded[data["lease_id"]] = data["ms"]
            self._loads[data["node_id"], held[0].key].append(data["ms"])
            self._loads["", held[0].key].append(data["ms"])

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
        own = _own(data["models"])
        used = frozenset(data.get("busy") or ())
        busy = tuple((key, charge) for key, charge in own if key in used)
        # Those are told among the foreign bytes, and are no foreign bytes to their own requests.
        foreign = max(0, (data["foreign_bytes"] or 0) - sum(charge for _, charge in busy))
        self._known[data["node_id"]].update(key for key, _ in own)
        self._seen(
            NodeChange(
                event.at_ms,
                data["node_id"],
                "seen",
                foreign,
                own,
                busy,
                healthy=data["healthy"] is not False,
            )
        )

    def _on_WeightsForgotten(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        last = self._last_seen.get(data["node_id"])
        if last is not None:
            self._seen(replace(last, at_ms=event.at_ms))

    def _seen(self, seen: NodeChange) -> None:
        """A look at a node, kept where it tells more than the one before: a long log has many."""
        node_id, weights = seen.node_id, self._marks.weights
        names = ((key, f"{node_id}|{key}") for key in sorted(self._known[node_id]))
        known = tuple((key, weights[name]["weight"]) for key, name in names if name in weights)
        seen = replace(seen, weights=known)
        last = self._last_seen.get(node_id)
        # Which models are there is asked of the first look alone: see the simulation.
        if last is not None and replace(seen, at_ms=last.at_ms, own=last.own) == last:
            return
        self._last_seen[node_id] = seen
        self._found.changes.append(seen)

    def _on_NodeHealthChanged(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._found.changes.append(
            NodeChange(event.at_ms, data["node_id"], "health", healthy=data["healthy"])
        )
        self._last_seen.pop(data["node_id"], None)

    def _on_NodeCordoned(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._found.changes.append(
            NodeChange(event.at_ms, data["node_id"], "cordon", until_ms=data["until_ms"] or 0)
        )

    def _on_NodeUncordoned(self, event: Event, data: dict[str, Any]) -> None:  # noqa: N802
        self._found.changes.append(NodeChange(event.at_ms, data["node_id"], "uncordon"))


def _own(models: Sequence[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    """By comparison key; several keys on one digest are one charge."""
    found: dict[str, int] = {}
    for model in models:
        if model["ownership"] != "own":
            continue
        keys = model.get("roster_keys") or ([model["key"]] if model["key"] else [])
        for place, key in enumerate(keys):
            found[key] = found.get(key, 0) + (0 if place else model["charge_bytes"] or 0)
    return tuple(found.items())


def _lane_of(lease: dict[str, Any]) -> str:
    """What a lease's request asked for, as far as the lease tells."""
    role = lease["role"]
    return lane_name(None, role) if role else lane_name(lease["key"], None)
