"""The gate before enabling the global scheduler: one atomic decision places a request, or refuses.

Runs against AIBS_TEST_VALKEY_URL (or AIBS_TEST_REDIS_URL) in a namespace of its own, which it
deletes; without either, against a Valkey that the tests start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from aibs.clock import SystemClock
from aibs.eventstore.pool import CoordinationPool
from aibs.placement.valkey import ValkeyBackend
from aibs.placement.values import Denied, Granted, Queued, Session
from tests.property.grant_audit import GrantAudit
from tests.property.placement_world import (
    GB,
    LIMITS,
    ORDER,
    TTL_MS,
    World,
    fleet,
    key_of,
    request,
    resident,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aibs.placement.values import Lease

SMALL, MEDIUM, LARGE = (f"m|{key_of(name)}" for name in ("small:7b", "medium:30b", "large:70b"))
WAIT_MS = 120_000


@pytest.fixture
def world(valkey_url: str) -> Iterator[World]:
    """Two nodes, box-c (90 GB, 2 slots) and box-e (104 GB, 3 slots), both seen empty."""
    with contextlib.closing(World(valkey_url)) as made:
        made.run(made.pool.open())
        made.elect()
        made.declare(fleet())
        made.observe_all()
        yield made
        made.check()
        audit = GrantAudit()
        for event in made.events:
            audit.feed(event)


class Asking:
    """Requests by number, each with a lease id of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._calls = 0

    def __call__(self, number: int, lane: str, **options: Any) -> Granted | Queued | Denied:
        self._calls += 1
        asked = request(number, lane, **options)
        answer: Granted | Queued | Denied = self._world.run(
            self._world.backend.acquire(asked, lease_id=f"{self._calls:016x}", call_id="call")
        )
        return answer

    def lease(self, number: int, lane: str, **options: Any) -> Lease:
        """One that must be granted."""
        answer = self(number, lane, **options)
        assert isinstance(answer, Granted), answer
        return answer.lease

    def give_back(self, lease: Lease, outcome: str = "completed") -> str:
        """Release it."""
        word: str = self._world.run(
            self._world.backend.release(lease, outcome, call_id=f"give-{lease.lease_id}")  # type: ignore[arg-type]
        ).word
        return word


@pytest.fixture
def ask(world: World) -> Asking:
    return Asking(world)


def later(world: World, ms: int) -> None:
    world.clock.set(world.clock.now_ms + ms)


def reasons(answer: object) -> dict[str, str]:
    assert isinstance(answer, Denied | Queued), answer
    return {one.node_id: one.reason for one in answer.nodes}


# --- what a grant needs


def test_a_node_that_was_not_seen_recently_takes_nothing(world: World, ask: Asking) -> None:
    later(world, LIMITS.staleness_ms + 10)
    assert reasons(ask(1, SMALL)) == {"box-c": "stale_residency", "box-e": "stale_residency"}
    world.observe("box-e")
    assert ask.lease(2, SMALL).node_id == "box-e"


def test_a_stamp_from_the_future_is_stale(world: World, ask: Asking) -> None:
    later(world, -60_000)
    assert set(reasons(ask(1, SMALL)).values()) == {"stale_residency"}


def test_weights_never_exceed_the_budget_and_the_refusal_says_how_much_is_missing(
    world: World, ask: Asking
) -> None:
    assert ask.lease(1, LARGE).node_id == "box-c"
    answer = ask(2, f"mr|{key_of('medium:30b')}|deep")
    assert isinstance(answer, Denied)
    assert answer.reason == "no_memory"
    assert answer.nodes[0].missing_bytes == 20 * GB


def test_foreign_models_take_their_share_of_the_budget(world: World, ask: Asking) -> None:
    world.observe("box-c", (resident("theirs:x", 20, own=False),))
    answer = ask(1, LARGE)
    assert reasons(answer)["box-c"] == "no_memory"
    world.observe("box-c")
    assert ask.lease(2, LARGE).node_id == "box-c"


def test_slots_never_run_out_unseen(world: World, ask: Asking) -> None:
    taken = Counter(ask.lease(number, SMALL).node_id for number in range(5))
    assert taken == {"box-c": 2, "box-e": 3}
    answer = ask(9, SMALL)
    assert isinstance(answer, Denied)
    assert answer.reason == "no_slot"


def test_an_unreadable_resident_closes_its_node_until_it_clears(world: World, ask: Asking) -> None:
    world.observe("box-e", unaccounted=True)
    assert ask.lease(1, SMALL).node_id == "box-c"
    assert ask.lease(2, SMALL).node_id == "box-c"
    assert reasons(ask(3, SMALL))["box-e"] == "unaccounted_resident"
    world.observe("box-e")
    assert ask.lease(4, SMALL).node_id == "box-e"


def test_an_unhealthy_node_returns_after_two_good_polls(world: World, ask: Asking) -> None:
    world.observe("box-e", good=False)
    world.observe("box-e", good=False)
    for number in (1, 2):
        assert ask.lease(number, SMALL).node_id == "box-c"
    assert reasons(ask(3, SMALL))["box-e"] == "node_unhealthy"
    world.observe("box-e")
    assert reasons(ask(4, SMALL))["box-e"] == "node_unhealthy"
    world.observe("box-e")
    assert ask.lease(5, SMALL).node_id == "box-e"


def test_a_cordoned_node_takes_nothing_until_it_is_opened(world: World, ask: Asking) -> None:
    world.call("cordon", {"node_id": "box-c", "why": "fans", "by": "op", "until_ms": 0})
    assert reasons(ask(1, LARGE)) == {"box-c": "node_cordoned"}
    world.call("uncordon", {"node_id": "box-c", "by": "op"})
    assert ask.lease(2, LARGE).node_id == "box-c"


def test_a_cordon_ends_by_itself_at_its_time(world: World, ask: Asking) -> None:
    until = world.clock.now_ms + 5_000
    world.call("cordon", {"node_id": "box-c", "why": "fans", "by": "op", "until_ms": until})
    assert isinstance(ask(1, LARGE), Denied)
    later(world, 5_001)
    assert ask.lease(2, LARGE).node_id == "box-c"


def test_a_role_stays_on_its_nodes(ask: Asking) -> None:
    assert {ask.lease(number, "r|deep").node_id for number in (1, 2)} == {"box-c"}


@pytest.mark.parametrize(
    ("lane", "reason"),
    [
        (f"m|{key_of('nobody:1b')}", "unknown_model"),
        ("r|raw", "unmeasured_weight"),
        (f"m|{key_of('huge:400b')}", "never_fits"),
    ],
)
def test_what_no_waiting_mends_is_refused_at_once(ask: Asking, lane: str, reason: str) -> None:
    answer = ask(1, lane, wait_ms=WAIT_MS)
    assert isinstance(answer, Denied)
    assert answer.reason == reason


def test_an_observed_weight_above_the_declared_counts_for_a_day(world: World, ask: Asking) -> None:
    world.observe("box-c", (resident(key_of("large:70b"), 91),))
    world.observe("box-c")
    assert reasons(ask(1, LARGE))["box-c"] == "no_memory"
    world.call("forget", {"node_id": "box-c", "by": "op"})
    assert ask.lease(2, LARGE).node_id == "box-c"


# --- who gets which node


def test_of_a_node_that_left_the_fleet_and_returned_nothing_seen_before_counts(
    world: World, ask: Asking
) -> None:
    ask.lease(1, f"mr|{key_of('medium:30b')}|deep")
    world.observe("box-c", (resident(key_of("small:7b"), 13), resident(key_of("medium:30b"), 30)))
    world.declare(fleet(1, boxes=(("box-e", 104, 3),)))
    world.declare(fleet(2, boxes=(("box-c", 90, 2),)))
    world.observe("box-c", (resident(key_of("medium:30b"), 30),))
    assert ask.lease(2, SMALL).weight_bytes == 10 * GB


def test_a_slot_of_a_node_that_left_the_fleet_comes_back_by_time_alone(
    world: World, ask: Asking
) -> None:
    assert ask.lease(1, f"mr|{key_of('medium:30b')}|deep").node_id == "box-c"
    without = (("box-e", 104, 3),)
    world.declare(fleet(1, boxes=without))
    later(world, TTL_MS)
    world.call("reap", ORDER)
    world.call("reindex", {"apply": "1"})
    assert world.run(world.client.hget(world.keys.key("capacity"), "box-c"))
    # Nobody polls it any more.
    later(world, LIMITS.drain_ms)
    world.call("reindex", {"apply": "1"})
    assert not world.run(world.client.hget(world.keys.key("capacity"), "box-c"))


def test_a_hundred_requests_within_one_poll_interval_spread_evenly(
    world: World, ask: Asking
) -> None:
    boxes = tuple((f"box-{name}", 400, 25) for name in "abcd")
    world.declare(fleet(1, boxes=boxes))
    world.observe_all()
    taken = Counter(ask.lease(number, SMALL).node_id for number in range(100))
    assert taken == {f"box-{name}": 25 for name in "abcd"}


def test_a_large_fleet_spreads_as_evenly_as_a_small_one(world: World, ask: Asking) -> None:
    world.declare(fleet(1, boxes=tuple((f"box-{n:03}", 400, 4) for n in range(50))))
    world.observe_all()
    taken = Counter(ask.lease(number, SMALL).node_id for number in range(100))
    assert set(taken.values()) == {2}
    assert len(taken) == 50


def test_of_equally_free_nodes_the_warm_one_is_taken(world: World, ask: Asking) -> None:
    world.declare(fleet(1, boxes=(("box-c", 104, 2), ("box-e", 104, 2))))
    world.observe("box-c")
    world.observe("box-e", (resident(key_of("small:7b"), 10),))
    lease = ask.lease(1, SMALL)
    assert (lease.node_id, lease.warm) == ("box-e", True)


def test_of_equally_free_cold_nodes_the_one_with_less_at_work_is_taken(
    world: World, ask: Asking
) -> None:
    world.declare(fleet(1, boxes=(("box-c", 120, 3), ("box-e", 120, 3))))
    world.observe("box-c")
    world.observe("box-e", (resident("tenant", 75, own=False),))
    assert ask.lease(1, LARGE).node_id == "box-c"
    assert ask.lease(2, SMALL).node_id == "box-e"
    # Two slots are free on each, and box-c has more room: 40 GB against 35.
    assert ask.lease(3, MEDIUM).node_id == "box-e"


def test_equal_nodes_take_turns(world: World, ask: Asking) -> None:
    world.declare(fleet(1, boxes=(("box-c", 104, 2), ("box-e", 104, 2))))
    world.observe_all()
    taken = []
    for number in range(4):
        lease = ask.lease(number, SMALL)
        taken.append(lease.node_id)
        # Nothing was loaded: both are as they were.
        ask.give_back(lease, "cancelled")
    assert taken == ["box-c", "box-e", "box-c", "box-e"]


def test_a_cold_load_lists_the_fewest_idle_models_to_unload(world: World, ask: Asking) -> None:
    left = (resident(key_of("small:7b"), 10), resident(key_of("medium:30b"), 30))
    held = [
        ask.lease(1, f"mr|{key_of('medium:30b')}|deep"),
        *(ask.lease(n, SMALL) for n in (2, 3, 4)),
    ]
    world.observe("box-c", left)
    for one in held:
        ask.give_back(one)
    later(world, 10)
    world.observe("box-c", left)
    assert ask.lease(5, LARGE).unload_first == (key_of("medium:30b"),)


def test_a_model_that_others_use_is_charged_as_foreign_and_never_unloaded(
    world: World, ask: Asking
) -> None:
    world.observe("box-c")
    world.observe("box-c", (resident(key_of("medium:30b"), 30),))
    answer = ask(1, LARGE)
    assert reasons(answer)["box-c"] == "no_memory"
    seen = [event for event in _events(world) if event.type == "ResidencyObserved"][-1]
    assert seen.data["busy"] == [key_of("medium:30b")]
    assert seen.data["foreign_bytes"] == 30 * GB


def test_a_model_left_by_our_own_lease_is_idle_and_not_anothers(world: World, ask: Asking) -> None:
    held = (resident(key_of("medium:30b"), 30, expires_at_ms=1_000_000),)
    lease = ask.lease(1, f"mr|{key_of('medium:30b')}|deep")
    later(world, 10)
    world.observe("box-c", held)
    ask.give_back(lease)
    later(world, 100)
    # The end of our request moved its keep-alive: the first poll after the release only notes it.
    moved = (resident(key_of("medium:30b"), 30, expires_at_ms=1_300_000),)
    world.observe("box-c", moved)
    later(world, 3_000)
    world.observe("box-c", moved)
    assert ask.lease(2, LARGE).unload_first == (key_of("medium:30b"),)


def test_an_idle_model_whose_keep_alive_moves_is_in_use_by_others(
    world: World, ask: Asking
) -> None:
    lease = ask.lease(1, f"mr|{key_of('medium:30b')}|deep")
    ask.give_back(lease)
    for ms, expires_at_ms in ((100, 1_000_000), (3_000, 1_000_000), (3_000, 1_003_000)):
        later(world, ms)
        held = resident(key_of("medium:30b"), 30, expires_at_ms=expires_at_ms)
        world.observe("box-c", (held,))
    assert reasons(ask(2, f"mr|{key_of('large:70b')}|deep")) == {"box-c": "no_memory"}


# --- repeats, cancels, ends


def test_the_same_request_again_is_the_same_lease(ask: Asking) -> None:
    assert ask.lease(1, SMALL).lease_id == ask.lease(1, SMALL).lease_id


def test_other_parameters_under_the_same_name_are_a_conflict(ask: Asking) -> None:
    ask.lease(1, SMALL)
    answer = ask(1, SMALL, hashed="other")
    assert isinstance(answer, Denied)
    assert answer.reason == "request_conflict"


def test_a_cancel_that_overtakes_its_acquire_leaves_no_lease(world: World, ask: Asking) -> None:
    assert world.run(world.backend.cancel(request(1, SMALL))) == "unseen"
    answer = ask(1, SMALL)
    assert isinstance(answer, Denied)
    assert answer.reason == "request_ended"


def test_a_cancelled_grant_that_was_never_heard_is_free_again(world: World, ask: Asking) -> None:
    ask.lease(1, LARGE)
    assert world.run(world.backend.cancel(request(1, LARGE))) == "leased"
    assert ask.lease(2, LARGE).node_id == "box-c"


def test_a_release_twice_is_told_apart_from_a_release_by_another(world: World, ask: Asking) -> None:
    lease = ask.lease(1, SMALL)
    assert ask.give_back(lease) == "ok"
    assert ask.give_back(lease) == "duplicate"
    other = world.run(world.backend.release(lease, "completed", call_id="another"))
    assert other.word == "double"


def test_a_slot_whose_holder_died_drains_before_it_is_given_out_again(
    world: World, ask: Asking
) -> None:
    world.declare(fleet(1, boxes=(("box-c", 90, 1),)))
    world.observe_all()
    ask.lease(1, LARGE)
    later(world, TTL_MS + 1)
    world.observe_all()
    assert reasons(ask(2, LARGE)) == {"box-c": "draining"}
    later(world, LIMITS.drain_ms)
    # The time is over, and no poll that began after the end has answered yet.
    answer = ask(3, LARGE)
    assert isinstance(answer, Denied)
    world.observe_all()
    assert ask.lease(4, LARGE).node_id == "box-c"


def test_a_release_after_the_deadline_is_late_and_the_slot_drains(
    world: World, ask: Asking
) -> None:
    world.declare(fleet(1, boxes=(("box-c", 90, 1),)))
    world.observe_all()
    lease = ask.lease(1, LARGE)
    later(world, TTL_MS + 1)
    world.observe_all()
    assert ask.give_back(lease) == "late"
    assert ask.give_back(lease) == "duplicate"
    assert reasons(ask(2, LARGE)) == {"box-c": "draining"}


def test_heartbeats_keep_a_lease_alive_past_its_first_deadline(world: World, ask: Asking) -> None:
    lease = ask.lease(1, SMALL)
    for _ in range(4):
        later(world, TTL_MS // 2)
        (beat,) = world.run(world.backend.heartbeat("holder-a", [lease]))
        assert beat.word == "ok"
    later(world, TTL_MS + 1)
    (beat,) = world.run(world.backend.heartbeat("holder-a", [lease]))
    assert beat.word == "expired"


def test_a_holder_tells_a_server_that_forgot_the_fence_of_its_last_heartbeat(
    world: World, ask: Asking
) -> None:
    lease = ask.lease(1, SMALL)
    holders = CoordinationPool(
        world.client, world.keys, "holder", recovery_ms=1_000, overrides=world.clock.overrides
    )
    world.run(holders.open())
    backend = ValkeyBackend(holders, world.log, LIMITS, SystemClock())
    world.run(world.pool.resign("owner", world.fence))
    world.elect()
    world.run(backend.heartbeat("holder-a", [lease]))
    # As a promoted replica that lost the newest election would.
    world.plain.hset(world.keys.key("pool"), "fence", str(world.fence - 1))
    world.run(backend.heartbeat("holder-a", [lease]))
    assert reasons(ask(2, SMALL)) == {"box-c": "pool_recovering", "box-e": "pool_recovering"}
    suspected = [event for event in _events(world) if event.type == "PoolSuspect"]
    assert [event.data["why"] for event in suspected] == ["fence_regressed"]


def test_a_holder_makes_itself_known_to_a_pool_that_was_made_anew(
    world: World, ask: Asking
) -> None:
    lease = ask.lease(1, SMALL)
    session = Session("holder-a", "env-a", "here", "boot", 1, 1)
    world.run(world.backend.open_session(session))
    _lose_everything(world)
    world.run(world.backend.heartbeat("holder-a", [lease]))
    assert set(world.run(world.placement.sessions())) == {"holder-a"}
    world.forget_the_log()


def test_an_operator_takes_a_lease_and_its_heartbeat_learns_it(world: World, ask: Asking) -> None:
    lease = ask.lease(1, LARGE)
    take = {"by": "op", "why": "stuck", "lease_id": lease.lease_id, "heartbeat_ms": 3_000}
    assert world.call("revoke", {**take, "force": ""}).word == "renewed_recently"
    assert world.call("revoke", {**take, "force": "1"}).word == "ok"
    (beat,) = world.run(world.backend.heartbeat("holder-a", [lease]))
    assert beat.word == "revoked"
    later(world, 3_001)
    world.call("reap", ORDER)
    assert [event.type for event in _events(world)][-1] == "LeaseReaped"


def test_a_restarted_holder_ends_what_its_predecessor_left(world: World, ask: Asking) -> None:
    who = {"environment": "env-a", "host": "here", "boot_id": "b", "pid": 1, "pid_start": 1}
    world.call("session", {"holder": "holder-a", **who})
    ask.lease(1, SMALL)
    world.call("session", {"holder": "holder-b", **who}, ("holder-a",))
    ended = [event for event in _events(world) if event.type == "LeaseReaped"]
    assert [event.data["why"] for event in ended] == ["holder_restarted"]


def test_a_failed_probe_trips_its_node_for_longer_and_a_good_one_restores_it(
    world: World, ask: Asking
) -> None:
    world.call("trip", {"node_id": "box-c", "why": "resets", "by": "gateway"})
    assert reasons(ask(1, LARGE)) == {"box-c": "node_tripped"}
    later(world, 10_000)
    probe = ask.lease(2, LARGE)
    assert probe.probe
    assert reasons(ask(3, "r|deep"))["box-c"] == "node_tripped"
    ask.give_back(probe, "failed")
    later(world, 10_000)
    assert reasons(ask(4, LARGE)) == {"box-c": "node_tripped"}
    later(world, 10_000)
    world.observe_all()
    ask.give_back(ask.lease(5, LARGE))
    assert not ask.lease(6, LARGE).probe


# --- the queue


def test_a_waiter_goes_before_one_that_came_later(world: World, ask: Asking) -> None:
    held = [ask.lease(number, SMALL) for number in range(5)]
    first = ask(5, SMALL, wait_ms=WAIT_MS)
    second = ask(6, SMALL, wait_ms=WAIT_MS)
    assert isinstance(first, Queued)
    assert isinstance(second, Queued)
    assert (first.position, second.position) == (1, 2)
    ask.give_back(held[0])
    assert isinstance(ask(6, SMALL, wait_ms=WAIT_MS), Queued)
    assert isinstance(ask(7, SMALL), Denied)
    assert isinstance(ask(5, SMALL, wait_ms=WAIT_MS), Granted)


def test_a_better_class_goes_first_and_a_waiter_rises_with_time(world: World, ask: Asking) -> None:
    held = [ask.lease(number, SMALL) for number in range(5)]
    ask(5, SMALL, wait_ms=10 * WAIT_MS, priority="low")
    ask(6, SMALL, wait_ms=10 * WAIT_MS, priority="high")
    for _ in range(12):
        later(world, LIMITS.swap_max_ms // 6)
        _keep(world, held, (5, 6))
        world.observe_all()
    ask(7, SMALL, wait_ms=10 * WAIT_MS, priority="high")
    ask.give_back(held[0])
    assert isinstance(ask(7, SMALL, wait_ms=10 * WAIT_MS, priority="high"), Queued)
    # Two rises have made the low one high, and it is the oldest of all.
    assert isinstance(ask(6, SMALL, wait_ms=10 * WAIT_MS, priority="high"), Queued)
    assert isinstance(ask(5, SMALL, wait_ms=10 * WAIT_MS, priority="low"), Granted)


def test_small_requests_never_starve_a_large_one(world: World, ask: Asking) -> None:
    first = ask.lease(1, f"mr|{key_of('medium:30b')}|deep")
    large = ask(2, LARGE, wait_ms=WAIT_MS)
    assert reasons(large) == {"box-c": "no_memory"}
    taken = Counter(ask.lease(number, SMALL).node_id for number in range(3, 6))
    # box-c keeps 80 of its 90 GB for the large one: one small model fits beside, and one slot.
    assert taken["box-c"] <= 1
    ask.give_back(first)
    for number in range(20, 24):
        ask(number, SMALL)
    if taken["box-c"]:
        assert isinstance(ask(2, LARGE, wait_ms=WAIT_MS), Granted | Queued)
    else:
        assert isinstance(ask(2, LARGE, wait_ms=WAIT_MS), Granted)


def test_a_large_waiter_leaves_the_other_nodes_to_others(world: World, ask: Asking) -> None:
    ask.lease(1, f"mr|{key_of('medium:30b')}|deep")
    assert isinstance(ask(2, LARGE, wait_ms=WAIT_MS), Queued)
    nodes = [ask.lease(number, SMALL).node_id for number in range(3, 6)]
    assert nodes.count("box-e") >= 2


def test_requests_for_the_resident_model_pass_within_their_bound(world: World, ask: Asking) -> None:
    world.declare(fleet(1, boxes=(("box-c", 90, 1),)))
    warm = (resident(key_of("small:7b"), 10), resident(key_of("medium:30b"), 79))
    world.observe("box-c", warm[:1])
    held = ask.lease(1, SMALL)
    ask(2, LARGE, wait_ms=10 * WAIT_MS)
    ask(3, SMALL, wait_ms=10 * WAIT_MS)
    ask.give_back(held)
    # The large one is older; the small one finds its model there, and passes it.
    assert isinstance(ask(2, LARGE, wait_ms=10 * WAIT_MS), Queued)
    passing = ask(3, SMALL, wait_ms=10 * WAIT_MS)
    assert isinstance(passing, Granted)
    grant = [event for event in _events(world) if event.type == "LeaseAcquired"][-1]
    assert grant.data["evidence"]["passed"] == ["env-a|holder-a|r2"]
    ask(4, SMALL, wait_ms=10 * WAIT_MS)
    for _ in range(8):
        later(world, 8_000)
        _keep(world, [passing.lease], (2, 4))
        world.observe("box-c", warm[:1])
    ask.give_back(passing.lease)
    # It has stood first for too long to be passed again.
    assert isinstance(ask(4, SMALL, wait_ms=10 * WAIT_MS), Queued)
    assert isinstance(ask(2, LARGE, wait_ms=10 * WAIT_MS), Granted)


def test_who_only_comes_now_passes_as_a_waiter_would_and_the_log_names_whom(
    world: World, ask: Asking
) -> None:
    world.declare(fleet(1, boxes=(("box-c", 90, 1),)))
    world.observe("box-c", (resident(key_of("small:7b"), 10),))
    held = ask.lease(1, SMALL)
    ask(2, LARGE, wait_ms=WAIT_MS)
    ask.give_back(held)
    assert reasons(ask(3, MEDIUM)) == {"box-c": "reserved"}
    ask.lease(4, SMALL)
    grant = [event for event in _events(world) if event.type == "LeaseAcquired"][-1]
    assert grant.data["evidence"]["passed"] == ["env-a|holder-a|r2"]


def test_a_younger_request_takes_only_what_fits_beside_a_reservation(
    world: World, ask: Asking
) -> None:
    world.declare(fleet(1, boxes=(("box-c", 85, 3),)))
    world.observe("box-c")
    ask.lease(1, MEDIUM)
    ask(2, LARGE, wait_ms=WAIT_MS)
    # Its 10 GB would fit now, and not beside the 80 GB of the one that came first.
    assert reasons(ask(3, SMALL)) == {"box-c": "reserved"}


def test_who_stood_first_for_long_waits_for_no_least_stay(world: World, ask: Asking) -> None:
    world.declare(fleet(1, boxes=(("box-c", 90, 1),)))
    world.observe("box-c")
    held = ask.lease(1, SMALL)
    ask(2, LARGE, wait_ms=WAIT_MS, priority="high")
    ask(3, SMALL, wait_ms=WAIT_MS)
    warm = (resident(key_of("small:7b"), 30),)
    for second in range(7, LIMITS.swap_max_ms // 1000 + 7, 7):
        later(world, 7_000)
        _keep(world, [held], (2, 3))
        # The model came late: at the end it has been there for less than its least stay.
        world.observe("box-c", warm if second > 50 else ())
    ask.give_back(held)
    later(world, 10)
    world.observe("box-c", warm)
    assert isinstance(ask(2, LARGE, wait_ms=WAIT_MS, priority="high"), Granted)


def test_a_model_that_others_wait_for_is_not_swapped_out_before_its_least_stay(
    world: World, ask: Asking
) -> None:
    world.declare(fleet(1, boxes=(("box-c", 90, 1),)))
    world.observe("box-c")
    held = ask.lease(1, SMALL)
    warm = (resident(key_of("small:7b"), 30),)
    world.observe("box-c", warm)
    ask(2, LARGE, wait_ms=WAIT_MS, priority="high")
    ask(3, SMALL, wait_ms=WAIT_MS)
    ask.give_back(held)
    later(world, 10)
    world.observe("box-c", warm)
    refused = ask(2, LARGE, wait_ms=WAIT_MS, priority="high")
    assert reasons(refused) == {"box-c": "no_memory"}
    for _ in range(5):
        later(world, 7_000)
        _keep(world, [], (2, 3))
        world.observe("box-c", warm)
    granted = ask(2, LARGE, wait_ms=WAIT_MS, priority="high")
    assert isinstance(granted, Granted)
    assert granted.lease.unload_first == (key_of("small:7b"),)


def test_a_waiter_whose_process_fell_silent_is_forgotten(world: World, ask: Asking) -> None:
    held = [ask.lease(number, SMALL) for number in range(5)]
    ask(5, SMALL, wait_ms=WAIT_MS)
    later(world, LIMITS.grace_ms + 1)
    ask.give_back(held[0])
    assert isinstance(ask(6, SMALL), Granted)
    answer = ask(5, SMALL, wait_ms=WAIT_MS)
    assert isinstance(answer, Denied)
    assert (answer.reason, answer.detail) == ("request_ended", "forgotten")


def test_a_wait_ends_at_its_deadline_with_the_reason_of_each_node(
    world: World, ask: Asking
) -> None:
    held = [ask.lease(number, SMALL) for number in range(5)]
    ask(5, SMALL, wait_ms=5_000)
    later(world, 5_001)
    _keep(world, held, ())
    answer = ask(5, SMALL, wait_ms=5_000)
    assert isinstance(answer, Denied)
    assert answer.reason == "wait_timeout"
    assert reasons(answer) == {"box-c": "no_slot", "box-e": "no_slot"}


def test_one_environment_cannot_fill_the_queue(world: World, ask: Asking) -> None:
    for number in range(5):
        ask.lease(number, SMALL)
    answers = [ask(10 + n, SMALL, wait_ms=WAIT_MS) for n in range(LIMITS.queue_max // 4 + 1)]
    assert isinstance(answers[-1], Denied)
    assert answers[-1].reason == "queue_full"
    assert isinstance(ask(30, SMALL, wait_ms=WAIT_MS, environment="env-b"), Queued)


def test_a_release_names_who_may_go_now(world: World, ask: Asking) -> None:
    held = [ask.lease(number, SMALL) for number in range(5)]
    for number in (5, 6):
        ask(number, SMALL, wait_ms=WAIT_MS)
    ask.give_back(held[0])
    assert _events(world)[-1].data["next"] == ["env-a|holder-a|r5"]


# --- many at once, and the server's troubles


def test_many_concurrent_callers_take_no_more_than_there_is(world: World) -> None:
    async def all_at_once() -> list[Granted | Queued | Denied]:
        return list(
            await asyncio.gather(
                *(
                    world.backend.acquire(
                        request(number, SMALL), lease_id=f"{number:016x}", call_id="call"
                    )
                    for number in range(60)
                )
            )
        )

    answers = world.run(all_at_once())
    granted = Counter(one.lease.node_id for one in answers if isinstance(one, Granted))
    assert granted == {"box-c": 2, "box-e": 3}


def test_ten_thousand_denials_leave_a_short_log(world: World, ask: Asking) -> None:
    for number in range(5):
        ask.lease(number, SMALL)
    before = len(_events(world))
    answers = [ask(1_000 + number, SMALL) for number in range(300)]
    assert all(isinstance(answer, Denied) for answer in answers)
    later(world, 10_001)
    world.call("reap", ORDER)
    new = _events(world)[before:]
    assert [event.type for event in new if event.type.startswith(("LeaseD", "Denials"))] == [
        "LeaseDenied",
        "DenialsCounted",
    ]
    assert next(e for e in new if e.type == "DenialsCounted").data["count"] == 299


def test_after_the_state_is_lost_nothing_is_granted_until_the_nodes_are_seen_again(
    world: World, ask: Asking
) -> None:
    lease = ask.lease(1, LARGE)
    _lose_everything(world)
    answer = ask(2, SMALL)
    assert isinstance(answer, Denied)
    (beat,) = world.run(world.backend.heartbeat("holder-a", [lease]))
    assert beat.word == "unknown"
    # The log began anew, and says so; the checks of this world read it from its new beginning.
    world.forget_the_log()


def _events(world: World) -> list[Any]:
    world.check()
    return world.events


def _lose_everything(world: World) -> None:
    clock = world.clock.now_ms
    for key in world.plain.scan_iter(match=world.keys.pattern, count=1000):
        world.plain.unlink(key)
    world.clock.set(clock)


def _keep(world: World, leases: list[Lease], waiters: tuple[int, ...]) -> None:
    """Holders renew, and processes that wait are heard of."""
    world.run(world.backend.heartbeat("holder-a", leases))
    keys = tuple(f"env-a|holder-a|r{number}" for number in waiters)
    world.call("refresh", {"holder": "holder-a", "grace_ms": LIMITS.grace_ms, **ORDER}, keys)
