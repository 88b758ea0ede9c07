"""What leases, waiters and marks add up to, told by events written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aibs.eventstore.events import Event
from aibs.projections.coordination import Coordination, fold
from aibs.projections.engine import Engine
from aibs.projections.leaks import Leaks
from aibs.projections.leases import ACKNOWLEDGED_FOR_MS
from tests.unit.test_timeline import EVIDENCE, LEASE, MODEL, WAITER

if TYPE_CHECKING:
    from collections.abc import Sequence

Told = tuple[int, str, dict[str, Any]]
TTL_MS = 60_000
HEARTBEAT_MS = 20_000
GB = 10**9


def told(*events: Told) -> list[Event]:
    """Events from (at_ms, type, data), numbered from 1."""
    return [
        Event(f"{seq}-0", seq, at_ms, type_, 1, "a:1:x:y", None, None, data)
        for seq, (at_ms, type_, data) in enumerate(events, 1)
    ]


def read(*events: Told, since_ms: int = 0) -> tuple[Coordination, Leaks]:
    """Both folds of those events, of which none may be unreadable."""
    folded, leaks = Coordination(), Leaks(since_ms=since_ms)
    Engine.joining((folded, leaks)).apply_all(told(*events))
    assert folded.unread == 0, folded.last_unread
    return folded, leaks


def granted(at_ms: int = 1000, lease_id: str = "l1", **more: Any) -> Told:
    lease = {**LEASE, "lease_id": lease_id, "acquired_at_ms": at_ms, "ttl_ms": TTL_MS, **more}
    data = {"lease": lease, "deadline_ms": at_ms + TTL_MS, "evidence": EVIDENCE, "next": []}
    return at_ms, "LeaseAcquired", data


def _end(lease_id: str, **more: Any) -> dict[str, Any]:
    return {"lease_id": lease_id, "node_id": "box-c", "request_key": "k", "held_ms": 5, **more}


def released(at_ms: int, lease_id: str = "l1") -> Told:
    return at_ms, "LeaseReleased", _end(lease_id, outcome="completed", call_id="c1", next=[])


def expired(at_ms: int, lease_id: str = "l1") -> Told:
    return at_ms, "LeaseExpired", _end(lease_id, deadline_ms=at_ms)


def reaped(at_ms: int, lease_id: str = "l1", why: str = "stuck", *, drained: bool = True) -> Told:
    return at_ms, "LeaseReaped", _end(lease_id, why=why, by="ann", drained=drained)


def revoked(at_ms: int, due_ms: int, lease_id: str = "l1") -> Told:
    data = {"lease_id": lease_id, "node_id": "box-c", "why": "stuck", "by": "ann"}
    return at_ms, "LeaseRevoked", {**data, "due_ms": due_ms}


def late(at_ms: int, ended_by: str, lease_id: str = "l1") -> Told:
    data = {"lease_id": lease_id, "token": "7", "node_id": None, "ended_by": ended_by}
    return at_ms, "LateRelease", {**data, "outcome": "completed"}


def double(at_ms: int, lease_id: str = "l1") -> Told:
    data = {"lease_id": lease_id, "token": "7", "node_id": None}
    return at_ms, "DoubleRelease", {**data, "first_call_id": "c1", "call_id": "c2"}


def acknowledged(at_ms: int, *lease_ids: str) -> Told:
    return at_ms, "LeakAcknowledged", {"leases": list(lease_ids), "by": "ann"}


def renewed(at_ms: int, *lease_ids: str) -> Told:
    deadlines = [at_ms + TTL_MS] * len(lease_ids)
    return (
        at_ms,
        "LeasesRenewed",
        {"holder": "h", "leases": list(lease_ids), "deadlines": deadlines},
    )


def queued(at_ms: int, number: int, *, priority: str = "normal", key: str = "") -> Told:
    waiter = {
        **WAITER,
        "request_key": key or f"env|h|r{number}",
        "request_id": f"r{number}",
        "class": priority,
        "number": number,
        "arrival_ms": at_ms,
        "wait_deadline_ms": at_ms + 90_000,
    }
    return (
        at_ms,
        "LeaseQueued",
        {"waiter": waiter, "reason": "no_slot", "reasons": [], "others": {}},
    )


def wait_ended(at_ms: int, number: int, how: str = "granted") -> Told:
    return at_ms, "WaitEnded", {"request_key": f"env|h|r{number}", "how": how, "waited_ms": 5}


def reserved(at_ms: int, node_id: str, number: int) -> Told:
    data = {"node_id": node_id, "request_key": f"env|h|r{number}", "why": "no_memory"}
    return at_ms, "NodeReserved", {**data, "weight_bytes": GB}


def declared(at_ms: int, **urls: str) -> Told:
    nodes = [{"node_id": name, "base_url": url} for name, url in urls.items()]
    data = {"revision": 1, "fingerprint": "f", "fleet": {"nodes": nodes, "workers": []}}
    return at_ms, "FleetDeclared", {**data, "changes": []}


def stepped(at_ms: int, delta_ms: int) -> Told:
    return at_ms, "ClockStepped", {"delta_ms": delta_ms}


# --- leases from grant to end


def test_a_lease_that_is_given_back_leaves_nothing_and_leaks_nothing() -> None:
    folded, leaks = read(granted(), renewed(2000, "l1"), released(3000))
    assert folded.leases.living == {}
    assert (leaks.ended, leaks.unacknowledged()) == ({}, ())
    assert (folded.leases.ended_unknown, folded.leases.granted_twice) == (0, 0)


def test_a_heartbeat_moves_the_deadline_and_a_lease_without_one_is_late_by_its_grant() -> None:
    folded, _ = read(granted(1000), granted(1000, "l2"), renewed(30_000, "l1"))
    first, second = folded.leases.living["l1"], folded.leases.living["l2"]
    assert first.deadline_ms == 30_000 + TTL_MS
    assert second.deadline_ms == 1000 + TTL_MS
    late_at_ms = 1000 + 3 * HEARTBEAT_MS
    assert not second.late(late_at_ms - 1, HEARTBEAT_MS)
    assert second.late(late_at_ms, HEARTBEAT_MS)
    assert not first.late(late_at_ms, HEARTBEAT_MS)


def test_an_expired_lease_is_a_leak_with_its_last_heartbeat_and_deadline() -> None:
    _, leaks = read(granted(), renewed(2000, "l1"), expired(62_000))
    (leak,) = leaks.unacknowledged()
    assert (leak.lease_id, leak.end, leak.leaked) == ("l1", "expired", True)
    assert (leak.last_heartbeat_ms, leak.deadline_ms) == (2000, 62_000)
    assert leak.document.model == LEASE["model"]


def test_a_late_release_is_counted_and_does_not_undo_the_leak() -> None:
    _, leaks = read(granted(), expired(61_000), late(61_500, "expired"))
    assert leaks.late_releases == 1
    assert [one.lease_id for one in leaks.unacknowledged()] == ["l1"]


def test_a_double_release_is_counted_and_is_no_leak() -> None:
    folded, leaks = read(granted(), released(2000), double(3000))
    assert (leaks.double_releases, leaks.unacknowledged()) == (1, ())
    assert folded.leases.ended_unknown == 0


def test_a_revoked_lease_lives_until_it_is_due_and_its_release_ends_it_as_reaped() -> None:
    before, _ = read(granted(), revoked(5000, 8000))
    mark = before.leases.living["l1"].revocation
    assert mark is not None
    assert (mark.due_ms, mark.by, mark.why, mark.at_ms) == (8000, "ann", "stuck", 5000)
    assert before.leases.living["l1"].deadline_ms == 8000
    folded, leaks = read(
        granted(), revoked(5000, 8000), late(6000, "revoked"), reaped(6000, drained=False)
    )
    assert folded.leases.living == {}
    assert (leaks.revoked, leaks.reaped, leaks.late_releases) == (1, 1, 1)
    assert leaks.ended["l1"].end == "reaped"
    assert leaks.unacknowledged() == (), "who took it knows of it"


@pytest.mark.parametrize(("why", "leaks_count"), [("holder_restarted", 1), ("stuck", 0)])
def test_only_a_lease_whose_holder_died_leaks_when_it_is_reaped(why: str, leaks_count: int) -> None:
    _, leaks = read(granted(), reaped(5000, why=why))
    assert len(leaks.unacknowledged()) == leaks_count
    assert leaks.reaped == 1


def test_an_acknowledged_leak_fails_no_check_and_the_others_still_do() -> None:
    _, leaks = read(granted(), granted(1000, "l2"), expired(61_000), expired(61_000, "l2"),
                    acknowledged(62_000, "l1"))  # fmt: skip
    assert [one.lease_id for one in leaks.unacknowledged()] == ["l2"]
    assert set(leaks.ended) == {"l1", "l2"}, "an acknowledged leak is still shown"


def test_acknowledgements_are_let_go_after_a_week_as_the_script_does() -> None:
    folded, _ = read(acknowledged(1000, "old"), acknowledged(1000 + ACKNOWLEDGED_FOR_MS, "new"))
    assert set(folded.leases.acknowledged) == {"new"}
    folded, _ = read(acknowledged(1001, "old"), acknowledged(1000 + ACKNOWLEDGED_FOR_MS, "new"))
    assert set(folded.leases.acknowledged) == {"old", "new"}


def test_what_happened_before_since_is_not_counted_but_for_a_leak() -> None:
    events = (granted(), expired(61_000), late(61_500, "expired"), granted(70_000, "l2"),
              released(71_000, "l2"), double(72_000, "l2"))  # fmt: skip
    _, leaks = read(*events, since_ms=61_501)
    assert (leaks.late_releases, leaks.double_releases, len(leaks.unacknowledged())) == (0, 1, 1)
    _, leaks = read(*events, since_ms=61_000)
    assert (leaks.late_releases, len(leaks.unacknowledged())) == (1, 1)


def test_an_end_of_a_lease_that_nobody_was_granted_is_counted() -> None:
    folded, leaks = read(released(1000, "nobody"), expired(2000, "nothing"))
    assert folded.leases.ended_unknown == 2
    assert leaks.ended == {}


def test_a_lease_granted_twice_is_counted_as_what_never_may_be() -> None:
    folded, _ = read(granted(), granted(2000))
    assert folded.leases.granted_twice == 1


def test_a_load_is_marked_from_its_beginning_to_its_end() -> None:
    load = {"lease_id": "l1", "node_id": "box-c", "model": "m", "ms": 0, "outcome": ""}
    during, _ = read(granted(), (2000, "ModelLoading", load))
    assert during.leases.live_part()["marks"] == {"loading|l1": "2000 box-c"}
    after, _ = read(
        granted(), (2000, "ModelLoading", load), (3000, "ModelLoaded", {**load, "outcome": "ok"})
    )
    assert after.leases.live_part()["marks"] == {}


def test_a_clock_that_steps_forward_takes_every_time_of_a_lease_along() -> None:
    folded, _ = read(granted(), renewed(2000, "l1"), revoked(3000, 9000), stepped(500_000, 400_000))
    lease = folded.leases.living["l1"]
    assert (lease.deadline_ms, lease.last_heartbeat_ms) == (409_000, 402_000)
    assert lease.revocation is not None
    assert lease.revocation.due_ms == 409_000


def test_a_clock_that_steps_back_leaves_no_lease_longer_than_its_ttl() -> None:
    folded, _ = read(granted(500_000), stepped(1000, -499_000))
    assert folded.leases.living["l1"].deadline_ms == 1000 + TTL_MS


# --- the queue


def _order(folded: Coordination, at_ms: int, swap_max_ms: int = 60_000) -> list[str]:
    waiters: Sequence[Any] = folded.queue.in_order(at_ms, swap_max_ms)
    return [waiter.document["request_id"] for waiter in waiters]


def test_a_higher_class_goes_first_until_a_lower_one_has_waited_long_enough() -> None:
    folded, _ = read(queued(1000, 1, priority="low"), queued(70_000, 2, priority="normal"))
    assert _order(folded, 60_999) == ["r2", "r1"]
    assert _order(folded, 70_000) == ["r1", "r2"], "risen to the other's class, and older"


def test_requests_of_one_moment_keep_the_order_of_their_asking() -> None:
    folded, _ = read(*(queued(1000, number) for number in (1, 2, 3)))
    assert _order(folded, 1000) == ["r1", "r2", "r3"]


def test_who_comes_to_the_head_of_the_list_is_marked_once_and_then() -> None:
    folded, _ = read(queued(1000, 1), queued(2000, 2), wait_ended(9000, 1, "cancelled"))
    assert folded.queue.live_part()["heads"] == {"env|h|r2": 9000}
    folded, _ = read(queued(1000, 1), queued(2000, 2), wait_ended(9000, 2))
    assert folded.queue.live_part()["heads"] == {"env|h|r1": 1000}


def test_a_request_that_waits_again_stands_at_its_new_place() -> None:
    folded, _ = read(
        queued(1000, 1), queued(2000, 2), wait_ended(3000, 1), queued(4000, 3, key="env|h|r1")
    )
    assert _order(folded, 4000) == ["r2", "r3"]
    assert folded.queue.live_part()["heads"] == {"env|h|r2": 3000}


def test_a_reservation_lasts_until_it_ends_or_its_node_leaves_the_fleet() -> None:
    folded, _ = read(queued(1000, 1), reserved(1000, "box-c", 1))
    assert folded.queue.reserves("env|h|r1") == "box-c"
    over = {"node_id": "box-c", "request_key": "env|h|r1", "how": "granted", "next": []}
    folded, _ = read(queued(1000, 1), reserved(1000, "box-c", 1), (2000, "ReservationEnded", over))
    assert folded.queue.reserves("env|h|r1") is None
    folded, _ = read(queued(1000, 1), reserved(1000, "box-c", 1), declared(2000, boxe="http://e"))
    assert folded.queue.live_part()["reservations"] == {}


def test_a_clock_that_steps_forward_makes_no_waiter_wait_longer() -> None:
    folded, _ = read(queued(1000, 1, priority="low"), stepped(401_000, 400_000))
    waiter = folded.queue.waiters["env|h|r1"]
    assert (waiter.arrival_ms, waiter.head_ms) == (401_000, 401_000)
    assert waiter.document["wait_deadline_ms"] == 491_000
    assert waiter.rank(401_000, 60_000) == 2


# --- cordons, trips, weights, sessions


def cordoned(at_ms: int, until_ms: int | None = None) -> Told:
    data = {"node_id": "box", "why": "fans", "by": "ann", "until_ms": until_ms}
    return at_ms, "NodeCordoned", data


def tripped(at_ms: int) -> Told:
    data = {"node_id": "box", "why": "reset", "by": "h", "reopen_at_ms": at_ms + 30_000}
    return at_ms, "NodeTripped", {**data, "backoff_ms": 30_000}


def observed(at_ms: int, weight: int, **more: Any) -> Told:
    model = {**MODEL, "charge_bytes": weight, **more}
    data = {
        "node_id": "box",
        "base_url": "http://box",
        "fingerprint": "f",
        "observed_at_ms": at_ms,
        "elapsed_ms": 1,
        "latency_ms": 1,
        "own_bytes": weight,
        "foreign_bytes": 0,
        "unaccounted": False,
        "healthy": True,
        "reason": "",
        "models": [model],
    }
    return at_ms, "ResidencyObserved", data


def test_a_cordon_with_an_end_is_over_at_that_moment_and_one_without_never() -> None:
    folded, _ = read(cordoned(1000, 5000))
    assert folded.marks.cordoned("box", 4999)
    assert not folded.marks.cordoned("box", 5000)
    folded, _ = read(cordoned(1000))
    assert folded.marks.cordoned("box", 10**15)
    folded, _ = read(cordoned(1000), (2000, "NodeUncordoned", {"node_id": "box", "by": "ann"}))
    assert not folded.marks.cordoned("box", 2000)


def test_a_trip_stays_until_the_lease_that_tried_the_node_completed() -> None:
    folded, _ = read(tripped(1000))
    assert folded.marks.trips["box"]["reopen_at_ms"] == 31_000
    folded, _ = read(tripped(1000), (40_000, "NodeRestored", {"node_id": "box", "by": "h"}))
    assert folded.marks.trips == {}


def test_a_model_weighs_the_most_that_was_seen_until_its_digest_changes() -> None:
    name = f"box|{MODEL['key']}"
    folded, _ = read(observed(1000, 9 * GB), observed(2000, 7 * GB))
    assert folded.marks.weights[name]["weight"] == 9 * GB
    folded, _ = read(observed(1000, 9 * GB), observed(2000, 7 * GB, digest="other"))
    assert folded.marks.weights[name]["weight"] == 7 * GB
    folded, _ = read(observed(1000, 9 * GB, ownership="foreign"))
    assert folded.marks.weights == {}


def test_forgotten_weights_count_no_more() -> None:
    forgotten = {"node_id": "box", "by": "ann", "keys": [MODEL["key"]]}
    folded, _ = read(observed(1000, 9 * GB), (2000, "WeightsForgotten", forgotten))
    assert folded.marks.weights == {}


@pytest.mark.parametrize(("url", "kept"), [("http://box", True), ("http://elsewhere", False)])
def test_a_node_that_moved_is_another_node_of_which_nothing_is_known(url: str, kept: bool) -> None:
    folded, _ = read(
        declared(500, box="http://box"),
        cordoned(1000),
        tripped(1000),
        observed(1000, 9 * GB),
        declared(2000, box=url),
    )
    marks = folded.marks
    assert [bool(marks.cordons), bool(marks.trips), bool(marks.weights)] == [kept] * 3


def test_a_session_is_known_from_its_opening_to_its_end() -> None:
    opened = {"holder": "h", "environment": "e", "host": "x", "boot_id": "b"}
    event: Told = (1000, "SessionOpened", {**opened, "pid": 1, "pid_start": 2})
    folded, _ = read(event)
    assert folded.marks.sessions["h"]["since_ms"] == 1000
    folded, _ = read(event, (2000, "SessionEnded", {"holder": "h", "why": "holder_restarted"}))
    assert folded.marks.sessions == {}


def test_folds_read_back_from_their_documents_are_the_same() -> None:
    events = told(
        granted(), renewed(2000, "l1"), revoked(3000, 9000), queued(3000, 1),
        reserved(3000, "b", 1), cordoned(3000), tripped(3000), acknowledged(4000, "l9"),
    )  # fmt: skip
    folded = fold(events)
    again = Coordination.from_document(folded.document())
    assert again.state() == folded.state()
