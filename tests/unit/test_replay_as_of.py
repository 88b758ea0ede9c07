"""A past moment: what the log tells of polls, what is inferred from it, and what is left open."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from aibs.codec import rfc3339
from aibs.errors import ConfigurationError
from aibs.projections.coordination import Coordination
from aibs.replay import answers
from aibs.replay.archive import ArchiveWriter
from aibs.replay.as_of import AsOfDocument, as_of_document, json_schema
from aibs.replay.folding import Folded
from aibs.replay.header import Snapshot, Timing
from aibs.replay.points import read_point
from aibs.replay.source import FileSource
from aibs.replay.states import Past
from aibs.replay.text import render_as_of
from tests.incident_log import header
from tests.placement_scenarios import SetClock
from tests.recorded_events import (
    acquired,
    declared,
    elected,
    ended,
    event,
    observed,
    term_over,
)

if TYPE_CHECKING:
    from pathlib import Path

    from aibs.eventstore.events import Event
    from aibs.reports.status import NodeReport

STALENESS_MS = 15_000
TIMING = Timing(staleness_ms=STALENESS_MS, heartbeat_ms=3_000, swap_max_ms=60_000)
SEEN_MS = 100_000


GENERATED_MS = 1_796_126_460_000


def past(at_ms: int, *events: Event, start: Coordination | None = None) -> AsOfDocument:
    folded = Folded(start)
    for one in events:
        folded.apply_event(one)
    assert not folded.unread, folded.last_unread
    found = Past(folded, at_ms, partial=False)
    return as_of_document(found, TIMING, "fleet", generated_ms=GENERATED_MS)


def test_a_document_says_when_it_was_made_and_apart_from_it_which_moment_it_shows() -> None:
    document = past(SEEN_MS, *SEEN)
    assert document.generated_at == "2026-12-01T12:01:00.000Z"
    assert document.as_of == "1970-01-01T00:01:40.000Z"
    assert document.schema_ == json_schema()["$id"] == "aibs.replay.as-of/1"


def exported(path: Path, start: Coordination | None) -> FileSource:
    """A file without events; with the state that it begins with, or without."""
    snapshot = None
    if start is not None:
        snapshot = Snapshot(id=start.last_id, state=start.document())
    with ArchiveWriter(path) as writer:
        told: dict[str, Any] = {"snapshot": snapshot, "fleet": None, "count": 0}
        told |= {"first_id": None, "last_id": None}
        writer.finish(header().model_copy(update=told))
    return FileSource(path)


@pytest.mark.parametrize("text", ["now", "-15m"])
def test_a_file_without_any_event_has_no_moment_and_says_so(tmp_path: Path, text: str) -> None:
    source, point = exported(tmp_path / "empty.ndjson", None), read_point(text, "--as-of")
    with pytest.raises(ConfigurationError, match="holds no event, so it has no moment for --as-of"):
        asyncio.run(answers.as_of(source, point, SetClock()))
    with pytest.raises(ConfigurationError, match="holds no event, so it has no moment for --diff"):
        asyncio.run(answers.diff_of(source, (point, point), SetClock()))
    verdict = asyncio.run(answers.verified(source, SetClock()))
    assert (verdict.first_id, verdict.generated_at) == (None, rfc3339(SetClock().wall_ms()))


def test_a_file_that_has_but_a_state_shows_it_at_its_time_and_nothing_before(
    tmp_path: Path,
) -> None:
    start = Coordination()
    for one in SEEN:
        start.apply(one)
    source = exported(tmp_path / "state.ndjson", start)
    at_ms = start.position.at_ms
    document = asyncio.run(answers.as_of(source, read_point("now", "--as-of"), SetClock()))
    assert (document.as_of, document.last_id) == (rfc3339(at_ms), start.last_id)
    assert document.generated_at == rfc3339(SetClock().wall_ms())
    early = read_point(rfc3339(at_ms - 1), "--as-of")
    with pytest.raises(ConfigurationError, match="before the first event"):
        asyncio.run(answers.as_of(source, early, SetClock()))


def node(document: AsOfDocument) -> NodeReport:
    (found,) = document.nodes
    return found


BEGINNING = (
    event(1, 1, "PoolCreated", {"pool_id": "p", "run_id": "r", "state_version": "1", "epoch": 0}),
    elected(2, 90_000),
    declared(3, 90_000),
)
SEEN = (*BEGINNING, observed(4, SEEN_MS, SEEN_MS))


def test_a_node_that_was_told_of_in_time_is_fresh_and_nothing_is_inferred() -> None:
    document = past(SEEN_MS + STALENESS_MS, *SEEN)
    assert node(document).state == "ready"
    assert document.inferred_fresh == []


def test_between_two_tellings_freshness_is_inferred_and_the_document_says_so() -> None:
    at_ms = SEEN_MS + STALENESS_MS + 1
    document = past(at_ms, *SEEN)
    assert node(document).state == "ready"
    assert document.inferred_fresh == ["box-c"]
    stamp = node(document).stamp
    assert stamp is not None
    # What is told stays apart from what is inferred.
    assert (stamp.observed_at, stamp.age_ms) == (rfc3339(SEEN_MS), at_ms - SEEN_MS)
    assert stamp.fresh
    screen = io.StringIO()
    render_as_of(document, Console(file=screen, width=200))
    assert "Fresh by inference" in screen.getvalue()


def test_a_node_of_which_nothing_was_told_for_longer_than_it_would_be_is_stale() -> None:
    last_ms = SEEN_MS + 60_000 + STALENESS_MS
    assert node(past(last_ms, *SEEN)).state == "ready"
    document = past(last_ms + 1, *SEEN)
    assert node(document).state == "stale"
    assert document.inferred_fresh == []


def test_without_an_owner_there_are_no_polls_to_infer() -> None:
    # Found out late: the term was over at its deadline.
    over = term_over(5, SEEN_MS + 30_000, SEEN_MS + 5_000)
    last_ms = SEEN_MS + 5_000 + STALENESS_MS
    assert node(past(last_ms, *SEEN, over)).state == "ready"
    assert node(past(last_ms + 1, *SEEN, over)).state == "stale"


def test_the_next_owner_sees_a_node_anew_before_it_counts_as_seen() -> None:
    later = (
        term_over(5, SEEN_MS + 5_000, SEEN_MS + 5_000),
        elected(6, SEEN_MS + 6_000, fence=2),
    )
    last_ms = SEEN_MS + 5_000 + STALENESS_MS
    assert node(past(last_ms + 1, *SEEN, *later)).state == "stale"
    again = observed(7, SEEN_MS + 7_000, SEEN_MS + 7_000, fence=2)
    assert node(past(last_ms + 1, *SEEN, *later, again)).state == "ready"


def test_a_node_that_failed_was_last_seen_when_it_was_told() -> None:
    data = {"node_id": "box-c", "base_url": "http://box-c:11434", "healthy": False}
    failed = event(
        5, SEEN_MS + 1_000, "NodeHealthChanged", {**data, "reason": "timeout", "failed_in_row": 2}
    )
    document = past(SEEN_MS + STALENESS_MS + 1, *SEEN, failed)
    stamp = node(document).stamp
    assert node(document).state == "unhealthy"
    assert stamp is not None
    assert not stamp.fresh
    assert document.inferred_fresh == []


def test_after_another_fleet_was_declared_a_node_is_not_seen_before_it_is_again() -> None:
    # The stamp is of the fleet before: placement would not have relied on it.
    later = declared(5, SEEN_MS + 1_000, revision=2)
    assert node(past(SEEN_MS + 2_000, *SEEN, later)).state == "stale"
    again = observed(6, SEEN_MS + 3_000, SEEN_MS + 2_999, revision=2)
    assert node(past(SEEN_MS + 3_000, *SEEN, later, again)).state == "ready"


def test_a_grant_tells_that_its_node_was_seen() -> None:
    granted = acquired(5, SEEN_MS + 50_001, observed_at_ms=SEEN_MS + 50_000)
    document = past(SEEN_MS + 50_000 + STALENESS_MS, *SEEN, granted)
    assert document.inferred_fresh == []
    stamp = node(document).stamp
    assert stamp is not None
    assert stamp.age_ms == STALENESS_MS


def test_a_state_that_an_older_release_kept_says_which_slots_it_does_not_know() -> None:
    now = Coordination()
    now.engine.apply_all([*SEEN, acquired(5, SEEN_MS + 1), ended(6, SEEN_MS + 2)])
    assert node(past(SEEN_MS + 3, start=now.copy())).slots_draining == 1
    old = now.document()
    old["version"] = 1
    del old["state"]["drains"]
    del old["state"]["ownership"]["ended_at_ms"]
    document = past(SEEN_MS + 3, start=Coordination.from_document(old))
    assert node(document).slots_draining == 0
    assert [note for note in document.notes if "kept by an older release" in note]
    # An hour later every one of them is free again.
    assert past(SEEN_MS + 3_600_003, start=Coordination.from_document(old)).notes == []
