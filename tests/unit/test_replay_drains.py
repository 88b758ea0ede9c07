"""A slot that ended without a release, in the past: it drains until time and a poll say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aibs.projections.capacity import Capacity
from aibs.projections.coordination import Coordination
from aibs.projections.engine import UnusableDocument
from tests.recorded_events import acquired, declared, ended, observed

if TYPE_CHECKING:
    from aibs.eventstore.events import Event

ENDED_MS, DRAIN_MS = 100_000, 10_000
BACK_MS = ENDED_MS + DRAIN_MS


def folded(*events: Event) -> Coordination:
    state = Coordination()
    state.engine.apply_all(events)
    assert not state.unread, state.last_unread
    return state


def expired(*polls: tuple[int, int], how: str = "LeaseExpired", **more: Any) -> Coordination:
    """A lease that expired, and polls: when each began, and when it was told."""
    return folded(
        declared(1, 80_000),
        acquired(2, 90_000, observed_at_ms=89_000, drain_ms=DRAIN_MS),
        ended(3, ENDED_MS, how, **more),
        *(observed(n, told, begun) for n, (begun, told) in enumerate(polls, 4)),
    )


def ids(state: Coordination, at_ms: int) -> list[str]:
    """In the state, and in the same state kept and read back."""
    found = [one.lease_id for one in state.drains.draining(at_ms)]
    assert [one.lease_id for one in state.copy().drains.draining(at_ms)] == found
    return found


def test_a_slot_drains_until_its_time_is_over() -> None:
    found = expired((ENDED_MS + 1, ENDED_MS + 2))
    assert ids(found, BACK_MS - 1) == ["l1"]
    assert ids(found, BACK_MS) == []


def test_a_slot_drains_on_until_a_later_poll_was_seen() -> None:
    assert ids(expired(), BACK_MS + DRAIN_MS) == ["l1"]
    assert ids(expired((ENDED_MS, BACK_MS)), BACK_MS + DRAIN_MS) == ["l1"]


def test_what_a_holder_gave_back_does_not_drain() -> None:
    assert ids(expired(how="LeaseReleased"), ENDED_MS) == []
    assert ids(expired(how="LeaseReaped", drained=False), ENDED_MS) == []
    assert ids(expired(how="LeaseReaped", drained=True), ENDED_MS) == ["l1"]


def test_a_drain_that_is_over_is_kept_no_longer() -> None:
    # Else every snapshot would carry every drain that ever was.
    assert expired((ENDED_MS + 1, BACK_MS - 1)).drains.held
    assert not expired((ENDED_MS + 1, BACK_MS)).drains.held
    assert not expired((ENDED_MS + 1, BACK_MS - 1), (ENDED_MS + 1, BACK_MS)).drains.held


def test_a_grant_tells_of_a_poll_that_no_event_told_of() -> None:
    found = expired()
    found.apply(acquired(4, BACK_MS, 2, observed_at_ms=ENDED_MS + 1))
    assert ids(found, BACK_MS) == []


def test_another_nodes_poll_ends_no_drain() -> None:
    found = expired()
    found.apply(observed(4, BACK_MS, BACK_MS, node_id="box-e"))
    assert ids(found, BACK_MS) == ["l1"]


def test_a_node_that_moved_takes_its_slots_with_it() -> None:
    found = expired()
    found.apply(declared(4, ENDED_MS + 1, url="http://c:2"))
    assert ids(found, ENDED_MS + 1) == []
    # So does one whose lease ended only then.
    late = folded(
        declared(1, 80_000), acquired(2, 90_000), declared(3, 95_000, url="http://c:2"), ended(4)
    )
    assert ids(late, ENDED_MS) == []


def test_a_node_that_left_and_came_back_must_be_seen_anew() -> None:
    found = expired((ENDED_MS + 1, ENDED_MS + 2))
    found.apply(declared(5, ENDED_MS + 3, node_id="box-e"))
    found.apply(declared(6, ENDED_MS + 4))
    assert ids(found, BACK_MS) == ["l1"]
    found.apply(observed(7, BACK_MS, BACK_MS - 1))
    assert ids(found, BACK_MS) == []


def test_what_drains_on_nodes_that_are_gone_is_not_kept_for_ever() -> None:
    found = expired()
    found.apply(declared(4, BACK_MS - 1, node_id="box-e"))
    assert found.drains.held
    found.apply(declared(5, BACK_MS, node_id="box-e", revision=3))
    assert not found.drains.held


def test_a_state_that_an_older_release_kept_is_read_and_says_what_it_does_not_know() -> None:
    now = expired((ENDED_MS + 1, ENDED_MS + 2))
    old = now.document()
    old["version"] = 1
    del old["state"]["drains"]
    del old["state"]["ownership"]["ended_at_ms"]
    kept = Coordination.from_document(old)
    assert kept.drains.unknown_at_ms == ENDED_MS + 2
    assert kept.drains.seen == now.drains.seen
    assert ids(kept, ENDED_MS + 2) == []
    assert kept.last_id == now.last_id
    # It is of this release from then on, and goes on saying so.
    assert kept.document()["version"] == 2
    assert kept.copy().drains.unknown_at_ms == ENDED_MS + 2
    old["version"] = 3
    with pytest.raises(UnusableDocument, match="is of version 3, this release reads 2"):
        Coordination.from_document(old)


def test_capacity_of_an_older_release_lets_slots_rest_for_their_time() -> None:
    capacity = Capacity()
    for event in (
        declared(1, 80_000),
        observed(2, 85_000, 85_000),
        acquired(3, 90_000, drain_ms=DRAIN_MS),
        ended(4, ENDED_MS),
    ):
        capacity.apply(event)
    assert capacity.node_at("box-c", BACK_MS).slots_draining == 1, "no later poll was seen"
    # Who knows of polls that the log does not tell of, says so.
    for polled_ms, draining in ((ENDED_MS, 1), (ENDED_MS + 1, 0)):
        (node,) = capacity.at(BACK_MS, {"box-c": polled_ms})
        assert node.slots_draining == draining
    old = capacity.document()
    old["version"] = 1
    for node in old["state"]["nodes"].values():
        del node["seen_at_ms"]
        for one in node["draining"]:
            del one["ended_at_ms"]
    kept = Capacity.from_document(old)
    assert kept.node_at("box-c", BACK_MS - 1).slots_draining == 1
    assert kept.node_at("box-c", BACK_MS).slots_draining == 0


def test_capacity_lets_a_slot_rest_until_time_and_a_later_poll_say_so() -> None:
    capacity = Capacity()
    for event in (
        declared(1, 80_000),
        acquired(2, 90_000, observed_at_ms=89_000, drain_ms=DRAIN_MS),
        ended(3, ENDED_MS),
        observed(4, ENDED_MS + 5, ENDED_MS + 5),
    ):
        capacity.apply(event)
    assert capacity.node_at("box-c", BACK_MS - 1).slots_draining == 1
    assert capacity.node_at("box-c", BACK_MS).slots_draining == 0
    # A node that comes back has its resting slots, and must be seen anew.
    capacity.apply(declared(5, ENDED_MS + 6, node_id="box-e"))
    capacity.apply(declared(6, ENDED_MS + 7, revision=3))
    assert capacity.node_at("box-c", BACK_MS).slots_draining == 1
    # One that moved does not.
    capacity.apply(declared(7, ENDED_MS + 8, revision=4, url="http://c:2"))
    assert capacity.node_at("box-c", ENDED_MS + 8).slots_draining == 0
