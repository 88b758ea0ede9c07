"""Each event type as one clause that a person reads without knowing how it is stored."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aibs.eventstore.events import EVENT_TYPES, Event, Unreadable, decode
from aibs.projections.timeline import describe

GB = 10**9
HOUR_MS = 3_600_000
KEY = "registry.ollama.ai/library/llama3:8b"
LEASE: dict[str, Any] = {
    "lease_id": "l1",
    "token": "7",
    "request_key": "prod|app|r1",
    "request_id": "r1",
    "request_hash": "h",
    "call_id": "c1",
    "environment": "prod",
    "holder": "app:1",
    "requester": "app",
    "model": "llama3:8b",
    "key": KEY,
    "worker_id": "answer",
    "role": "chat",
    "node_id": "box-c",
    "base_url": "http://box-c:11434",
    "weight_bytes": 7 * GB,
    "params": 8000,
    "ttl_ms": 60_000,
    "drain_ms": 10_000,
    "acquired_at_ms": 1000,
    "probe": False,
    "warm": False,
    "unload_first": ["a"],
    "queue_ms": 1500,
}
EVIDENCE: dict[str, Any] = {
    "stamp_age_ms": 1,
    "observed_at_ms": 1,
    "stamp_fence": 1,
    "stamp_seq": 1,
    "budget_bytes": 90 * GB,
    "foreign_bytes": 0,
    "leased_before_bytes": 0,
    "leased_after_bytes": 7 * GB,
    "slots": 2,
    "slots_used_before": 0,
    "slots_used_after": 1,
    "weight_bytes": 7 * GB,
    "weight_source": "declared",
    "fingerprint": "f",
    "nodes_tried": 1,
    "passed": [],
}
WAITER: dict[str, Any] = {
    "request_key": "prod|app|r2",
    "request_id": "r2",
    "request_hash": "h",
    "environment": "prod",
    "holder": "app:1",
    "requester": "app",
    "role": None,
    "lane": f"m|{KEY}",
    "member": "x",
    "number": 1,
    "arrival_ms": 1000,
    "wait_deadline_ms": 9000,
    "ttl_ms": 60_000,
    "model": "llama3:8b",
    "lanes": [{"worker_id": "answer", "key": KEY}],
}
MODEL: dict[str, Any] = {
    "name": "llama3:8b",
    "key": KEY,
    "digest": "d",
    "size_bytes": 7 * GB,
    "size_vram_bytes": 7 * GB,
    "context_length": 4096,
    "placement": "gpu",
    "ownership": "own",
    "worker_ids": ["answer"],
    "keeps_forever": False,
    "expires_at_ms": None,
    "charge_bytes": 7 * GB,
}
REFUSED: list[dict[str, Any]] = [{"node_id": "box-c", "reason": "no_memory", "missing_bytes": GB}]
LOAD: dict[str, Any] = {"lease_id": "l1", "node_id": "box-c", "model": "llama3:8b"}
TERM: dict[str, Any] = {"owner": "box-a:1", "fence": 4, "deadline_ms": 5}

CLAUSES: list[tuple[str, dict[str, Any], str]] = [
    (
        "PoolCreated",
        {"pool_id": "p1", "run_id": "r", "state_version": "1", "epoch": 1},
        "pool p1 begins",
    ),
    (
        "PoolSuspect",
        {"why": "server_restarted", "run_id": "r", "epoch": 1, "recover_at_ms": 1},
        "the pool is suspect: server restarted",
    ),
    (
        "PoolReopened",
        {"why": "clean_shutdown", "run_id": "r", "epoch": 1},
        "the pool is open again: clean shutdown",
    ),
    ("PoolClosed", {"run_id": "r"}, "the server was stopped in good order"),
    (
        "FleetDeclared",
        {
            "revision": 3,
            "fingerprint": "ab12cd34ef56ab78",
            "fleet": {"nodes": [{}], "workers": [{}, {}]},
            "changes": [],
        },
        "fleet revision 3 is declared: 1 node, 2 workers, fingerprint ab12cd34ef56",
    ),
    (
        "OwnerElected",
        {
            **TERM,
            "ttl_ms": 8000,
            "follows": "box-b:2",
            "follows_fence": 3,
            "because": "pool_suspect",
        },
        "box-a:1 holds the term with fence 4, after box-b:2: pool suspect",
    ),
    ("OwnerResigned", {**TERM, "how": "resigned"}, "box-a:1 gave back the term with fence 4"),
    (
        "OwnerExpired",
        {**TERM, "how": "expired"},
        "the term of box-a:1 with fence 4 is over: it was not renewed in time",
    ),
    (
        "FencedWriteRejected",
        {
            "script": "observe",
            "owner": "box-b:2",
            "fence": 3,
            "current_owner": "box-a:1",
            "current_fence": 4,
            "repeats": 2,
        },
        "observe of box-b:2 was refused: its fence is 3, the current one is 4 of box-a:1, and 2 "
        "times before",
    ),
    ("ClockStepped", {"delta_ms": -90_000}, "the server's clock stepped back by 90 s"),
    (
        "ResidencyObserved",
        {
            "node_id": "box-c",
            "base_url": "u",
            "fingerprint": "f",
            "observed_at_ms": 1,
            "elapsed_ms": 1,
            "latency_ms": 1,
            "own_bytes": 7_500_000_000,
            "foreign_bytes": None,
            "unaccounted": True,
            "healthy": False,
            "reason": "connect_failed",
            "models": [MODEL],
        },
        "box-c holds llama3:8b (own): own 7.5 GB, foreign unknown, unhealthy: connect failed",
    ),
    (
        "NodeHealthChanged",
        {
            "node_id": "box-c",
            "base_url": "u",
            "healthy": False,
            "reason": "connect_failed",
            "failed_in_row": 2,
        },
        "box-c is unhealthy: 2 polls failed in a row, connect failed",
    ),
    (
        "LeaseAcquired",
        {"lease": LEASE, "deadline_ms": 61_000, "evidence": EVIDENCE, "next": []},
        "llama3:8b as chat is leased on box-c to app:1 of prod as l1: 7 GB, to be loaded, slot 1 "
        "of 2, 1 model to be unloaded first, after 1.5 s in the queue",
    ),
    (
        "LeaseDenied",
        {
            "environment": "prod",
            "requester": "app",
            "request_id": "r1",
            "lane": f"mr|{KEY}|chat",
            "reason": "no_memory",
            "reasons": REFUSED,
            "others": {"node_cordoned": 2},
        },
        "request r1 of prod for llama3:8b as chat is denied: no memory (box-c: no memory, 2 more "
        "nodes: cordoned)",
    ),
    (
        "DenialsCounted",
        {
            "environment": "prod",
            "lane": "r|chat",
            "reason": "no_slot",
            "count": 12,
            "since_ms": 1000,
        },
        "12 more equal denials in prod for role chat: no slot",
    ),
    (
        "LeasesRenewed",
        {"holder": "app:1", "leases": ["l1", "l2"], "deadlines": [1, 2]},
        "app:1 renews 2 leases",
    ),
    (
        "ModelLoading",
        {**LOAD, "ms": 0, "outcome": ""},
        "llama3:8b is being loaded on box-c for lease l1",
    ),
    (
        "ModelLoaded",
        {**LOAD, "ms": 12_400, "outcome": "ok"},
        "llama3:8b is loaded on box-c after 12 s",
    ),
    (
        "ModelUnloaded",
        {**LOAD, "ms": 100, "outcome": "failed"},
        "llama3:8b could not be unloaded on box-c to make room for lease l1: failed",
    ),
    (
        "LeaseReleased",
        {
            "lease_id": "l1",
            "node_id": "box-c",
            "request_key": "prod|app|r1",
            "outcome": "completed",
            "held_ms": 2 * HOUR_MS,
            "call_id": "c",
        },
        "lease l1 on box-c is given back after 2 h: completed",
    ),
    (
        "LeaseExpired",
        {
            "lease_id": "l1",
            "node_id": "box-c",
            "request_key": "prod|app|r1",
            "held_ms": 900_000,
            "deadline_ms": 1,
        },
        "lease l1 on box-c expired after 15 min: nobody renewed it or gave it back; its slot "
        "drains",
    ),
    (
        "LeaseRevoked",
        {"lease_id": "l1", "node_id": "box-c", "why": "stuck", "by": "ann@desk", "due_ms": 5},
        "ann@desk took lease l1 on box-c back: stuck",
    ),
    (
        "LeaseReaped",
        {
            "lease_id": "l1",
            "node_id": "box-c",
            "request_key": "prod|app|r1",
            "held_ms": 3000,
            "why": "holder_restarted",
            "by": "app:2",
            "drained": True,
        },
        "lease l1 on box-c is reaped by app:2 after 3 s: holder restarted; its slot drains",
    ),
    (
        "LateRelease",
        {
            "lease_id": "l1",
            "token": "7",
            "node_id": None,
            "ended_by": "expired",
            "outcome": "completed",
        },
        "lease l1 was given back (completed) after it had expired",
    ),
    (
        "DoubleRelease",
        {
            "lease_id": "l1",
            "token": "7",
            "node_id": None,
            "first_call_id": "c1",
            "call_id": "c2",
        },
        "lease l1 was given back twice, by calls c1 and c2",
    ),
    ("LeakAcknowledged", {"leases": ["l1"], "by": "ann@desk"}, "ann@desk knows of 1 leak: l1"),
    (
        "LeaseQueued",
        {"waiter": WAITER, "reason": "no_slot", "reasons": [], "others": {}},
        "request r2 of prod waits for llama3:8b: no slot",
    ),
    (
        "WaitEnded",
        {"request_key": "prod|app|r2", "how": "forgotten", "waited_ms": 250},
        "request r2 of prod waits no more after 0.25 s: its process fell silent",
    ),
    (
        "NodeReserved",
        {
            "node_id": "box-c",
            "request_key": "prod|app|r2",
            "why": "no_memory",
            "weight_bytes": 43 * GB,
        },
        "box-c is reserved for request r2 of prod, which needs 43 GB: no memory",
    ),
    (
        "ReservationEnded",
        {"node_id": "box-c", "request_key": "prod|app|r2", "how": "node_ineligible"},
        "box-c is no longer reserved for request r2 of prod: the node takes no leases now",
    ),
    (
        "NodeCordoned",
        {"node_id": "box-c", "why": "new fans", "by": "ann@desk", "until_ms": HOUR_MS},
        "box-c is cordoned by ann@desk until 1970-01-01T01:00:00.000Z: new fans",
    ),
    (
        "NodeUncordoned",
        {"node_id": "box-c", "by": "ann@desk"},
        "box-c takes leases again, by ann@desk",
    ),
    (
        "NodeTripped",
        {
            "node_id": "box-c",
            "why": "connect_failed",
            "by": "app:1",
            "reopen_at_ms": 1,
            "backoff_ms": 30_000,
        },
        "box-c takes no leases: its answers failed (connect failed); it is tried again after 30 s",
    ),
    (
        "NodeRestored",
        {"node_id": "box-c", "by": "app:1"},
        "box-c answers again: the lease that tried it completed",
    ),
    (
        "WeightsForgotten",
        {"node_id": "box-c", "by": "ann@desk", "keys": [KEY]},
        "ann@desk dropped what 1 model was seen to weigh on box-c",
    ),
    (
        "WarmupMeasured",
        {
            "worker_id": "answer",
            "model": "llama3:8b",
            "node_id": "box-c",
            "size_bytes": 7_000_000_000,
            "size_vram_bytes": 7_000_000_000,
            "context_length": 4096,
            "ms": 12_000,
            "by": "ann@desk",
        },
        "ann@desk measured llama3:8b on box-c: 7 GB, loaded in 12 s",
    ),
    (
        "SessionOpened",
        {
            "holder": "app:1",
            "environment": "prod",
            "host": "web-1",
            "boot_id": "b",
            "pid": 77,
            "pid_start": 1,
        },
        "app:1 of prod is there: process 77 on web-1",
    ),
    (
        "SessionEnded",
        {"holder": "app:1", "why": "holder_restarted"},
        "app:1 is gone: holder restarted",
    ),
    (
        "SnapshotTaken",
        {"snapshot_id": "s1", "upto_id": "9-0", "upto_seq": 9, "digest": "d", "folds": []},
        "snapshot s1 keeps what the log told up to event 9",
    ),
    (
        "LogTrimmed",
        {
            "snapshot_id": "s1",
            "first_id": "6-0",
            "upto_id": "5-0",
            "upto_seq": 5,
            "removed": 5,
            "why": "age",
        },
        "the log's 5 oldest events up to 5 are gone, for its age; snapshot s1 stands in for them",
    ),
]


def _event(type_: str, data: dict[str, Any]) -> Event:
    return Event("1-0", 1, 1000, type_, 1, "a:1:x:y", None, None, data)


def test_no_event_type_is_left_without_a_clause() -> None:
    assert {type_ for type_, _, _ in CLAUSES} == set(EVENT_TYPES)


@pytest.mark.parametrize(("type_", "data", "clause"), CLAUSES, ids=[c[0] for c in CLAUSES])
def test_a_clause_says_names_sizes_and_durations_as_a_person_reads_them(
    type_: str, data: dict[str, Any], clause: str
) -> None:
    read = decode(_event(type_, data))
    assert not isinstance(read, Unreadable), read
    said = describe(_event(type_, data))
    assert said == clause
    assert not re.search(r"[{}]|\d{7,}|\bNone\b|_ms|\b[a-z]+_[a-z]+\b", said), said


def test_an_event_that_lacks_what_its_clause_needs_is_shown_as_it_is_stored() -> None:
    assert describe(_event("LeaseExpired", {"lease_id": "l1"})) == '{"lease_id":"l1"}'


def test_a_long_list_is_counted_and_not_printed_whole() -> None:
    leases = [f"l{number}" for number in range(40)]
    said = describe(_event("LeakAcknowledged", {"leases": leases, "by": "ann"}))
    assert said.endswith("l6, l7 and 32 more")


def test_a_restored_pool_names_the_reason_a_term_ended() -> None:
    assert describe(_event("OwnerExpired", {**TERM, "how": "pool_suspect"})).endswith(
        "is over: the server may have lost writes"
    )


def test_a_failed_load_and_a_restored_health_read_as_what_they_are() -> None:
    failed = describe(_event("ModelLoaded", {**LOAD, "ms": 500, "outcome": "failed"}))
    assert failed == "llama3:8b could not be loaded on box-c (0.5 s): failed"
    well = {"node_id": "box-c", "base_url": "u", "healthy": True, "reason": "", "failed_in_row": 0}
    assert describe(_event("NodeHealthChanged", well)) == "box-c is healthy again"
