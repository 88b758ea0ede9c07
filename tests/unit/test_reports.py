"""What operators read: durations, the budget's bar, and every state of a node, worded."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from aibs.audit.compose import coordination_of
from aibs.audit.document import json_schema as audit_schema
from aibs.codec import rfc3339
from aibs.errors import ConfigurationError, CorruptLog
from aibs.eventstore.placement_state import LiveParts
from aibs.eventstore.state import FleetState, PoolState, Stamp, TermState
from aibs.projections.coordination import Coordination
from aibs.projections.leaks import Leaks
from aibs.reports.durations import duration_ms
from aibs.reports.leaks import Counts, LeaksDocument, LeaseReport, in_order
from aibs.reports.moment import Moment
from aibs.reports.status import (
    NodeReport,
    OwnerReport,
    PoolReport,
    StatusDocument,
    _nodes,
    _owner,
)
from aibs.reports.status import json_schema as status_schema
from aibs.reports.text import BAR_WIDTH, bar, render_leaks, render_status
from tests.unit.test_audit_gates import CONFIGURED

GB = 10**9
AT = "2026-12-01T12:00:00.000Z"


@pytest.mark.parametrize(
    ("text", "found_ms"),
    [("250ms", 250), ("90s", 90_000), ("15m", 900_000), ("15MIN", 900_000), (" 1h ", 3_600_000),
     ("2d", 172_800_000), ("3650d", 315_360_000_000)],
)  # fmt: skip
def test_durations_are_read_as_people_type_them(text: str, found_ms: int) -> None:
    assert duration_ms(text, "--since") == found_ms


@pytest.mark.parametrize("text", ["", "0s", "1", "h", "-1s", "1.5h", "1 h", "3651d", "1w", "٣s"])
def test_what_is_no_duration_is_refused_and_names_its_option(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--since is"):
        duration_ms(text, "--since")


def node(**more: Any) -> NodeReport:
    told: dict[str, Any] = {
        "node_id": "box-c", "base_url": "u", "state": "ready", "detail": None, "stamp": None,
        "budget_bytes": 24 * GB, "foreign_bytes": 6 * GB, "leased_bytes": 12 * GB,
        "free_bytes": 6 * GB, "slots": 2, "slots_used": 1, "slots_draining": 0, "leases": [],
        "reserved_for": None, **more,
    }  # fmt: skip
    return NodeReport(**told)


@pytest.mark.parametrize(
    ("more", "cells"),
    [
        ({}, "x" * 6 + "#" * 12 + "." * 6),
        ({"foreign_bytes": 1, "leased_bytes": 1}, "x#" + "." * 22),
        ({"foreign_bytes": 90 * GB}, "x" * BAR_WIDTH),
        ({"foreign_bytes": None}, "#" * 12 + "." * 12),
        ({"budget_bytes": None}, ""),
    ],
)
def test_the_bar_shows_whatever_is_there_and_never_more_than_the_budget(
    more: dict[str, Any], cells: str
) -> None:
    assert bar(node(**more), plain=True) == cells
    assert len(bar(node(**more), plain=False)) == len(cells)


def stamp(**more: Any) -> Stamp:
    told: dict[str, Any] = {
        "observed_at_ms": 10_000, "observed_fence": 1, "fence": 1, "seq": 1, "fingerprint": "f",
        "base_url": "u", "healthy": True, "reason": "", "own_bytes": 0, "foreign_bytes": 0,
        "unaccounted": False, "failed_in_row": 0, "epoch": 1, **more,
    }  # fmt: skip
    return Stamp(**told)


def live(seen: Stamp | None = None, **more: Any) -> LiveParts:
    """One declared node that was seen well a second ago."""
    told: dict[str, Any] = {name: {} for name in LiveParts.__dataclass_fields__}
    declared = {"node_id": "box", "base_url": "u", "vram_budget_bytes": 9 * GB,
                "max_parallel_requests": 1}  # fmt: skip
    told |= {
        "now_ms": 11_000,
        "pool": PoolState("p", "1", "r", "open", 1, 1, "1-0", None),
        "term": None,
        "drains": (),
        "fleet": FleetState(1, "f", {"nodes": [declared]}, "1-0"),
        "stamps": {"box": seen or stamp()},
        **more,
    }
    return LiveParts(**told)


CORDON = {"why": "fans", "by": "ann", "since_ms": 1, "until_ms": None}
TRIP = {"why": "reset", "by": "app", "since_ms": 1, "reopen_at_ms": 71_000, "backoff_ms": 1}


@pytest.mark.parametrize(
    ("parts", "state", "detail"),
    [
        (live(), "ready", None),
        (live(stamp(observed_at_ms=0)), "stale", "never seen"),
        (live(stamp(observed_at_ms=1)), "stale", "not seen recently"),
        (live(stamp(epoch=0)), "stale", "not seen since the coordination server came back"),
        (live(stamp(healthy=False, reason="timeout")), "unhealthy", "timeout"),
        (live(stamp(loading=True)), "loading", "a lease loads a model there"),
        (
            live(stamp(unaccounted=True)),
            "unaccounted",
            "it holds something whose size cannot be read",
        ),
        (live(cordons={"box": CORDON}), "cordoned", "fans (ann)"),
        (
            live(cordons={"box": {**CORDON, "until_ms": 71_000}}),
            "cordoned",
            "fans (ann), for 60 s more",
        ),
        (live(cordons={"box": {**CORDON, "until_ms": 11_000}}), "ready", None),
        (live(trips={"box": TRIP}), "tripped", "reset (app), tried again in 60 s"),
        (
            live(trips={"box": {**TRIP, "reopen_at_ms": 1}}),
            "tripped",
            "reset (app), tried again by the next lease",
        ),
    ],
)
def test_each_state_of_a_node_says_why_it_takes_no_lease(
    parts: LiveParts, state: str, detail: str | None
) -> None:
    (report,) = _nodes(parts, 5_000)
    assert (report.state, report.detail) == (state, detail)


def test_an_owner_is_told_with_the_time_of_its_election_which_the_log_has_too() -> None:
    term = TermState("o", 2, 20_000, 10_000, 9_000, None, None, "1-0")
    folded = Coordination()

    def owner_of(elected_at_ms: int | None) -> OwnerReport | None:
        held = replace(term, elected_at_ms=elected_at_ms)
        return _owner(Moment(live(term=held), folded, Leaks(), 0))

    with pytest.raises(CorruptLog, match="tells when o was elected"):
        owner_of(None)
    folded.ownership.elected_at_ms = 8_000
    for told, at_ms in ((9_000, 9_000), (None, 8_000)):
        owner = owner_of(told)
        assert owner is not None
        assert owner.elected_at == rfc3339(at_ms)


def test_what_a_document_always_knows_is_never_promised_as_null() -> None:
    def field(document: dict[str, Any], part: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = document["$defs"][part]["properties"][name]
        return found

    assert field(status_schema(), "OwnerReport", "elected_at")["type"] == "string"
    assert field(audit_schema(), "ModelReport", "key")["type"] == "string"


def test_a_pool_in_memory_has_no_url() -> None:
    assert coordination_of(replace(CONFIGURED, coordination_backend="memory"), None).url is None


def test_a_node_that_left_with_a_lease_is_shown_as_undeclared() -> None:
    gone = {"node_id": "old", "base_url": "o", "key": "k", "weight_bytes": GB}
    declared, left = _nodes(live(leases={"l": gone}), 5_000)
    assert declared.state == "ready"
    assert (left.state, left.detail, left.leases) == ("undeclared", "left the fleet", ["l"])
    assert (left.free_bytes, left.slots, left.leased_bytes) == (None, None, GB)


def test_what_an_unaccounted_node_has_free_is_unknown_and_never_zero() -> None:
    (report,) = _nodes(live(stamp(unaccounted=True, foreign_bytes=3)), 5_000)
    assert (report.foreign_bytes, report.free_bytes) == (None, None)


def lease(state: str, *, acknowledged: bool = False) -> LeaseReport:
    ended = state == "reaped"
    told: dict[str, Any] = {
        "lease_id": "l1", "request_id": "r1", "token": "7", "state": state,
        "acknowledged": acknowledged, "node_id": "box-c", "node_base_url": "u",
        "model": "evil\x1b[2J", "worker_id": "w", "role": None, "environment": "prod",
        "holder": "app:1", "acquired_at": AT, "last_heartbeat_at": None, "deadline": AT,
        "ended_at": AT if ended else None, "end": "reaped" if ended else None,
        "held_ms": 90_000 if ended else None,
    }  # fmt: skip
    return LeaseReport(**told)


def leaks(*leases: LeaseReport, leaking: bool = False, differences: Any = ()) -> LeaksDocument:
    counts = Counts(
        active=0, late=0, expired_unreleased=0, draining=0, revoked=0, reaped=0,
        late_releases=1, double_releases=2,
    )  # fmt: skip
    told: dict[str, Any] = {"generated_at": AT, "since": AT, "counts": counts, "groups": []}
    return LeaksDocument(
        **told,
        leases=list(leases),
        residency=[],
        consistent_with_live_state=not differences,
        differences=list(differences),
        leaking=leaking,
    )


def printed(document: LeaksDocument | StatusDocument, width: int) -> str:
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    console = Console(file=out, width=width, markup=False, highlight=False, emoji=False)
    if isinstance(document, LeaksDocument):
        render_leaks(document, console, now_ms=1_796_126_460_000)
    else:
        render_status(document, console)
    out.seek(0)
    return out.read()


@pytest.mark.parametrize("width", [60, 140])
def test_leases_read_in_words_at_any_width_and_no_escape_reaches_the_terminal(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, markup=False, highlight=False, emoji=False)
    document = leaks(lease("expired_unreleased"), lease("reaped", acknowledged=True))
    render_leaks(document, console, now_ms=1_796_126_460_000)
    text = " ".join(out.getvalue().split())
    assert "expired, unreleased" in text
    assert "reaped (acknowledged)" in text
    assert "\x1b" not in text
    assert "1 late release, 2 double releases" in text


@pytest.mark.parametrize(
    ("document", "last"),
    [
        (leaks(), "No lease leaks."),
        (leaks(leaking=True), "Leases leak."),
        (leaks(leaking=True, differences=["x differs."]), "The live state differs"),
    ],
)
def test_the_verdict_stands_last_and_the_worst_comes_first(
    document: LeaksDocument, last: str
) -> None:
    assert printed(document, 140).splitlines()[-1].startswith(last)


def test_a_pool_without_owner_or_fleet_says_what_to_start_even_in_plain_ascii() -> None:
    told: dict[str, Any] = {"pool_id": "p", "namespace": "n", "state": "suspect"}
    document = StatusDocument(
        generated_at=AT,
        pool=PoolReport(**told),
        cluster_enabled=False,
        fleet=None,
        owner=None,
        standbys=[],
        nodes=[node()],
        queue=[],
        leases=[],
    )
    for width in (60, 80, 140):
        text = printed(document, width)
        assert "owner: none. Start `aibs monitor`." in text
        assert "no fleet is declared" in text
        assert "######" in text
        assert "No lease, nobody waits." in text


def test_leases_of_one_millisecond_stand_in_the_order_of_their_grants() -> None:
    held = {
        "b": {"acquired_at_ms": 1, "token": "10"},
        "a": {"acquired_at_ms": 1, "token": "9"},
        "c": {"acquired_at_ms": 0, "token": "11"},
    }
    assert in_order(held) == ["c", "a", "b"]
