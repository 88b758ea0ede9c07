"""What every back end does where nodes fail: closed ones, their probes, and their return.

As `placement_scenarios`: each is run over every back end, and all answers are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.placement.values import NodeReason
from tests.placement_scenarios import SMALL
from tests.property.placement_world import request

if TYPE_CHECKING:
    from tests.placement_scenarios import Book, Scenario

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


NODE_SCENARIOS: tuple[Scenario, ...] = (
    a_node_is_tripped_once_and_gets_nothing_until_it_is_tried,
    one_probe_tries_a_tripped_node_and_its_completion_restores_it,
    a_probe_that_fails_closes_its_node_for_twice_as_long,
)
