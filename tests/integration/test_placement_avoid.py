"""Requests that avoid nodes, on a real server: who is told to ask, and what is kept for whom.

What memory does too is among the scenarios of every back end.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from aibs.placement.values import Granted, Queued
from tests.property.placement_world import World, fleet, key_of, request, resident

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aibs.placement.values import Lease

SMALL, MEDIUM, LARGE = (f"m|{key_of(name)}" for name in ("small:7b", "medium:30b", "large:70b"))
FEW = (("box-c", 90, 2), ("box-e", 104, 3))
MANY = (("box-c", 90, 2), *((f"box-{number:02}", 90, 1) for number in range(10)))
WAIT_MS = 120_000


class Desk:
    """Requests by number on the nodes of a fleet."""

    def __init__(self, world: World, boxes: tuple[tuple[str, int, int], ...]) -> None:
        self.world = world
        self.slots = sum(slots for _, _, slots in boxes)
        world.run(world.pool.open())
        world.elect()
        world.declare(fleet(boxes=boxes))
        world.observe_all()

    def ask(self, number: int, lane: str = SMALL, **options: Any) -> Any:
        """One acquire."""
        asked = request(number, lane, **options)
        lease_id = f"{self.world.clock.now_ms:x}{number:04}"
        return self.world.run(self.world.backend.acquire(asked, lease_id=lease_id, call_id="call"))

    def lease(self, number: int, lane: str = SMALL, **options: Any) -> Lease:
        """One that must be granted."""
        answer = self.ask(number, lane, **options)
        assert isinstance(answer, Granted), answer
        return answer.lease

    def waits(self, number: int, lane: str = SMALL, **options: Any) -> Queued:
        """One that must be queued."""
        answer = self.ask(number, lane, wait_ms=WAIT_MS, **options)
        assert isinstance(answer, Queued), answer
        return answer

    def fill(self) -> list[Lease]:
        """A lease on every slot."""
        return [self.lease(100 + number) for number in range(self.slots)]

    def named(self, event_type: str) -> list[str]:
        """Whom the newest event of that type tells to ask, by request id."""
        self.world.check()
        found = [event for event in self.world.events if event.type == event_type]
        return [name.rpartition("|")[2] for name in found[-1].data["next"]]

    def release(self, lease: Lease) -> list[str]:
        """Give a lease back: who is told to ask."""
        self.world.run(self.world.backend.release(lease, "completed", call_id="one"))
        return self.named("LeaseReleased")


@pytest.fixture(params=[FEW, MANY], ids=["a small fleet", "one with indexes"])
def desk(valkey_url: str, request: pytest.FixtureRequest) -> Iterator[Desk]:
    with contextlib.closing(World(valkey_url)) as world:
        yield Desk(world, request.param)
        world.check()


@pytest.fixture
def two(valkey_url: str) -> Iterator[Desk]:
    with contextlib.closing(World(valkey_url)) as world:
        yield Desk(world, FEW)
        world.check()


def test_who_avoids_the_best_nodes_of_any_fleet_gets_another(desk: Desk) -> None:
    best = desk.lease(1).node_id
    assert desk.lease(2, avoid=(best,)).node_id != best
    for number in range(3, 3 + desk.slots):
        answer = desk.ask(number, avoid=("box-c",))
        assert not isinstance(answer, Granted) or answer.lease.node_id != "box-c"


def test_a_freed_slot_is_told_to_no_waiter_that_avoids_its_node(desk: Desk) -> None:
    held = desk.fill()
    desk.waits(1, avoid=("box-c",))
    desk.waits(2, avoid=("box-c",))
    desk.waits(3)
    on_c = next(lease for lease in held if lease.node_id == "box-c")
    assert desk.release(on_c) == ["r3"]


def test_after_a_grant_those_are_told_to_look_who_may_get_what_is_left(desk: Desk) -> None:
    held = desk.fill()
    desk.waits(1)
    for number in (2, 3):
        desk.waits(number, avoid=("box-c",))
    desk.waits(4)
    for lease in [one for one in held if one.node_id == "box-c"]:
        desk.release(lease)
    assert desk.lease(1, wait_ms=WAIT_MS).node_id == "box-c"
    assert desk.named("LeaseAcquired") == ["r4"]


def test_one_that_avoids_the_best_node_that_is_left_is_told_of_the_others(
    valkey_url: str,
) -> None:
    with contextlib.closing(World(valkey_url)) as world:
        many = Desk(world, MANY)
        held = many.fill()
        many.waits(1)
        many.waits(2, avoid=("box-c",))
        for lease in [one for one in held if one.node_id in ("box-c", "box-05")]:
            many.release(lease)
        assert many.lease(1, wait_ms=WAIT_MS).node_id == "box-c"
        assert many.named("LeaseAcquired") == ["r2"]


def test_the_log_tells_what_a_waiter_avoids_and_its_place_ends_without_a_trace(two: Desk) -> None:
    held = two.fill()
    two.waits(1, avoid=("box-c", "box-x"))
    two.waits(2)
    two.world.check()
    told = [event.data["waiter"] for event in two.world.events if event.type == "LeaseQueued"]
    assert [waiter["avoid"] for waiter in told] == [["box-c", "box-x"], []]
    for number in (1, 2):
        two.world.run(two.world.backend.cancel(request(number, SMALL)))
    counts = two.world.run(two.world.client.hgetall(two.world.keys.key("counts")))
    assert counts == {}, "a count of waiters that are gone"
    assert len(held) == two.slots


@pytest.mark.parametrize(("avoid", "unloaded"), [((), False), (("box-c",), True)])
def test_a_resident_model_stays_for_those_alone_who_may_get_its_node(
    two: Desk, avoid: tuple[str, ...], unloaded: bool
) -> None:
    two.world.call("cordon", {"node_id": "box-e", "why": "work", "by": "op", "until_ms": 0})
    held = [two.lease(100 + number) for number in range(2)]
    there = (resident(key_of("small:7b"), 30),)
    two.world.observe("box-c", there)
    two.waits(1, SMALL, avoid=avoid)
    for lease in held:
        two.release(lease)
    two.world.clock.set(two.world.clock.now_ms + 10)
    two.world.observe("box-c", there)
    answer = two.ask(2, LARGE, priority="high")
    if unloaded:
        assert answer.lease.unload_first == (key_of("small:7b"),)
    else:
        assert "stays" in [one.why for one in answer.nodes]


@pytest.mark.parametrize(("avoided", "kept"), [("box-c", "box-e"), ("box-e", "box-c")])
def test_a_waiter_reserves_no_node_that_it_avoids(two: Desk, avoided: str, kept: str) -> None:
    for node_id, foreign in (("box-c", 55), ("box-e", 70)):
        two.world.observe(node_id, (resident("other/model:x", foreign, own=False),))
    for number, other in enumerate((avoided, kept)):
        two.lease(100 + number, avoid=(other,))
    two.waits(1, MEDIUM, avoid=(avoided,))
    two.world.check()
    (reserved,) = [event for event in two.world.events if event.type == "NodeReserved"]
    assert reserved.data["node_id"] == kept
    assert two.lease(2).node_id == avoided, "nobody waits for that one"
    refused = two.ask(3, avoid=(avoided,))
    assert [one.reason for one in refused.nodes if one.node_id == kept] == ["reserved"]
