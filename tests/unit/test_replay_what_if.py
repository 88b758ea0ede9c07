"""`aibs replay --what-if`: changes of a fleet, and simulations whose answers are known."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from aibs.errors import ConfigurationError
from aibs.eventstore.events import Event
from aibs.fleet import Fleet, Node, Worker
from aibs.lanes import lane_name
from aibs.replay.header import Timing
from aibs.replay.what_if.changes import changed, read_changes, switched_off
from aibs.replay.what_if.recorded import Arrival, NodeChange, Reader, Recorded
from aibs.replay.what_if.report import document_of, json_schema, rows_of
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
    return Recorded(list(arrivals), seen, [(0, fleet)], {LARGE.key: 2_000}, begins_ms=0)


def run(recorded: Recorded, *changes: str) -> Any:
    return Simulation(recorded, read_changes(changes), TIMING).run()


def test_a_second_large_request_waits_for_the_first_and_its_load() -> None:
    recorded = history(asked(0, 1_000, LARGE, 10_000), asked(1, 2_000, LARGE, 5_000))
    told = run(recorded)
    # The first loads for 2 s and works for 10: the second starts at 13 s, where the model is.
    assert sorted(told.waits_ms) == [0, 11_000]
    assert (told.granted, told.loads) == (2, 1)
    assert told.peak_leased == {"box-c": 60 * GB}


def test_a_larger_budget_takes_at_once_what_waited() -> None:
    recorded = history(asked(0, 1_000, LARGE, 10_000), asked(1, 2_000, LARGE, 5_000))
    told = run(recorded, "box-e.vram_gb=90")
    assert told.waits_ms == [0, 0]
    assert told.loads == 2


def test_a_smaller_weight_fits_where_the_larger_did_not() -> None:
    recorded = history(asked(0, 1_000, LARGE, 10_000), asked(1, 2_000, LARGE, 5_000))
    assert run(recorded, "worker.large.resident_weight_gb=40").waits_ms == [0, 0]


def test_fewer_slots_lengthen_waits_and_more_shorten_them() -> None:
    arrivals = [asked(number, 1_000, SMALL, 10_000) for number in range(4)]
    assert sorted(run(history(*arrivals)).waits_ms) == [0, 0, 0, 10_000]
    assert sorted(run(history(*arrivals), "box-e.slots=1").waits_ms) == [0, 0, 10_000, 10_000]
    assert sorted(run(history(*arrivals), "box-c.slots=2").waits_ms) == [0, 0, 0, 0]


def test_a_node_that_is_off_takes_nothing() -> None:
    recorded = history(asked(0, 1_000, LARGE, 10_000, wait_ms=0))
    told = run(recorded, "box-c=off")
    assert told.granted == 0
    assert sum(told.denied.values()) == 1


def test_a_wait_ends_at_its_limit_and_one_that_was_given_up_ends_then() -> None:
    recorded = history(
        asked(0, 1_000, LARGE, 100_000),
        asked(1, 2_000, LARGE, 1_000, wait_ms=5_000),
        asked(2, 3_000, LARGE, 1_000, gave_up_ms=2_000),
    )
    told = run(recorded)
    assert (told.granted, dict(told.denied), told.gave_up) == (1, {"wait_timeout": 1}, 1)


def test_others_bytes_are_no_room() -> None:
    recorded = history(asked(0, 1_000, LARGE, 1_000, wait_ms=0), foreign=40 * GB)
    assert run(recorded).granted == 0
    assert run(recorded, "box-c.vram_gb=100").granted == 1


def test_no_change_changes_nothing_and_a_run_repeats_itself() -> None:
    recorded = history(
        *(asked(n, 1_000 + n * 500, SMALL if n % 3 else LARGE, 7_000) for n in range(40))
    )
    first, second = run(recorded), run(recorded)
    assert first == second
    assert run(recorded, "box-c.vram_gb=90", "box-e.slots=2") == first


def test_what_was_there_when_the_range_began_takes_room_and_is_in_no_figure() -> None:
    held = asked(0, 1_000, LARGE, 10_000, counted=False)
    told = run(history(held, asked(1, 2_000, LARGE, 1_000)))
    assert (told.requests, told.granted, told.waits_ms) == (1, 1, [11_000])


@pytest.mark.parametrize(
    "text",
    [
        "box-c",
        "box-c=",
        "=5",
        "box-c.vram=5",
        "box-c.vram_gb=much",
        "box-c.vram_gb=-1",
        "box-c.vram_gb=nan",
        "box-c.vram_gb=1e99",
        "box-c.slots=0",
        "box-c.slots=1.5",
        "box-c.slots=٣",
        "box-c=on",
        "worker.large=5",
        "worker..resident_weight_gb=5",
        "worker.large.num_ctx=5",
    ],
)
def test_what_is_no_change_is_refused_in_a_sentence_that_names_it(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_changes([text])
    assert text in str(refused.value)


def test_a_name_that_the_fleet_has_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean box-c"):
        changed(FLEET, read_changes(["bx-c.slots=2"]))
    with pytest.raises(ConfigurationError, match="They are: small, large"):
        changed(FLEET, read_changes(["worker.qqq.resident_weight_gb=1"]))


def test_changes_are_of_the_fleet_alone() -> None:
    changes = read_changes(
        ["box-c.vram_gb=47.2", "box-e.slots=3", "worker.small.resident_weight_gb=12", "box-e=off"]
    )
    fleet = changed(FLEET, changes)
    assert [node.vram_budget_bytes for node in fleet.nodes] == [47_200_000_000, 50 * GB]
    assert [node.max_parallel_requests for node in fleet.nodes] == [1, 3]
    assert [worker.resident_weight_bytes for worker in fleet.workers] == [12 * GB, 60 * GB]
    assert switched_off(changes) == {"box-e"}
    assert FLEET.nodes[0].vram_budget_bytes == 90 * GB


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


def test_the_log_tells_arrivals_work_loads_and_figures() -> None:
    waiter = {
        "request_key": "env|h|r2",
        "environment": "env",
        "class": "low",
        "lane": f"m|{LARGE.key}",
        "wait_deadline_ms": 62_000,
    }
    reader = Reader(None, 0)
    for one in (
        event(1, "FleetDeclared", 500, {"fleet": FLEET.document()}),
        acquired(2, 1_000, 1),
        event(3, "ModelLoaded", 3_000, {"lease_id": "l1", "outcome": "ok", "ms": 1_500}),
        event(4, "LeaseQueued", 2_000, {"waiter": waiter}),
        event(5, "LeaseExpired", 11_000, {"lease_id": "l1"}),
        event(6, "WaitEnded", 14_000, {"request_key": "env|h|r2", "how": "granted"}),
        acquired(7, 14_000, 2, queue_ms=12_000, warm=True),
        event(8, "LeaseReleased", 15_000, {"lease_id": "l2"}),
        event(
            9,
            "LeaseDenied",
            16_000,
            {"environment": "env", "lane": f"m|{LARGE.key}", "reason": "no_slot"},
        ),
    ):
        reader.feed(one)
    told = reader.done()
    assert [(a.at_ms, a.priority, a.wait_ms, a.work_ms) for a in told.arrivals] == [
        # 10 s held, 1.5 s of them loading, and 3 s of draining.
        (1_000, "high", 60_000, 11_500),
        (2_000, "low", 60_000, 1_000),
        (16_000, "normal", 0, 6_250),
    ]
    assert told.load_ms == {LARGE.key: 1_500}
    tally = told.tally
    assert (tally.requests, tally.granted, tally.loads) == (3, 2, 1)
    assert (tally.waits_ms, dict(tally.denied)) == ([0, 12_000], {"no_slot": 1})


def test_the_document_has_a_row_for_each_figure_and_a_schema() -> None:
    recorded = history(asked(0, 1_000, LARGE, 10_000), asked(1, 2_000, LARGE, 5_000))
    document = document_of(
        recorded,
        read_changes(["box-e.vram_gb=90"]),
        run(recorded),
        run(recorded, "box-e.vram_gb=90"),
    )
    rows = {row[0]: row[1:] for row in rows_of(document)}
    assert rows["wait, longest"] == ("-", "11.0 s", "0.0 s")
    assert rows["box-e, most leased"][2] == "60 GB, 2 slots"
    assert json_schema()["$id"] == "aibs.replay.what_if/1"
