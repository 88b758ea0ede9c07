"""Histories whose simulation is known, and the events that a range of a log is read from."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from aibs.eventstore.events import Event
from aibs.fleet import Fleet, Node, Worker
from aibs.lanes import lane_name
from aibs.replay.header import Timing
from aibs.replay.what_if.changes import read_changes
from aibs.replay.what_if.recorded import Arrival, NodeChange, Recorded, Tally
from aibs.replay.what_if.simulation import Simulation

GB = 10**9
TIMING = Timing(staleness_ms=15_000, heartbeat_ms=10_000, swap_max_ms=60_000)
SMALL = Worker("small", "small:7b", ("answer",), "chat", 10 * GB, Decimal(7))
LARGE = Worker("large", "large:70b", ("deep",), "chat", 60 * GB, Decimal(70))
FLEET = Fleet(
    0,
    (Node("box-c", "http://c:1", 90 * GB, 1), Node("box-e", "http://e:1", 50 * GB, 2)),
    (SMALL, LARGE),
)


def asked(number: int, at_ms: int, worker: Worker, work_ms: int, **more: Any) -> Arrival:
    told: dict[str, Any] = {"wait_ms": 60_000, "work_ms": work_ms, **more}
    lane = lane_name(worker.key, None)
    return Arrival(number, at_ms, lane, "normal", "env", key=worker.key, **told)


def history(*arrivals: Arrival, fleet: Fleet = FLEET, foreign: int = 0) -> Recorded:
    seen = [NodeChange(1, node.node_id, "seen", foreign) for node in fleet.nodes]
    return Recorded(list(arrivals), seen, [(0, fleet)], {("", LARGE.key): 2_000}, begins_ms=0)


def simulated(recorded: Recorded, *changes: str) -> Simulation:
    simulation = Simulation(recorded, read_changes(changes), TIMING)
    simulation.run()
    return simulation


def run(recorded: Recorded, *changes: str) -> Tally:
    return simulated(recorded, *changes).tally


def event(seq: int, kind: str, at_ms: int, data: dict[str, Any]) -> Event:
    return Event(f"{at_ms}-{seq}", seq, at_ms, kind, 1, "a", None, None, data)


def lease(number: int, *, queue_ms: int = 0, warm: bool = False) -> dict[str, Any]:
    return {
        "lease_id": f"l{number}",
        "request_key": f"env|h|r{number}",
        "environment": "env",
        "class": "high",
        "role": None,
        "key": LARGE.key,
        "node_id": "box-c",
        "warm": warm,
        "unload_first": [],
        "queue_ms": queue_ms,
        "drain_ms": 3_000,
    }


def acquired(seq: int, at_ms: int, number: int, **more: Any) -> Event:
    evidence = {"leased_after_bytes": 60 * GB, "slots_used_after": 1}
    return event(
        seq, "LeaseAcquired", at_ms, {"lease": lease(number, **more), "evidence": evidence}
    )
