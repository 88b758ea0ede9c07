"""The recorded requests, one after the other, before the placement model. Pure: its time is the
log's.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Literal

from aibs.placement.model.decide import PlacementModel
from aibs.placement.model.observe import Poll, SeenModel, observe
from aibs.placement.values import Denied, Granted, Limits, Request
from aibs.replay.what_if.changes import changed, switched_off
from aibs.replay.what_if.recorded import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aibs.fleet import Fleet
    from aibs.placement.values import Lease
    from aibs.replay.header import Timing
    from aibs.replay.what_if.changes import Change
    from aibs.replay.what_if.recorded import Arrival, NodeChange, Recorded

FOR_GOOD_MS = 10**12
"""Longer than any log: in the simulation nobody falls silent."""

TICK_MS = 1_000
"""How often waiters look again while nothing happens: what time alone mends."""

SWAP_MIN_MS = 30_000
QUEUE_MAX = 10_000

Kind = Literal["fleet", "node", "end", "loaded", "give_up", "deadline", "arrive", "tick"]
ORDER: dict[Kind, int] = {
    "fleet": 0,
    "node": 1,
    "end": 2,
    "loaded": 3,
    "give_up": 4,
    "deadline": 5,
    "arrive": 6,
    "tick": 7,
}
"""What comes first of what happens in the same millisecond: room before requests."""


class Simulation:
    """One run over what was recorded, with changes or with none."""

    def __init__(self, recorded: Recorded, changes: Sequence[Change], timing: Timing) -> None:
        self._recorded = recorded
        self._changes = tuple(changes)
        self._off = switched_off(changes)
        self._model = PlacementModel(
            Limits(
                staleness_ms=FOR_GOOD_MS,
                grace_ms=FOR_GOOD_MS,
                drain_ms=0,
                swap_min_ms=SWAP_MIN_MS,
                swap_max_ms=max(1, timing.swap_max_ms),
                queue_max=QUEUE_MAX,
                heartbeat_ms=timing.heartbeat_ms,
            )
        )
        self.tally = Tally()
        self._fleet: Fleet | None = None
        self._seen: dict[str, int] = {}
        self._healthy: dict[str, bool] = {}
        self._resident: dict[str, dict[str, int]] = {}
        self._waiting: dict[str, Arrival] = {}
        self._queue: list[tuple[int, int, int, Kind, object]] = []
        self._pushed = 0
        self._granted = 0
        self._ticking = False

    def run(self) -> Tally:
        """From the first event to the last lease's end."""
        for at_ms, fleet in self._recorded.fleets:
            self._at(at_ms, "fleet", fleet)
        for change in self._recorded.changes:
            self._at(change.at_ms, "node", change)
        for arrival in self._recorded.arrivals:
            self._at(arrival.at_ms, "arrive", arrival)
        while self._queue:
            now, _, _, kind, what = heapq.heappop(self._queue)
            self._happen(kind, what, now)
            self._observe(now)
            self._serve(now)
            self._tick_later(now)
        return self.tally

    def _at(self, at_ms: int, kind: Kind, what: object) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (at_ms, ORDER[kind], self._pushed, kind, what))

    # --- what happens

    def _happen(self, kind: Kind, what: object, now: int) -> None:
        handlers: dict[Kind, Callable[[Any, int], None]] = {
            "fleet": self._declare,
            "node": self._node,
            "end": self._end,
            "loaded": self._loaded,
            "give_up": self._give_up,
            "deadline": self._deadline,
            "arrive": self._arrive,
            "tick": self._tick,
        }
        handlers[kind](what, now)

    def _declare(self, fleet: Fleet, now: int) -> None:
        self._fleet = changed(fleet, self._changes)
        self._model.declare(self._fleet)
        for node_id in self._off:
            self._model.cordon(node_id, until_ms=0, now=now)

    def _node(self, change: NodeChange, now: int) -> None:
        node_id = change.node_id
        if change.kind == "cordon" and node_id not in self._off:
            self._model.cordon(node_id, until_ms=change.until_ms or 0, now=now)
        elif change.kind == "uncordon" and node_id not in self._off:
            self._model.uncordon(node_id, now)
        elif change.kind == "health":
            self._healthy[node_id] = change.healthy
        elif change.kind == "seen":
            # Of our own models the first look alone counts: later ones are the other fleet's doing.
            if node_id not in self._seen:
                self._resident[node_id] = dict(change.own)
            self._seen[node_id] = change.foreign
            self._healthy[node_id] = change.healthy

    def _end(self, lease: Lease, now: int) -> None:
        self._model.release(lease, "completed", call_id=lease.lease_id, now=now)

    def _loaded(self, lease: Lease, now: int) -> None:  # noqa: ARG002 - as the others
        self._resident.setdefault(lease.node_id, {})[lease.key] = lease.weight_bytes

    def _give_up(self, key: str, now: int) -> None:
        arrival = self._waiting.pop(key, None)
        if arrival is not None:
            self._model.cancel(key, "", now)
            self.tally.gave_up += arrival.counted

    def _deadline(self, key: str, now: int) -> None:
        arrival = self._waiting.get(key)
        if arrival is not None:
            self._ask(key, arrival, now)

    def _arrive(self, arrival: Arrival, now: int) -> None:
        key = self._request(arrival).request_key
        self.tally.requests += arrival.counted
        self._ask(key, arrival, now)
        if key in self._waiting:
            self._at(now + (arrival.wait_ms or 0), "deadline", key)
            if arrival.gave_up_ms is not None:
                self._at(now + arrival.gave_up_ms, "give_up", key)

    def _tick(self, _: object, now: int) -> None:  # noqa: ARG002 - as the others
        self._ticking = False

    # --- what the model makes of it

    def _observe(self, now: int) -> None:
        for node_id, foreign in self._seen.items():
            if node_id not in self._model.nodes:
                continue
            models = tuple(
                SeenModel(key, charge)
                for key, charge in sorted(self._resident.get(node_id, {}).items())
            )
            healthy = self._healthy.get(node_id, True)
            observe(
                self._model,
                Poll(
                    node_id,
                    now,
                    good=healthy,
                    models=models,
                    foreign=foreign,
                    healthy=healthy,
                    logged=False,
                ),
                now,
            )

    def _serve(self, now: int) -> None:
        """Let waiters look until none gets anything."""
        going = True
        while going:
            going = False
            for waiter in self._model.in_order(now):
                arrival = self._waiting.get(waiter.request_key)
                if arrival is None or not self._model.worth_a_look(waiter, now):
                    continue
                self._ask(waiter.request_key, arrival, now)
                if waiter.request_key not in self._waiting:
                    going = True
                    break

    def _ask(self, key: str, arrival: Arrival, now: int) -> None:
        self._granted += 1
        answer = self._model.acquire(
            self._request(arrival), lease_id=f"{self._granted:016x}", now=now
        )
        if isinstance(answer, Granted):
            self._waiting.pop(key, None)
            self._place(answer.lease, arrival, now)
        elif isinstance(answer, Denied):
            self._waiting.pop(key, None)
            if arrival.counted:
                self.tally.denied[answer.reason] += 1
        else:
            self._waiting[key] = arrival

    def _place(self, lease: Lease, arrival: Arrival, now: int) -> None:
        load_ms = 0
        tally = self.tally
        if not lease.warm:
            load_ms = self._recorded.load_ms.get(lease.key, 0)
            tally.loads += arrival.counted
            tally.unloads += len(lease.unload_first) if arrival.counted else 0
            for key in lease.unload_first:
                self._resident.get(lease.node_id, {}).pop(key, None)
            self._at(now + load_ms, "loaded", lease)
        if arrival.counted:
            tally.granted += 1
            tally.waits_ms.append(now - arrival.at_ms)
        node = self._model.nodes[lease.node_id]
        tally.granted_on(lease.node_id, sum(node.leased().values()), node.used)
        self._at(now + load_ms + (arrival.work_ms or 0), "end", lease)

    def _tick_later(self, now: int) -> None:
        if self._waiting and not self._ticking:
            self._ticking = True
            self._at(now + TICK_MS, "tick", None)

    def _request(self, arrival: Arrival) -> Request:
        return Request(
            request_id=f"{arrival.number}",
            environment=arrival.environment,
            holder="what-if",
            requester="what-if",
            lane=arrival.lane,
            role=None,
            model=None,
            priority=arrival.priority,
            ttl_ms=FOR_GOOD_MS,
            wait_ms=arrival.wait_ms or 0,
            request_hash="",
        )
