"""Slots that drain, live and by the log: which difference is one, and which only time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aibs.eventstore.placement_state import Drain, LiveParts
from aibs.eventstore.state import PoolState, Stamp
from aibs.history.agreement import (
    DIFFERENCES_MAX,
    differences_of,
    differences_of_drains,
    residency_notes,
)
from aibs.projections.coordination import Coordination
from tests.recorded_events import acquired, declared, ended, observed

ENDED_MS, UNTIL_MS = 100_000, 110_000
TOLD = Drain("l1", "box-c", "registry.ollama.ai/library/llama3:8b", 7 * 10**9, ENDED_MS, UNTIL_MS)


def folded(*, lapsed: bool = True) -> Coordination:
    state = Coordination()
    state.engine.apply_all(
        [declared(1, 80_000), observed(2, 85_000, 85_000), acquired(3, 90_000, drain_ms=10_000)]
    )
    if lapsed:
        state.apply(ended(4, ENDED_MS))
    assert not state.unread, state.last_unread
    return state


def live(*drains: Drain, now_ms: int = 101_000, seen_ms: int | None = 99_000) -> LiveParts:
    parts: dict[str, Any] = {name: {} for name in LiveParts.__dataclass_fields__}
    stamps = {} if seen_ms is None else {"box-c": stamp(seen_ms)}
    parts |= dict.fromkeys(("pool", "term", "fleet"))
    return LiveParts(**{**parts, "now_ms": now_ms, "drains": drains, "stamps": stamps})


def stamp(seen_ms: int) -> Stamp:
    return Stamp(
        observed_at_ms=seen_ms, observed_fence=1, fence=1, seq=1, fingerprint="f1",
        base_url="u", healthy=True, reason="", own_bytes=0, foreign_bytes=0,
        unaccounted=False, failed_in_row=0, epoch=0,
    )  # fmt: skip


def told_of(state: Coordination) -> Drain:
    one = state.drains.held["l1"]
    return Drain(
        one.lease_id, one.node_id, one.key, one.weight_bytes, one.ended_at_ms, one.until_ms
    )


def test_the_same_drain_is_no_difference() -> None:
    state = folded()
    assert differences_of_drains(live(told_of(state)), state) == []


@pytest.mark.parametrize(
    ("now_ms", "seen_ms", "missing"),
    [
        (UNTIL_MS - 1, ENDED_MS + 1, True),
        (UNTIL_MS, ENDED_MS, True),
        (UNTIL_MS, None, True),
        # Over, by time and by a later poll: whether it is still there says nothing.
        (UNTIL_MS, ENDED_MS + 1, False),
    ],
)
def test_a_drain_that_the_log_tells_must_be_live_until_it_is_over(
    now_ms: int, seen_ms: int | None, missing: bool
) -> None:
    found = differences_of_drains(live(now_ms=now_ms, seen_ms=seen_ms), folded())
    assert found == (
        ["The drain of lease l1 is told by the log, and is not live."] if missing else []
    )


@pytest.mark.parametrize(
    ("now_ms", "seen_ms", "unexplained"),
    [
        (UNTIL_MS - 1, ENDED_MS + 1, True),
        (UNTIL_MS, ENDED_MS, True),
        (UNTIL_MS - 1, None, True),
        (UNTIL_MS, ENDED_MS + 1, False),
        # Its node is gone: nothing will tell that it is over but time.
        (UNTIL_MS, None, False),
    ],
)
def test_a_drain_that_is_live_must_be_told_by_the_log_until_it_is_over(
    now_ms: int, seen_ms: int | None, unexplained: bool
) -> None:
    state = folded(lapsed=False)
    found = differences_of_drains(live(TOLD, now_ms=now_ms, seen_ms=seen_ms), state)
    assert found == (
        ["The drain of lease l1 is live, and the log does not tell of it."] if unexplained else []
    )


def test_a_node_that_moved_takes_its_drains_along_in_its_own_time() -> None:
    state = folded()
    state.apply(declared(5, ENDED_MS + 1, url="http://c:2", revision=2))
    assert differences_of_drains(live(seen_ms=None), state) == []
    assert differences_of_drains(live(told_of(state), seen_ms=None), state) == []


def test_what_differs_is_named() -> None:
    state = folded()
    other = Drain("l1", "box-e", told_of(state).key, 7 * 10**9, ENDED_MS, UNTIL_MS + 1)
    assert differences_of_drains(live(other), state) == [
        "The drain of lease l1 differs from what the log tells, in node_id, until_ms."
    ]


def test_a_log_that_ends_elsewhere_or_has_holes_is_a_difference() -> None:
    state = folded()
    pool = PoolState("p", "1", "r", "open", 0, state.seq + 1, state.last_id, None)
    found = differences_of(replace(live(), pool=pool), state)
    assert f"The log ends at number {state.seq}, the pool at {state.seq + 1}." in found
    state.apply(observed(9, ENDED_MS + 1, ENDED_MS + 1))
    assert "The log has 1 holes in its numbers." in differences_of(live(), state)


def test_of_very_many_differences_the_first_are_told_and_the_rest_counted() -> None:
    many = {f"k{n:03}": n for n in range(100)}
    found = differences_of(replace(live(), acks=many), Coordination())
    assert len(found) == DIFFERENCES_MAX + 1
    assert found[-1] == f"And {100 - DIFFERENCES_MAX} more differences."


def test_a_model_under_another_name_is_resident_for_the_lease_that_wants_it() -> None:
    key = "registry.ollama.ai/library/llama3:8b"
    model = {"name": "copy:1", "key": "copy", "ownership": "own", "roster_keys": [key]}
    lease = {"node_id": "box-c", "key": key}
    parts = replace(live(), nodes={"box-c": {"models": [model]}}, leases={"l1": lease})
    assert residency_notes(parts) == []
    (note,) = residency_notes(replace(parts, leases={}))
    assert (note.kind, note.model) == ("resident_unleased", "copy:1")
    (note,) = residency_notes(replace(parts, nodes={}))
    assert note.kind == "leased_not_resident"
