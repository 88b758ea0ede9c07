"""A slot that ended without a release, in the past: it drains until time and a poll say so."""

from __future__ import annotations

from typing import Any

from aibs.eventstore.events import Event
from aibs.projections.coordination import Coordination
from aibs.replay.surroundings import Surroundings

ENDED_MS, DRAIN_MS = 100_000, 10_000


def event(seq: int, kind: str, at_ms: int, **data: Any) -> Event:
    return Event(f"{at_ms}-{seq}", seq, at_ms, kind, 1, "a:1:test:0", None, None, data)


def expired(*, seen_ms: int | None) -> Surroundings:
    """A lease that expired, and a poll that began at `seen_ms`."""
    lease = {
        "lease_id": "l1",
        "node_id": "box-c",
        "base_url": "http://c:1",
        "key": "k",
        "weight_bytes": 7,
        "drain_ms": DRAIN_MS,
    }
    found = Surroundings.around(Coordination())
    evidence = {"observed_at_ms": 89_000}
    found.apply(event(1, "LeaseAcquired", 90_000, lease=lease, evidence=evidence), 0)
    found.apply(event(2, "LeaseExpired", ENDED_MS, lease_id="l1"), 0)
    if seen_ms is not None:
        poll = {"node_id": "box-c", "observed_at_ms": seen_ms}
        found.apply(event(3, "ResidencyObserved", seen_ms, **poll), 0)
    return found


def ids(found: Surroundings, at_ms: int) -> list[str]:
    return [one.lease_id for one in found.draining(at_ms)]


def test_a_slot_drains_until_its_time_is_over() -> None:
    found = expired(seen_ms=ENDED_MS + 1)
    assert ids(found, ENDED_MS + DRAIN_MS - 1) == ["l1"]
    assert ids(found, ENDED_MS + DRAIN_MS) == []


def test_a_slot_drains_on_until_a_later_poll_was_seen() -> None:
    assert ids(expired(seen_ms=None), ENDED_MS + 10 * DRAIN_MS) == ["l1"]
    assert ids(expired(seen_ms=ENDED_MS), ENDED_MS + 10 * DRAIN_MS) == ["l1"]
