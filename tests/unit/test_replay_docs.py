"""The pages that are made: none has drifted from what it is made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aibs.eventstore.events import EVENT_TYPES
from aibs.replay.event_docs import page as events_page
from aibs.replay.event_docs import unit_of, writers_of_all
from tests.integration.incident_page import page as incident_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_events_is_what_the_types_say() -> None:
    assert (DOCS / "events.md").read_text("utf-8") == events_page()


def test_every_type_has_a_writer_and_no_writer_writes_what_is_no_type() -> None:
    assert writers_of_all().keys() == EVENT_TYPES.keys()


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("deadline_ms", "moment"),
        ("wait_deadline_ms", "moment"),
        ("observed_at_ms", "moment"),
        ("due_ms", "moment"),
        ("held_ms", "ms"),
        ("budget_bytes", "bytes"),
        ("params", "millions"),
        ("fence", ""),
    ],
)
def test_a_moment_is_not_taken_for_a_duration(name: str, unit: str) -> None:
    assert unit_of(name) == unit


def test_every_command_of_the_worked_incident_prints_what_the_page_shows() -> None:
    text = (DOCS / "incident.md").read_text("utf-8")
    assert text.count("\n$ aibs ") == 7
    assert incident_page(text, dict(os.environ)) == text
