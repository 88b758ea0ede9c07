"""What a simulation takes from a log: requests, their work, nodes, loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.projections.coordination import Coordination
from aibs.replay.what_if.reader import Reader
from tests import recorded_events as events
from tests.what_if_histories import FLEET, GB, LARGE, SMALL, acquired, event

if TYPE_CHECKING:
    from aibs.eventstore.events import Event


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
        event(
            3,
            "ModelLoaded",
            3_000,
            {"lease_id": "l1", "node_id": "box-c", "outcome": "ok", "ms": 1_500},
        ),
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
    assert told.load_ms == {("box-c", LARGE.key): 1_500, ("", LARGE.key): 1_500}
    tally = told.tally
    assert (tally.requests, tally.granted, tally.loads) == (3, 2, 1)
    assert (tally.waits_ms, dict(tally.denied)) == ([0, 12_000], {"no_slot": 1})


def seen(seq: int, at_ms: int, *models: dict[str, Any], **more: Any) -> Event:
    told = {"node_id": "box-c", "foreign_bytes": 0, "healthy": True, "busy": [], **more}
    return event(
        seq, "ResidencyObserved", at_ms, {**told, "observed_at_ms": at_ms, "models": list(models)}
    )


def model(key: str, charge_bytes: int, **more: Any) -> dict[str, Any]:
    told = {"key": key, "ownership": "own", "charge_bytes": charge_bytes}
    return {**told, "digest": "d", "context_length": 4_096, **more}


def test_looks_that_tell_nothing_new_are_not_kept() -> None:
    reader = Reader(FLEET, 0)
    for n in range(1_000):
        reader.feed(seen(n, n, model(LARGE.key, 61 * GB + n % 2)))
    # What a model weighs is the most that it was seen to weigh: known after two looks.
    assert len(reader.done().changes) == 2


def test_a_look_tells_foreign_bytes_weights_and_health_that_changed() -> None:
    reader = Reader(FLEET, 0)
    for one in (
        seen(1, 1_000, model(LARGE.key, 61 * GB)),
        seen(2, 2_000, model(LARGE.key, 61 * GB), foreign_bytes=5 * GB),
        seen(3, 3_000, model(LARGE.key, 64 * GB), foreign_bytes=5 * GB),
        seen(4, 4_000, foreign_bytes=5 * GB),
        seen(5, 5_000, foreign_bytes=5 * GB, healthy=False),
        event(6, "WeightsForgotten", 6_000, {"node_id": "box-c", "keys": [LARGE.key]}),
    ):
        reader.feed(one)
    told = [(one.at_ms, one.foreign, one.weights, one.healthy) for one in reader.done().changes]
    light, heavy = ((LARGE.key, 61 * GB),), ((LARGE.key, 64 * GB),)
    assert told == [
        (1_000, 0, light, True),
        (2_000, 5 * GB, light, True),
        (3_000, 5 * GB, heavy, True),
        (5_000, 5 * GB, heavy, False),
        (6_000, 5 * GB, (), False),
    ]


def test_the_first_look_after_a_declaration_is_kept_for_the_node_may_be_another() -> None:
    reader = Reader(FLEET, 0)
    reader.feed(seen(1, 1_000))
    reader.feed(event(2, "FleetDeclared", 2_000, {"fleet": FLEET.document()}))
    reader.feed(seen(3, 3_000))
    assert [one.at_ms for one in reader.done().changes] == [1_000, 3_000]


def test_what_others_use_is_told_apart_from_what_is_foreign() -> None:
    reader = Reader(FLEET, 0)
    busy = [LARGE.key]
    reader.feed(seen(1, 1_000, model(LARGE.key, 61 * GB), foreign_bytes=66 * GB, busy=busy))
    (told,) = reader.done().changes
    assert (told.foreign, told.busy) == (5 * GB, ((LARGE.key, 61 * GB),))


def test_weights_under_another_name_are_the_rosters_and_charged_once() -> None:
    reader = Reader(FLEET, 0)
    keys = [LARGE.key, SMALL.key]
    reader.feed(seen(1, 1_000, model("other/name:1", 61 * GB, roster_keys=keys)))
    (told,) = reader.done().changes
    assert told.own == ((LARGE.key, 61 * GB), (SMALL.key, 0))


def test_loads_are_told_by_node_and_for_all() -> None:
    reader = Reader(FLEET, 0)
    for n, (node_id, ms) in enumerate((("box-c", 1_000), ("box-e", 3_000), ("box-e", 5_000))):
        reader.feed(acquired(n, 1_000 + n, n))
        told = {"lease_id": f"l{n}", "node_id": node_id, "outcome": "ok", "ms": ms}
        reader.feed(event(n, "ModelLoaded", 2_000 + n, told))
    recorded = reader.done()
    assert recorded.load_ms_on("box-c", LARGE.key) == 1_000
    assert recorded.load_ms_on("box-e", LARGE.key) == 4_000
    assert recorded.load_ms_on("box-x", LARGE.key) == 3_000
    assert recorded.load_ms_on("box-c", SMALL.key) == 0


def test_each_request_carries_the_end_that_the_log_tells() -> None:
    def queued(seq: int, name: str) -> Event:
        waiter = {
            "request_key": name,
            "environment": "env",
            "class": "low",
            "lane": f"m|{LARGE.key}",
            "wait_deadline_ms": 62_000,
        }
        return event(seq, "LeaseQueued", 2_000, {"waiter": waiter})

    def ended(seq: int, name: str, how: str) -> Event:
        return event(seq, "WaitEnded", 3_000, {"request_key": name, "how": how})

    reader = Reader(FLEET, 0)
    denial = {"environment": "env", "lane": f"m|{LARGE.key}", "reason": "no_slot"}
    for one in (
        acquired(1, 1_000, 1),
        *(queued(2, name) for name in ("cancelled", "forgotten", "timed_out", "still")),
        *(ended(3, name, name) for name in ("cancelled", "forgotten", "timed_out")),
        event(4, "LeaseDenied", 4_000, denial),
    ):
        reader.feed(one)
    told = [(one.end, one.node_id) for one in reader.done().arrivals]
    assert told == [
        ("granted", "box-c"),
        ("gave_up", ""),
        ("gave_up", ""),
        ("denied", ""),
        (None, ""),
        ("denied", ""),
    ]


def test_a_range_begins_with_what_was_held_drained_and_waited_for() -> None:
    state = Coordination()
    state.engine.apply_all(
        [
            events.declared(1, 80_000),
            events.acquired(2, 90_000, 1, drain_ms=10_000),
            events.acquired(3, 91_000, 2),
            events.ended(4, 100_000, number=1),
        ]
    )
    reader = Reader(FLEET, 104_000)
    reader.begin_with(state)
    reader.feed(events.ended(5, 110_000, "LeaseReleased", number=2))
    told = reader.done()
    assert [(one.at_ms, one.work_ms, one.counted) for one in told.arrivals] == [
        (104_000, 6_000, False),
        (104_000, 6_000, False),
    ]
    assert told.tally.requests == 0
