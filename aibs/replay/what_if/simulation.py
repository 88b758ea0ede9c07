"""The recorded requests, one after the other, before the placement model. Pure: its time is the
log's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.placement.model.decide import PlacementModel
from aibs.placement.model.observe import Poll, SeenModel, observe
from aibs.placement.values import Denied, Granted, Limits, Request
from aibs.replay.what_if.agenda import Agenda
from aibs.replay.what_if.changes import changed, reweighed, switched_off
from aibs.replay.what_if.recorded import Agreement, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aibs.fleet import Fleet
    from aibs.placement.values import Lease
    from aibs.replay.header import Timing
    from aibs.replay.what_if.agenda import Kind
    from aibs.replay.what_if.changes import Change
    from aibs.replay.what_if.recorded import Arrival, NodeChange, Recorded

FOR_GOOD_MS = 10**12
"""Longer than any log: in the simulation nobody falls silent."""

FOR_GOOD_AT_MS = 10**15
"""Later than any log: what a model was seen to weigh stays known."""

TICK_MS = 1_000
"""How often waiters look again while nothing happens: what time alone mends."""

SWAP_MIN_MS = 30_000
QUEUE_MAX = 10_000


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
        self.agreement = Agreement()
        self._urls: dict[str, str] = {}
        self._supposed: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._healthy: dict[str, bool] = {}
        self._resident: dict[str, dict[str, int]] = {}
        self._busy: dict[str, dict[str, int]] = {}
        self._waiting: dict[str, Arrival] = {}
        self._touched: set[str] = set()
        self._agenda = Agenda(recorded)
        self._granted = 0
        self._ticking = False
        self._handlers: dict[Kind, Callable[[Any, int], None]] = {
            "fleet": self._declare,
            "node": self._node,
            "end": self._end,
            "loaded": self._loaded,
            "give_up": self._give_up,
            "deadline": self._deadline,
            "arrive": self._arrive,
            "tick": self._tick,
        }

    def run(self) -> Tally:
        """From the first event to the last lease's end."""
        then = 0
        while (happening := self._agenda.next()) is not None:
            now, _, _, kind, what = happening
            if now > then:
                # Polls in between saw what was left: what comes now meets what they told.
                self._observe(now)
            then = now
            self._handlers[kind](what, now)
            self._observe(now)
            self._serve(now)
            self._tick_later(now)
            self._forget()
        return self.tally

    # --- what happens

    def _declare(self, fleet: Fleet, now: int) -> None:
        urls = {node.node_id: node.base_url for node in fleet.nodes}
        for node_id in [name for name, url in self._urls.items() if urls.get(name) != url]:
            # A node that is gone, or that moved, is another node.
            for known in (self._seen, self._healthy, self._resident, self._busy):
                known.pop(node_id, None)
        self._urls = urls
        self._supposed = reweighed(fleet, self._changes)
        self._model.declare(changed(fleet, self._changes))
        self._touched.update(urls)
        for node_id in self._off:
            self._model.cordon(node_id, until_ms=0, now=now)

    def _node(self, change: NodeChange, now: int) -> None:
        node_id = change.node_id
        self._touched.add(node_id)
        if change.kind == "cordon" and node_id not in self._off:
            self._model.cordon(node_id, until_ms=change.until_ms or 0, now=now)
        elif change.kind == "uncordon" and node_id not in self._off:
            self._model.uncordon(node_id, now)
        elif change.kind == "health":
            self._healthy[node_id] = change.healthy
        elif change.kind == "seen":
            # Of our own models the first look alone counts: later ones are the other fleet's doing.
            if node_id not in self._seen:
                self._resident[node_id] = {
                    key: self._supposed.get(key, charge) for key, charge in change.own
                }
            self._seen[node_id] = change.foreign
            self._busy[node_id] = dict(change.busy)
            self._healthy[node_id] = change.healthy
            self._weigh(change)

    def _weigh(self, change: NodeChange) -> None:
        """A model weighs what it was seen to weigh, but for one whose weight is supposed."""
        node = self._model.nodes.get(change.node_id)
        if node is not None:
            node.seen = {
                key: (weight, FOR_GOOD_AT_MS)
                for key, weight in change.weights
                if key not in self._supposed
            }

    def _end(self, lease: Lease, now: int) -> None:
        self._model.release(lease, "completed", call_id=lease.lease_id, now=now)
        self._touched.add(lease.node_id)

    def _loaded(self, lease: Lease, now: int) -> None:  # noqa: ARG002 - as the others
        if self._urls.get(lease.node_id) == lease.base_url:
            self._resident.setdefault(lease.node_id, {})[lease.key] = lease.weight_bytes
            self._touched.add(lease.node_id)

    def _give_up(self, key: str, now: int) -> None:
        arrival = self._waiting.pop(key, None)
        if arrival is not None:
            self._model.cancel(key, "", now)
            self.tally.gave_up += arrival.counted
            self.agreement.compare(arrival, "gave_up")

    def _deadline(self, key: str, now: int) -> None:
        arrival = self._waiting.get(key)
        if arrival is not None:
            self._ask(key, arrival, now)

    def _arrive(self, arrival: Arrival, now: int) -> None:
        key = self._request(arrival).request_key
        self.tally.requests += arrival.counted
        self._ask(key, arrival, now)
        if key in self._waiting:
            self._agenda.put(now + (arrival.wait_ms or 0), "deadline", key)
            if arrival.gave_up_ms is not None:
                self._agenda.put(now + arrival.gave_up_ms, "give_up", key)

    def _tick(self, _: object, now: int) -> None:  # noqa: ARG002 - as the others
        self._ticking = False

    # --- what the model makes of it

    def _observe(self, now: int) -> None:
        """Polls of the nodes where something happened: of others they would tell nothing new."""
        touched, self._touched = sorted(self._touched), set()
        for node_id in touched:
            foreign = self._seen.get(node_id)
            if foreign is None or node_id not in self._model.nodes:
                continue
            busy = self._busy.get(node_id, {})
            there = {**busy, **self._resident.get(node_id, {})}
            models = tuple(SeenModel(key, charge) for key, charge in sorted(there.items()))
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
            node = self._model.nodes[node_id]
            # Who uses our models beside us the log tells: keep-alives are not simulated.
            node.busy = {key for key in busy if key in node.own}
            if node.going or node.ended:
                # A model that goes, or was left, is only told by a poll that begins later.
                self._touched.add(node_id)

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
            self.agreement.compare(arrival, "denied")
        else:
            self._waiting[key] = arrival

    def _place(self, lease: Lease, arrival: Arrival, now: int) -> None:
        load_ms = 0
        tally = self.tally
        if not lease.warm:
            load_ms = self._recorded.load_ms_on(lease.node_id, lease.key)
            tally.loads += arrival.counted
            tally.unloads += len(lease.unload_first) if arrival.counted else 0
            for key in lease.unload_first:
                self._resident.get(lease.node_id, {}).pop(key, None)
            self._touched.add(lease.node_id)
            self._agenda.put(now + load_ms, "loaded", lease)
        if arrival.counted:
            tally.granted += 1
            tally.waits_ms.append(now - arrival.at_ms)
        self.agreement.compare(arrival, "granted", lease.node_id)
        node = self._model.nodes[lease.node_id]
        tally.granted_on(lease.node_id, sum(node.leased().values()), node.used)
        self._agenda.put(now + load_ms + (arrival.work_ms or 0), "end", lease)

    def _forget(self) -> None:
        """What the model remembers for callers that ask twice; here only waiters ask again."""
        ended = self._model.ended
        for key in [key for key in ended if key not in self._waiting]:
            del ended[key]
        self._model.wakes.clear()

    def _tick_later(self, now: int) -> None:
        if self._waiting and not self._ticking:
            self._ticking = True
            self._agenda.put(now + TICK_MS, "tick", None)

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
