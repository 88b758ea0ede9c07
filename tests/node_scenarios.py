"""What every back end does where nodes fail: closed ones, their probes, and who avoids them.

As `placement_scenarios`: each is run over every back end, and all answers are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.placement.values import Granted, NodeReason
from tests.placement_scenarios import SMALL
from tests.property.placement_world import request

if TYPE_CHECKING:
    from aibs.placement.values import Lease
    from tests.placement_scenarios import Book, Scenario

ON_C = "r|deep"
"""A role of box-c's alone."""

BOXES = ("box-c", "box-e")
REOPENS_MS = 10_000
"""When a node that tripped is tried again the first time."""


def trip(book: Book, node_id: str) -> bool:
    """One trip: whether it closed the node."""
    closed: bool = book.bench.run(book.bench.backend.trip(node_id, "resets"))
    book.answers.append(closed)
    return closed


def a_node_is_tripped_once_and_gets_nothing_until_it_is_tried(book: Book) -> None:
    assert trip(book, "box-e")
    assert not trip(book, "box-e"), "it was closed already"
    assert not trip(book, "box-x"), "nobody declared it"
    nodes = [book.lease(request(number, SMALL)).node_id for number in range(2)]
    assert nodes == ["box-c", "box-c"]
    denied = book.refused(request(2, SMALL))
    assert NodeReason("box-e", "node_tripped", wait_ms=REOPENS_MS) in denied.nodes


def one_probe_tries_a_tripped_node_and_its_completion_restores_it(book: Book) -> None:
    trip(book, "box-e")
    book.later(REOPENS_MS)
    probe = book.lease(request(1, SMALL))
    assert (probe.node_id, probe.probe) == ("box-e", True)
    assert book.lease(request(2, SMALL)).node_id == "box-c", "one probe at a time"
    book.release(probe, outcome="completed")
    after = [book.lease(request(number, SMALL)) for number in range(3, 7)]
    assert sum(lease.node_id == "box-e" for lease in after) == 3
    assert not any(lease.probe for lease in after)


def a_probe_that_fails_closes_its_node_for_twice_as_long(book: Book) -> None:
    trip(book, "box-e")
    book.later(REOPENS_MS)
    probe = book.lease(request(1, SMALL))
    assert probe.probe
    book.release(probe, outcome="failed")
    assert not trip(book, "box-e"), "it is closed"
    for number in range(2, 4):
        assert book.lease(request(number, SMALL)).node_id == "box-c"
    book.later(REOPENS_MS)
    denied = book.refused(request(4, SMALL))
    assert NodeReason("box-e", "node_tripped", wait_ms=REOPENS_MS) in denied.nodes
    book.later(REOPENS_MS)
    assert book.lease(request(5, SMALL)).probe


def _avoided(node_id: str) -> NodeReason:
    return NodeReason(node_id, "node_unhealthy", why="avoided")


def a_request_gets_no_node_that_it_avoids(book: Book) -> None:
    # box-e has the most free slots, and would be the first.
    for number in range(2):
        assert book.lease(request(number, SMALL, avoid=("box-e",))).node_id == "box-c"
    denied = book.refused(request(2, SMALL, avoid=("box-e", "box-x")))
    assert denied.reason == "no_slot"
    assert set(denied.nodes) == {NodeReason("box-c", "no_slot"), _avoided("box-e")}
    assert book.lease(request(3, SMALL)).node_id == "box-e"


def the_same_request_with_other_nodes_to_avoid_is_the_same(book: Book) -> None:
    first = book.lease(request(1, SMALL))
    again = book.ask(request(1, SMALL, avoid=(first.node_id,)), lease_id="another")
    assert isinstance(again, Granted)
    assert again.lease.lease_id == first.lease_id


def who_avoids_every_node_is_told_at_once_and_does_not_wait(book: Book) -> None:
    denied = book.refused(request(1, SMALL, wait_ms=60_000, avoid=BOXES))
    assert denied.reason == "node_unhealthy"
    assert set(denied.nodes) == {_avoided("box-c"), _avoided("box-e")}
    denied = book.refused(request(2, ON_C, wait_ms=60_000, avoid=("box-c",)))
    assert denied.reason == "node_unhealthy", "another node's role is not one that it may get"
    assert _avoided("box-c") in denied.nodes
    assert [word for word, _, _ in book.refresh(request(1, SMALL), request(2, ON_C))] == [
        "unknown",
        "unknown",
    ]


def _release_one_on(book: Book, node_id: str, held: list[Lease]) -> None:
    lease = next(one for one in held if one.node_id == node_id)
    held.remove(lease)
    book.release(lease)


def an_older_waiter_does_not_block_a_node_that_it_avoids(book: Book) -> None:
    held = book.fill()
    older = request(1, SMALL, wait_ms=60_000, priority="high", avoid=("box-c",))
    book.waits(older)
    _release_one_on(book, "box-c", held)
    assert book.lease(request(2, SMALL)).node_id == "box-c"
    book.waits(older)
    _release_one_on(book, "box-e", held)
    denied = book.refused(request(3, SMALL))
    assert NodeReason("box-e", "reserved", why="queue") in denied.nodes
    assert book.lease(older).node_id == "box-e"


def a_waiter_keeps_the_nodes_that_it_avoids(book: Book) -> None:
    held = book.fill()
    book.waits(request(1, SMALL, wait_ms=60_000, avoid=("box-c",)))
    _release_one_on(book, "box-c", held)
    book.waits(request(1, SMALL, wait_ms=60_000))
    _release_one_on(book, "box-e", held)
    assert book.lease(request(1, SMALL, wait_ms=60_000)).node_id == "box-e"


NODE_SCENARIOS: tuple[Scenario, ...] = (
    a_node_is_tripped_once_and_gets_nothing_until_it_is_tried,
    one_probe_tries_a_tripped_node_and_its_completion_restores_it,
    a_probe_that_fails_closes_its_node_for_twice_as_long,
    a_request_gets_no_node_that_it_avoids,
    the_same_request_with_other_nodes_to_avoid_is_the_same,
    who_avoids_every_node_is_told_at_once_and_does_not_wait,
    an_older_waiter_does_not_block_a_node_that_it_avoids,
    a_waiter_keeps_the_nodes_that_it_avoids,
)
