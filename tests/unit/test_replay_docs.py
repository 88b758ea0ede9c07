"""The pages that are made: none has drifted from what it is made of."""

from __future__ import annotations

import os
from pathlib import Path

from aibs.replay.event_docs import page as events_page
from tests.integration.incident_page import page as incident_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_events_is_what_the_types_say() -> None:
    assert (DOCS / "events.md").read_text("utf-8") == events_page()


def test_every_command_of_the_worked_incident_prints_what_the_page_shows() -> None:
    text = (DOCS / "incident.md").read_text("utf-8")
    assert text.count("\n$ aibs ") == 7
    assert incident_page(text, dict(os.environ)) == text
