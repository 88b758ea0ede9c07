"""Who held the term, how the pool was, what was seen of nodes: by hand-made events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aibs.projections.coordination import Coordination
from aibs.projections.engine import Engine
from aibs.projections.health_history import SAMPLES_MAX, HealthHistory
from aibs.projections.terms import Terms
from tests.recorded_events import declared, elected, event, observed, term_over

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Fold


def read(fold: Fold, *events: Event) -> Any:
    for one in events:
        fold.apply(one)
    assert not fold.unread, fold.last_unread
    return fold


def resigned(seq: int, at_ms: int, fence: int) -> Event:
    data = {"owner": f"o{fence}", "fence": fence, "deadline_ms": at_ms + 5_000, "how": "resigned"}
    return event(seq, at_ms, "OwnerResigned", data, fence)


def rejected(seq: int, at_ms: int, repeats: int) -> Event:
    data = {
        "script": "observe",
        "owner": "o1",
        "fence": 1,
        "current_owner": "o2",
        "current_fence": 2,
        "repeats": repeats,
    }
    return event(seq, at_ms, "FencedWriteRejected", data, 2)


def pool(seq: int, kind: str, epoch: int, **more: Any) -> Event:
    return event(seq, seq, kind, {"run_id": f"r{epoch}", "epoch": epoch, **more})


# --- the pool and its owner


def test_a_pool_that_is_open_again_is_in_the_epoch_that_its_reopening_tells() -> None:
    # Stamps of an older epoch count for nothing: a wrong one would let grants rest on them.
    state = read(
        Coordination(),
        pool(1, "PoolCreated", 0, pool_id="p", state_version="1"),
        pool(2, "PoolSuspect", 1, why="server_restarted", recover_at_ms=9),
    )
    assert (state.identity.state, state.identity.run_id, state.identity.epoch) == (
        "suspect",
        "r1",
        1,
    )
    assert state.identity.suspicions == 1
    read(state, pool(3, "PoolReopened", 2, why="recovered"))
    assert (state.identity.state, state.identity.run_id, state.identity.epoch) == ("open", "r2", 2)


@pytest.mark.parametrize(("fence", "interleaved"), [(3, 0), (2, 1), (1, 1)])
def test_a_fence_that_did_not_grow_is_counted_as_what_never_may_be(
    fence: int, interleaved: int
) -> None:
    state = read(Coordination(), elected(1, 1, 2), elected(2, 2, fence))
    assert state.ownership.interleaved == interleaved


def test_refused_writes_are_counted_with_those_that_no_event_told_of() -> None:
    state, terms = Coordination(), Terms()
    for fold in (state, terms):
        read(fold, rejected(1, 1, 0), rejected(2, 2, 4))
    assert state.ownership.rejected_writes == 6
    assert terms.rejected_writes == 6
    assert [one.repeats for one in terms.rejected] == [0, 4]


def test_an_expired_term_was_over_at_its_deadline_and_a_resigned_one_at_once() -> None:
    terms = read(
        Terms(),
        elected(1, 1_000, 1),
        term_over(2, 9_000, 6_000, 1),
        elected(3, 9_000, 2),
        resigned(4, 20_000, 2),
        elected(5, 20_000, 3),
    )
    assert [(one.fence, one.ended_at_ms, one.how) for one in terms.terms] == [
        (1, 6_000, "expired"),
        (2, 20_000, "resigned"),
        (3, None, None),
    ]
    # Nobody held it from a deadline to the next election; one that follows at once leaves no gap.
    assert terms.gaps() == ((6_000, 9_000),)
    read(terms, resigned(6, 30_000, 3))
    assert terms.gaps() == ((6_000, 9_000), (30_000, 0))
    assert terms.copy().gaps() == terms.gaps()


def test_the_end_of_another_term_than_the_newest_ends_nothing() -> None:
    terms = read(Terms(), elected(1, 1_000, 2), term_over(2, 2_000, 1_500, 1))
    assert terms.terms[-1].ended_at_ms is None


# --- nodes


def failed(seq: int, at_ms: int, *, healthy: bool = False, reason: str = "timeout") -> Event:
    data = {
        "node_id": "box-c",
        "base_url": "http://box-c:11434",
        "healthy": healthy,
        "reason": reason,
        "failed_in_row": 2,
    }
    return event(seq, at_ms, "NodeHealthChanged", data, 1)


def test_a_node_that_failed_says_why_and_keeps_what_was_seen_there() -> None:
    state = read(
        Coordination(),
        declared(1, 1),
        observed(2, 2, 2, foreign_bytes=7),
        failed(3, 3, reason="refused"),
    )
    node = state.residency.nodes["box-c"]
    assert (node.healthy, node.reason, node.foreign) == (False, "refused", 7)
    assert node.event_id == "3-3"


def test_a_nodes_history_is_its_newest_looks_and_leaves_with_it() -> None:
    history = HealthHistory()
    looks = SAMPLES_MAX + 5
    for n in range(1, looks):
        history.apply(observed(n, n, n))
    read(history, failed(looks, looks))
    samples = history.of("box-c")
    assert (len(samples), samples[-1].healthy, samples[-1].reason) == (
        SAMPLES_MAX,
        False,
        "timeout",
    )
    assert [one.at_ms for one in history.of("box-c", looks - 1)] == [looks - 1, looks]
    # One that was read back goes on being bounded.
    again = history.copy()
    read(again, observed(looks + 1, looks + 1, looks + 1))
    assert len(again.of("box-c")) == SAMPLES_MAX
    read(again, declared(looks + 2, looks + 2, node_id="box-e"))
    assert again.nodes() == ()


def test_folds_that_stand_at_different_events_are_not_read_on_as_one() -> None:
    # One of them would miss what the other has read, and nobody would know.
    first, second = read(Terms(), elected(1, 1, 1)), Terms()
    with pytest.raises(ValueError, match="stand at different events"):
        Engine.joining((first, second))
