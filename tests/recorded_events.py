"""Events written by hand that every fold reads: a node that is declared, seen, leased."""

from __future__ import annotations

from typing import Any

from aibs.eventstore.events import Event
from tests.unit.test_timeline import EVIDENCE, LEASE

URL = "http://box-c:11434"


def event(
    seq: int, at_ms: int, type_: str, data: dict[str, Any], fence: int | None = None
) -> Event:
    """One event, of the first version of its type."""
    return Event(f"{at_ms}-{seq}", seq, at_ms, type_, 1, "a:1:x:y", fence, None, data)


def declared(
    seq: int, at_ms: int, *, node_id: str = "box-c", url: str = URL, revision: int = 1
) -> Event:
    """One node, its fingerprint named after the revision."""
    node = {
        "node_id": node_id,
        "base_url": url,
        "vram_budget_bytes": 90 * 10**9,
        "max_parallel_requests": 2,
        "memory": "unified",
    }
    fleet = {
        "revision": revision,
        "fingerprint": f"f{revision}",
        "nodes": [node],
        "workers": [],
        "affinity": {},
    }
    data = {"revision": revision, "fingerprint": f"f{revision}", "fleet": fleet, "changes": []}
    return event(seq, at_ms, "FleetDeclared", data, 1)


def acquired(
    seq: int, at_ms: int, number: int = 1, *, observed_at_ms: int = 1, **more: Any
) -> Event:
    """The lease `l1`, or of another number."""
    lease = {
        **LEASE,
        "lease_id": f"l{number}",
        "request_key": f"prod|app|r{number}",
        "base_url": URL,
        "acquired_at_ms": at_ms,
        **more,
    }
    evidence = {
        **EVIDENCE,
        "observed_at_ms": observed_at_ms,
        "stamp_age_ms": at_ms - observed_at_ms,
    }
    data = {"lease": lease, "deadline_ms": at_ms + 60_000, "evidence": evidence, "next": []}
    return event(seq, at_ms, "LeaseAcquired", data)


def ended(
    seq: int, at_ms: int = 100_000, how: str = "LeaseExpired", number: int = 1, **more: Any
) -> Event:
    """A lease's end."""
    ends: dict[str, dict[str, Any]] = {
        "LeaseExpired": {"deadline_ms": at_ms},
        "LeaseReleased": {"outcome": "completed", "call_id": "c1", "next": []},
        "LeaseReaped": {"why": "stuck", "by": "ann", "drained": True},
    }
    data = {"lease_id": f"l{number}", "node_id": "box-c", "request_key": "k", "held_ms": 5}
    return event(seq, at_ms, how, {**data, **ends[how], **more})


def observed(
    seq: int,
    at_ms: int,
    begun_ms: int,
    *,
    node_id: str = "box-c",
    fence: int = 1,
    revision: int = 1,
    **more: Any,
) -> Event:
    """A poll that saw nothing there."""
    data = {
        "node_id": node_id,
        "base_url": URL,
        "fingerprint": f"f{revision}",
        "observed_at_ms": begun_ms,
        "elapsed_ms": max(0, at_ms - begun_ms),
        "latency_ms": 1,
        "own_bytes": 0,
        "foreign_bytes": 0,
        "unaccounted": False,
        "healthy": True,
        "reason": "",
        "busy": [],
        "models": [],
        **more,
    }
    return event(seq, at_ms, "ResidencyObserved", data, fence)


def elected(seq: int, at_ms: int, fence: int = 1) -> Event:
    """A term begins."""
    data = {
        "owner": f"o{fence}",
        "fence": fence,
        "ttl_ms": 10_000,
        "deadline_ms": at_ms + 10_000,
        "follows": None,
        "follows_fence": None,
        "because": "vacant",
    }
    return event(seq, at_ms, "OwnerElected", data, fence)


def term_over(seq: int, at_ms: int, deadline_ms: int, fence: int = 1) -> Event:
    """A term was found over."""
    data = {"owner": f"o{fence}", "fence": fence, "deadline_ms": deadline_ms, "how": "expired"}
    return event(seq, at_ms, "OwnerExpired", data, fence)
