"""What was asked for and given, how waits ended, what each node can hold: by hand-made events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aibs.projections.capacity import Capacity
from aibs.projections.engine import UnusableDocument
from aibs.projections.leaks import ENDED_MAX, Leaks
from aibs.projections.leases import ACKNOWLEDGED_FOR_MS
from aibs.projections.recent import EVENTS_MAX, Recent
from aibs.projections.waits import Waits
from aibs.projections.workload import OTHER, SERIES_MAX, Workload
from tests.recorded_events import acquired, declared, ended, event
from tests.unit.test_timeline import WAITER

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Fold

MINUTE_MS = 60_000
SERIES = "llama3:8b|box-c|prod"


def read(fold: Fold, *events: Event) -> Any:
    for one in events:
        fold.apply(one)
    assert not fold.unread, fold.last_unread
    return fold


def queued(seq: int, at_ms: int, number: int) -> Event:
    waiter = {
        **WAITER,
        "request_key": f"k{number}",
        "class": "low",
        "number": number,
        "arrival_ms": at_ms,
        "wait_deadline_ms": at_ms + 90_000,
    }
    data = {"waiter": waiter, "reason": "no_slot", "reasons": [], "others": {}}
    return event(seq, at_ms, "LeaseQueued", data)


def wait_ended(seq: int, at_ms: int, number: int, how: str) -> Event:
    data = {"request_key": f"k{number}", "how": how, "waited_ms": 5}
    return event(seq, at_ms, "WaitEnded", data)


def denied(seq: int, at_ms: int, *, lane: str = "m|x", count: int = 0) -> Event:
    data: dict[str, Any] = {"environment": "prod", "lane": lane, "reason": "no_slot"}
    if count:
        return event(seq, at_ms, "DenialsCounted", {**data, "count": count, "since_ms": at_ms})
    more = {"requester": "app", "request_id": f"r{seq}", "reasons": [], "others": {}}
    return event(seq, at_ms, "LeaseDenied", {**data, **more})


# --- waits


def test_each_wait_is_told_with_who_waited_why_and_how_it_ended() -> None:
    waits = read(
        Waits(),
        queued(1, 1_000, 1),
        queued(2, 2_000, 2),
        wait_ended(3, 3_000, 1, "granted"),
        wait_ended(4, 4_000, 2, "timed_out"),
        # One of before the log's beginning is counted, and tells no more.
        wait_ended(5, 5_000, 9, "granted"),
    )
    assert waits.counts == {"granted": 2, "timed_out": 1}
    told = [(one.request_key, one.priority, one.reason, one.how) for one in waits.ended]
    assert told == [("k1", "low", "no_slot", "granted"), ("k2", "low", "no_slot", "timed_out")]
    assert not waits.queue.waiters
    again = waits.copy()
    assert list(again.ended) == list(waits.ended)
    assert again.counts == waits.counts


# --- workload


def test_what_was_given_is_counted_by_the_minute_and_by_who_got_what_where() -> None:
    workload = read(
        Workload(),
        acquired(1, 1_000, 1),
        acquired(2, 2_000, 2, warm=True),
        ended(3, MINUTE_MS, "LeaseReleased", 1),
        ended(4, MINUTE_MS + 1, "LeaseExpired", 2),
        denied(5, MINUTE_MS + 2),
        denied(6, MINUTE_MS + 3, count=40),
    )
    first, second = workload.minutes
    assert first == (0, {SERIES: {"granted_cold": 1, "granted_warm": 1}})
    assert second[1][SERIES] == {"completed": 1, "expired": 1, "held_ms": 10}
    assert second[1]["m|x||prod"] == {"denied_no_slot": 41}
    assert workload.since(MINUTE_MS - 1) == (first, second)
    assert workload.since(MINUTE_MS) == (second,)


def test_a_lease_that_ended_is_counted_once_and_forgotten() -> None:
    once = ended(2, 2_000, "LeaseReleased", 1)
    workload = read(Workload(), acquired(1, 1_000, 1), once, once)
    assert workload.minutes[-1][1][SERIES]["completed"] == 1
    assert workload.state()["series"] == {}


def test_a_clock_that_steps_back_begins_no_minute_again() -> None:
    workload = read(Workload(), denied(1, 2 * MINUTE_MS), denied(2, 1), denied(3, 2 * MINUTE_MS))
    ((begun, counts),) = workload.minutes
    assert (begun, counts["m|x||prod"]) == (2 * MINUTE_MS, {"denied_no_slot": 3})


def test_more_series_than_a_minute_has_room_for_are_counted_together() -> None:
    workload = Workload()
    for n in range(SERIES_MAX + 10):
        read(workload, denied(n + 1, 1, lane=f"m|{n}"))
    counts = workload.minutes[-1][1]
    assert len(counts) == SERIES_MAX + 1
    assert counts[OTHER] == {"denied_no_slot": 10}


# --- the newest lines, and leaks


def test_the_newest_lines_are_the_newest_also_after_they_were_read_back() -> None:
    recent = Recent()
    for n in range(1, EVENTS_MAX + 1):
        read(recent, denied(n, n))
    again = read(recent.copy(), denied(EVENTS_MAX + 1, EVENTS_MAX + 1))
    lines = again.lines()
    assert len(lines) == EVENTS_MAX
    assert [lines[0]["seq"], lines[-1]["seq"]] == [2, EVENTS_MAX + 1]


def test_the_newest_ends_are_remembered_and_so_many_of_them() -> None:
    leaks = Leaks()
    for n in range(ENDED_MAX + 3):
        read(leaks, acquired(2 * n + 1, n, n), ended(2 * n + 2, n, "LeaseExpired", n))
    assert len(leaks.ended) == ENDED_MAX
    assert "l2" not in leaks.ended
    assert "l3" in leaks.ended
    assert (leaks.unlisted, leaks.expired_unreleased) == (3, ENDED_MAX + 3), "not listed, counted"
    # They count for as long as one of those that are listed does.
    names, seq = list(leaks.ended), 2 * ENDED_MAX + 7
    leaks = leaks.copy()
    read(leaks, acknowledged(seq, 1, *names[1:]))
    assert leaks.expired_unreleased == 4
    read(leaks, acknowledged(seq + 1, 1, names[0]))
    assert leaks.expired_unreleased == 0
    assert len(leaks.ended) == ENDED_MAX


def acknowledged(seq: int, at_ms: int, *lease_ids: str) -> Event:
    return event(seq, at_ms, "LeakAcknowledged", {"leases": list(lease_ids), "by": "ann"})


def test_what_expired_is_told_until_it_is_acknowledged_however_old_it_is() -> None:
    leaks = read(
        Leaks(),
        acquired(1, 1, 1),
        acquired(2, 1, 2),
        ended(3, 10, "LeaseExpired", 1),
        ended(4, 10, "LeaseReaped", 2, why="holder_restarted"),
    )
    # Many others end otherwise, and long after.
    for n in range(3, ENDED_MAX + 4):
        read(leaks, acquired(2 * n, 20, n), ended(2 * n + 1, 20, "LeaseReaped", n))
    leaks = leaks.copy()
    leaks.since_ms = 10**12
    assert set(leaks.ended) == {"l1"}, "what was reaped is told since the moment asked for"
    assert [one.lease_id for one in leaks.unacknowledged()] == ["l1"]
    assert leaks.expired_unreleased == 1
    read(leaks, acknowledged(20_000, 30, "l1"))
    assert (leaks.unacknowledged(), leaks.expired_unreleased, leaks.ended) == ((), 0, {})
    leaks.since_ms = 10
    assert leaks.ended["l1"].acknowledged
    # The names that were acknowledged are forgotten after a week; what was known stays known.
    read(leaks, acknowledged(20_001, 31 + ACKNOWLEDGED_FOR_MS, "other"))
    assert "l1" not in leaks.acknowledged
    assert leaks.unacknowledged() == ()


def test_a_lease_that_was_known_while_it_was_overdue_leaks_no_more_when_it_ends() -> None:
    leaks = read(Leaks(), acquired(1, 1, 1), acknowledged(2, 2, "l1"), ended(3, 3))
    assert leaks.ended["l1"].acknowledged
    assert leaks.expired_unreleased == 0


def test_leaks_of_an_older_release_are_told_apart_by_what_was_acknowledged() -> None:
    leaks = read(Leaks(), acquired(1, 1, 1), acquired(2, 1, 2), acquired(3, 1, 3), ended(4, 9))
    read(leaks, ended(5, 9, "LeaseExpired", 2), ended(6, 9, "LeaseReaped", 3))
    kept = leaks.document()
    state = kept["state"]
    told = [one[:-1] for one in (*state.pop("expired"), *state.pop("ended"))]
    old_state = {**state, "ended": told, "acknowledged": {"l2": 9}}
    del old_state["unlisted"]
    old = {**kept, "version": 1, "state": old_state}
    found = Leaks.from_document(old)
    found.since_ms = 10**12
    assert set(found.ended) == {"l1"}
    found.since_ms = 0
    assert found.ended["l2"].acknowledged
    assert set(found.ended) == {"l1", "l2", "l3"}
    with pytest.raises(UnusableDocument, match="is of version 3, this release reads 2"):
        Leaks.from_document({**kept, "version": 3})


def test_leaks_forget_an_acknowledgement_after_a_week_as_the_script_does() -> None:
    leaks = read(Leaks(), acknowledged(1, 1, "a"), acknowledged(2, ACKNOWLEDGED_FOR_MS, "b"))
    assert set(leaks.acknowledged) == {"a", "b"}
    read(leaks, acknowledged(3, ACKNOWLEDGED_FOR_MS + 1, "c"))
    assert set(leaks.acknowledged) == {"b", "c"}


# --- capacity


def marked(seq: int, at_ms: int, kind: str, **more: Any) -> Event:
    return event(seq, at_ms, kind, {"node_id": "box-c", "why": "fans", "by": "ann", **more})


def test_a_cordon_and_a_trip_close_a_node_until_their_time() -> None:
    capacity = read(
        Capacity(),
        declared(1, 1),
        marked(2, 2, "NodeCordoned", until_ms=100),
        marked(3, 3, "NodeTripped", reopen_at_ms=200, backoff_ms=10),
    )

    def closed(at_ms: int) -> set[str]:
        return set(capacity.node_at("box-c", at_ms).closed_by) - {"stale_residency"}

    assert closed(99) == {"node_cordoned", "node_tripped"}
    assert closed(100) == {"node_tripped"}
    assert closed(200) == set()
    read(capacity, marked(4, 4, "NodeCordoned", until_ms=None))
    assert closed(10**12) == {"node_cordoned"}


def test_leases_of_the_same_model_share_its_heavier_weight() -> None:
    capacity = read(
        Capacity(),
        declared(1, 1),
        acquired(2, 2, 1, weight_bytes=9),
        acquired(3, 3, 2, weight_bytes=7),
    )
    assert capacity.node_at("box-c", 4).leased_bytes == 9


def test_leases_of_where_a_node_was_before_take_no_slot_of_where_it_is() -> None:
    capacity = read(
        Capacity(),
        declared(1, 1),
        acquired(2, 2, 1),
        declared(3, 3, url="http://c:2", revision=2),
    )
    node = capacity.node_at("box-c", 4)
    assert (node.slots_used, node.leased_bytes, node.leases) == (0, 0, ())
    # It ends without a slot that would drain there.
    read(capacity, ended(4, 5, "LeaseExpired", 1))
    assert capacity.node_at("box-c", 6).slots_used == 0
