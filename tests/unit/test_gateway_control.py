"""The control plane on hand-made values: readiness, tallies, counters, lease ids, `Once`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from aibs.clock import SystemClock
from aibs.eventstore.events.envelope import Event
from aibs.eventstore.keys import Keys
from aibs.eventstore.state import PoolState, Stamp, TermState
from aibs.fleet import Fleet, Worker
from aibs.gateway.control.log_counters import LogCounters, Totals
from aibs.gateway.control.names import ModelNames
from aibs.gateway.control.placement_bodies import (
    ReleaseBody,
    call_id_of,
    new_lease_id,
    request_id_of,
)
from aibs.gateway.control.pool_view import DeclaredFleet, PoolView
from aibs.gateway.control.samples import Polls
from aibs.gateway.control.tally import LABELS_MAX, OTHER, Count, Spread
from aibs.gateway.once import Once

NOW = 1_000_000
STALE = 20_000

STAMP = Stamp(
    observed_at_ms=NOW - 1000,
    observed_fence=1,
    fence=1,
    seq=1,
    fingerprint="f",
    base_url="http://box-c:11434",
    healthy=True,
    reason="",
    own_bytes=0,
    foreign_bytes=0,
    unaccounted=False,
    failed_in_row=0,
    epoch=1,
)
VIEW = PoolView(
    now_ms=NOW,
    read_at_ms=5,
    pool=PoolState("p", "1", "r", "open", 1, 1, "1-1", None),
    term=TermState("owner", 1, NOW + 5000, 8000, NOW, None, None, "1-1"),
    fleet=DeclaredFleet("1-1", "f", {"box-c": {"base_url": "http://box-c:11434"}}),
    stamps={"box-c": STAMP},
    cordons={},
    trips={},
    log_length=1,
)


def hindrances(view: PoolView) -> list[str]:
    found = list(view.hindrances(NOW, STALE))
    assert all(one.detail.endswith(".") for one in found)
    return [one.reason for one in found]


def stamped(**changes: Any) -> PoolView:
    return replace(VIEW, stamps={"box-c": replace(STAMP, **changes)})


@pytest.mark.parametrize(
    ("view", "reasons"),
    [
        (VIEW, []),
        # Whoever loads is open: waiting helps there.
        (stamped(loading=True), []),
        (stamped(observed_at_ms=NOW - STALE - 1), ["stale_residency"]),
        (stamped(observed_at_ms=NOW + 1), ["stale_residency"]),
        (stamped(observed_at_ms=0), ["stale_residency"]),
        (stamped(fingerprint="other"), ["stale_residency"]),
        (stamped(healthy=False), ["node_unhealthy"]),
        (stamped(unaccounted=True), ["unaccounted_resident"]),
        (stamped(epoch=0), ["pool_recovering"]),
        (replace(VIEW, stamps={}), ["stale_residency"]),
        (replace(VIEW, stamps={}, term=None), ["stale_residency", "no_owner"]),
        (replace(VIEW, term=None), []),
        (replace(VIEW, cordons={"box-c": {"until_ms": None}}), ["node_cordoned"]),
        (replace(VIEW, cordons={"box-c": {"until_ms": NOW + 1}}), ["node_cordoned"]),
        (replace(VIEW, cordons={"box-c": {"until_ms": NOW}}), []),
        (replace(VIEW, trips={"box-c": {"reopen_at_ms": NOW + 1}}), ["node_tripped"]),
        (replace(VIEW, trips={"box-c": {"reopen_at_ms": NOW}}), []),
        (replace(VIEW, fleet=DeclaredFleet()), ["stale_residency"]),
        (replace(VIEW, pool=None), ["stale_residency"]),
        (
            replace(VIEW, pool=PoolState("p", "1", "r", "suspect", 1, 1, "1-1", None)),
            ["pool_recovering"],
        ),
    ],
)
def test_what_keeps_every_request_from_being_placed_is_told(
    view: PoolView, reasons: list[str]
) -> None:
    assert hindrances(view) == reasons


def test_one_open_node_is_enough() -> None:
    nodes = {f"box-{n}": {"base_url": ""} for n in range(20)}
    fleet = replace(VIEW.fleet, nodes=nodes)
    view = replace(VIEW, fleet=fleet, stamps={"box-7": STAMP})
    assert hindrances(view) == []
    (told,) = replace(view, stamps={}).hindrances(NOW, STALE)
    assert told.detail.endswith("and 12 more.")


def test_the_servers_time_goes_on_between_two_looks() -> None:
    assert VIEW.server_ms(5 + 700) == NOW + 700


# --- tallies


def test_a_histogram_is_cumulative_and_its_bounds_are_inclusive() -> None:
    spread = Spread(("model",), (0.5, 1))
    for seconds in (0.5, 0.6, 1.0, 7.0):
        spread.observe(("m",), seconds)
    ((labels, buckets, total),) = spread.items()
    assert labels == ("m",)
    assert buckets == [("0.5", 1.0), ("1.0", 3.0), ("+Inf", 4.0)]
    assert total == pytest.approx(9.1)


def test_series_are_bounded_whatever_comes() -> None:
    count, spread = Count(("a", "b")), Spread(("a",), (1,))
    for number in range(LABELS_MAX + 50):
        count.add((str(number), "x"))
        spread.observe((str(number),), 0.1)
    assert len(count.items()) == len(spread.items()) == LABELS_MAX + 1
    assert dict(count.items())[(OTHER, OTHER)] == 50


def test_what_is_forgotten_begins_anew() -> None:
    count = Count(("node", "reason"))
    count.add(("box-c", "timeout"), 3)
    count.add(("box-e", "timeout"))
    count.forget(0, {"box-e"})
    assert count.items() == [(("box-e", "timeout"), 1)]


# --- counters


def test_samples_of_another_release_are_let_pass() -> None:
    polls = Polls(Keys("x"))
    good = {b"node": b"box-c", b"outcome": b"ok", b"latency_ms": b"30"}
    for fields in (good, {**good, b"latency_ms": b"x"}, {b"node": b"box-c"}, {}):
        polls._count((b"1-1", fields))
    ((_, buckets, _),) = polls.durations.items()
    assert buckets[-1] == ("+Inf", 1.0)
    assert not polls.failures.items()


def test_reasons_of_failed_polls_are_bounded() -> None:
    polls = Polls(Keys("x"))
    for number in range(200):
        fields = {b"node": b"box-c", b"outcome": b"r%d" % number, b"latency_ms": b"1"}
        polls._count((b"1-1", fields))
    assert len(polls.failures.items()) == 65
    assert dict(polls.failures.items())["box-c", OTHER] == 136


def _event(type_: str, data: dict[str, Any]) -> Event:
    return Event("1-1", 1, NOW, type_, 1, "a", None, None, data)


def test_counters_count_only_while_they_are_on() -> None:
    totals = Totals()
    names = ModelNames(Fleet(workers=(Worker("w", "llama3:8b"),)))
    counters = LogCounters(totals, names)
    counters.begin_with([("l1", "LLAMA3:8b"), ("l2", "strange:1b")])
    told = counters.handlers()
    reap = {"lease_id": "l1", "held_ms": 2000, "why": "holder_restarted"}
    told["LeaseReaped"](_event("LeaseReaped", reap), reap)
    assert not totals.events.items()
    assert not totals.leases.items()
    counters.on = True
    counters.begin_with([("l1", "LLAMA3:8b"), ("l2", "strange:1b")])
    told["LeaseReaped"](_event("LeaseReaped", reap), reap)
    by_hand = {"lease_id": "l2", "held_ms": 1, "why": "needed"}
    told["LeaseReaped"](_event("LeaseReaped", by_hand), by_hand)
    assert dict(totals.leases.items()) == {("reaped",): 2}
    assert dict(totals.leaked.items()) == {("reaped",): 1}
    assert {labels for labels, _, _ in totals.held.items()} == {("llama3:8b",), (OTHER,)}
    rejected = {"script": "observe", "repeats": 4}
    told["FencedWriteRejected"](_event("FencedWriteRejected", rejected), rejected)
    assert dict(totals.rejected_writes.items()) == {("observe",): 5}


# --- ids


@pytest.mark.parametrize(
    "request_id", ["r1", "a.b-c_d", "x" * 64, "x" * 128, "a b", "ü", "~", "a/b", "", ".", "\u2028"]
)
def test_a_leases_id_carries_its_requests(request_id: str) -> None:
    lease_id = new_lease_id(request_id)
    assert request_id_of(lease_id) == (request_id or None)
    assert all(char.isalnum() or char in ".~_=-" for char in lease_id)
    assert new_lease_id(request_id) != lease_id


@pytest.mark.parametrize(
    "lease_id",
    ["", "x", "0" * 16, f"{'0' * 16}~", f"{'0' * 16}~A", f"{'0' * 16}~__8", f"{'g' * 16}.r"],
)
def test_what_is_no_id_of_ours_carries_nothing(lease_id: str) -> None:
    assert request_id_of(lease_id) is None


def test_a_releases_name_is_safe_in_events_and_stays_the_same() -> None:
    assert call_id_of(ReleaseBody(token="7", call_id="end-1")) == "end-1"
    evil = ReleaseBody(token="7", call_id='","x":"')
    assert call_id_of(evil) == call_id_of(evil)
    assert call_id_of(evil).isalnum()
    assert call_id_of(ReleaseBody(token="7")) == call_id_of(ReleaseBody(token="7"))
    assert call_id_of(ReleaseBody(token="7")) != call_id_of(ReleaseBody(token="8"))


# --- made once


def test_what_fails_is_told_to_all_who_waited_and_is_not_kept() -> None:
    made = 0

    async def make() -> int:
        nonlocal made
        made += 1
        await asyncio.sleep(0.01)
        if made == 1:
            raise ValueError("first")
        return made

    async def run() -> None:
        once = Once(make, SystemClock(), keep_s=60, limit_s=5)
        found = await asyncio.gather(*(once.get() for _ in range(5)), return_exceptions=True)
        assert [str(one) for one in found] == ["first"] * 5
        assert await asyncio.gather(*(once.get() for _ in range(5))) == [2] * 5
        assert await once.get() == 2

    asyncio.run(run())


def test_one_who_leaves_ends_the_making_for_nobody() -> None:
    async def make() -> str:
        await asyncio.sleep(0.02)
        return "made"

    async def run() -> None:
        once = Once(make, SystemClock(), keep_s=60, limit_s=5)
        leaving, staying = asyncio.create_task(once.get()), asyncio.create_task(once.get())
        await asyncio.sleep(0.005)
        leaving.cancel()
        assert await staying == "made"
        slow = Once(lambda: asyncio.sleep(60), SystemClock(), keep_s=1, limit_s=0.01)
        with pytest.raises(TimeoutError):
            await slow.get()
        waiting = asyncio.create_task(Once(make, SystemClock(), keep_s=1, limit_s=5).get())
        waiting.cancel()
        await once.close()

    asyncio.run(run())
