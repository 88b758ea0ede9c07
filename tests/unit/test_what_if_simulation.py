"""Simulated histories whose answers are known."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from aibs.fleet import Fleet, Node, Worker
from aibs.lanes import lane_name
from aibs.replay.what_if.recorded import Agreement, Arrival, NodeChange, Recorded
from tests.what_if_histories import GB, LARGE, SMALL, asked, history, run, simulated


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


def test_agreement_counts_each_request_whose_end_the_log_tells_once() -> None:
    recorded = history(
        asked(0, 1_000, LARGE, 10_000, end="granted", node_id="box-c"),
        # Denied in the log; here it waits, and is granted.
        asked(1, 2_000, LARGE, 1_000, end="denied"),
        # Granted in the log; here its limit passes.
        asked(2, 2_000, LARGE, 1_000, wait_ms=3_000, end="granted", node_id="box-c"),
        # Granted in both, on another node.
        asked(3, 3_000, SMALL, 1_000, end="granted", node_id="box-c"),
        asked(4, 3_000, LARGE, 1_000, gave_up_ms=1_000, end="gave_up"),
        # Waited when the log ended; was there when it began.
        asked(5, 4_000, SMALL, 1_000),
        asked(6, 4_000, SMALL, 1_000, end="granted", node_id="box-e", counted=False),
    )
    assert simulated(recorded).agreement == Agreement(
        compared=5, ended_alike=3, granted_in_both=2, on_the_same_node=1
    )


def weighing(weight: int) -> Recorded:
    recorded = history(asked(0, 1_000, LARGE, 1_000, wait_ms=0))
    recorded.changes.append(
        NodeChange(2, "box-c", "seen", own=((LARGE.key, weight),), weights=((LARGE.key, weight),))
    )
    return recorded


def test_a_model_weighs_what_it_was_seen_to_weigh_where_that_is_more() -> None:
    assert run(weighing(80 * GB)).peak_leased == {"box-c": 80 * GB}
    assert run(weighing(50 * GB)).peak_leased == {"box-c": 60 * GB}
    assert run(weighing(95 * GB)).granted == 0


def test_a_weight_that_is_supposed_stands_against_what_was_seen() -> None:
    told = run(weighing(80 * GB), "worker.large.resident_weight_gb=40", "box-e=off")
    assert told.peak_leased == {"box-c": 40 * GB}


def test_a_load_takes_as_long_as_loads_there_else_elsewhere_else_no_time() -> None:
    def waits(*, kept: str, off: str, load_ms: dict[tuple[str, str], int]) -> list[int]:
        recorded = history(asked(0, 1_000, LARGE, 10_000), asked(1, 2_000, LARGE, 1_000))
        recorded.load_ms = load_ms
        changes = (f"{kept}.vram_gb=90", f"{kept}.slots=1", f"{off}=off")
        return sorted(run(recorded, *changes).waits_ms)

    told = {("box-c", LARGE.key): 3_000, ("", LARGE.key): 5_000}
    assert waits(kept="box-c", off="box-e", load_ms=told) == [0, 12_000]
    assert waits(kept="box-e", off="box-c", load_ms=told) == [0, 14_000]
    assert waits(kept="box-e", off="box-c", load_ms={}) == [0, 9_000]


A, B = (
    Worker(name, f"{name}:1b", (name,), "chat", weight * GB, Decimal(1))
    for name, weight in (("a", 30), ("b", 10))
)
ONE = Fleet(0, (Node("box-c", "http://c:1", 90 * GB, 3),), (LARGE, A, B))


def making_room(*later: Arrival, load_ms: int = 20_000) -> Recorded:
    """Two idle models are there; the large one takes the room of the larger of them."""
    recorded = history(asked(0, 1_000, LARGE, 60_000), *later, fleet=ONE)
    idle = ((A.key, 30 * GB), (B.key, 10 * GB))
    recorded.changes = [NodeChange(1, "box-c", "seen", own=idle)]
    recorded.load_ms = {("", LARGE.key): load_ms}
    return recorded


def test_a_model_on_its_way_out_is_gone_with_the_next_poll_and_can_come_back() -> None:
    # What happens in the grant's own millisecond is met by no later poll: the node must be
    # polled on, or the model that went would be on its way out as long as the lease lives.
    beside = Arrival(1, 1_000, lane_name("nobody/knows:it", None), "normal", "env", wait_ms=0)
    told = run(making_room(beside, asked(2, 5_000, A, 1_000, wait_ms=0)))
    assert dict(told.denied) == {"unknown_model": 1}
    assert (told.granted, told.loads, told.unloads) == (2, 2, 2)


def test_a_model_on_its_way_out_is_not_granted_in_the_same_moment() -> None:
    told = run(making_room(asked(1, 1_000, A, 1_000, wait_ms=0)))
    assert dict(told.denied) == {"node_loading": 1}


def test_a_model_that_was_loaded_for_no_work_can_be_unloaded_in_that_moment() -> None:
    # Its lease ends in the millisecond in which it was loaded, and another takes its room: was it
    # taken for loaded after that, it would be warm the next time.
    recorded = making_room(load_ms=5_000)
    recorded.arrivals = [
        asked(0, 1_000, LARGE, 0),
        asked(1, 2_000, A, 1_000),
        asked(2, 20_000, LARGE, 0),
    ]
    assert run(recorded, "worker.a.resident_weight_gb=80").loads == 3


MOVED = replace(ONE, nodes=(replace(ONE.nodes[0], base_url="http://c:2"),), revision=1)


def moved(*later: Arrival) -> Recorded:
    recorded = making_room(*later, load_ms=5_000)
    recorded.fleets.append((2_000, MOVED))
    recorded.changes.append(NodeChange(3_000, "box-c", "seen"))
    return recorded


def test_a_load_on_a_node_that_moved_meanwhile_is_no_load_of_the_new_node() -> None:
    assert run(moved(asked(1, 30_000, LARGE, 1_000))).loads == 2


def test_a_node_that_moved_takes_nothing_before_it_was_seen() -> None:
    told = run(moved(asked(1, 2_500, A, 1_000, wait_ms=0)))
    assert dict(told.denied) == {"stale_residency": 1}
    assert run(moved(asked(1, 3_500, A, 1_000, wait_ms=0))).granted == 2


def test_a_supposed_weight_is_what_a_resident_model_takes() -> None:
    recorded = history(asked(0, 1_000, A, 1_000), fleet=ONE)
    recorded.changes = [NodeChange(1, "box-c", "seen", own=((LARGE.key, 80 * GB),))]
    assert run(recorded).unloads == 1
    assert run(recorded, "worker.large.resident_weight_gb=40").unloads == 0


def test_own_models_are_there_as_at_the_first_look_and_then_as_simulated() -> None:
    recorded = history(asked(0, 3_000, A, 1_000), fleet=ONE)
    recorded.changes = [
        NodeChange(1, "box-c", "seen", own=((A.key, 30 * GB),)),
        NodeChange(2_000, "box-c", "seen", foreign=GB),
    ]
    assert run(recorded).loads == 0


def test_a_node_that_failed_takes_nothing_until_it_is_back() -> None:
    recorded = history(
        asked(0, 3_000, A, 1_000, wait_ms=0), asked(1, 5_000, A, 1_000, wait_ms=0), fleet=ONE
    )
    recorded.changes += [
        NodeChange(2_000, "box-c", "health", healthy=False),
        NodeChange(4_000, "box-c", "health"),
    ]
    told = run(recorded)
    assert (told.granted, dict(told.denied)) == (1, {"node_unhealthy": 1})


def test_a_cordon_of_the_log_closes_a_node_and_its_end_opens_no_node_that_is_off() -> None:
    recorded = history(
        asked(0, 3_000, A, 1_000, wait_ms=0), asked(1, 5_000, A, 1_000, wait_ms=0), fleet=ONE
    )
    recorded.changes += [
        NodeChange(2_000, "box-c", "cordon"),
        NodeChange(4_000, "box-c", "uncordon"),
    ]
    told = run(recorded)
    assert (told.granted, dict(told.denied)) == (1, {"node_cordoned": 1})
    assert run(recorded, "box-c=off").granted == 0


def test_what_others_use_is_no_room_but_for_those_who_ask_for_it() -> None:
    def denied(worker: Worker) -> dict[str, int]:
        recorded = history(asked(0, 1_000, worker, 1_000, wait_ms=0), fleet=ONE)
        recorded.changes = [NodeChange(1, "box-c", "seen", busy=((LARGE.key, 60 * GB),))]
        return dict(run(recorded, "worker.a.resident_weight_gb=40").denied)

    assert denied(A) == {"no_memory": 1}
    assert denied(LARGE) == {}


def test_what_others_no_longer_use_is_room_again() -> None:
    recorded = history(asked(0, 3_000, A, 1_000, wait_ms=0), fleet=ONE)
    recorded.changes = [
        NodeChange(1, "box-c", "seen", busy=((LARGE.key, 60 * GB),)),
        NodeChange(2_000, "box-c", "seen"),
    ]
    assert run(recorded, "worker.a.resident_weight_gb=80").granted == 1


def test_a_long_log_leaves_nothing_behind_but_its_figures() -> None:
    many = [asked(n, 1_000 + 100 * n, SMALL, 50) for n in range(2_000)]
    simulation = simulated(history(*many))
    assert simulation.tally.granted == 2_000
    model = simulation._model
    for kept in (model.ended, model.requests, model.leases, model.wakes, model.waiters):
        assert not kept
    assert not simulation._waiting
    assert not simulation._agenda._made
