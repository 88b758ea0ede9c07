"""Reading events: known, unknown, newer, older and damaged ones."""

from __future__ import annotations

from typing import Any

import pytest

from aibs.codec import dumps
from aibs.errors import CorruptLog
from aibs.eventstore.events import EVENT_TYPES, Event, Unreadable, decode
from aibs.eventstore.events.envelope import parse_entry
from aibs.projections.coordination import fold
from aibs.projections.timeline import describe


def _event(type_: str, data: dict[str, Any], version: int = 1, seq: int = 1) -> Event:
    return Event(f"{seq}-0", seq, 1000 * seq, type_, version, "a:1:monitor:x", 1, None, data)


RESIGNED = {"owner": "a", "fence": 1, "deadline_ms": 5, "how": "resigned"}
ELECTED = {
    "owner": "a",
    "fence": 1,
    "ttl_ms": 8000,
    "deadline_ms": 9000,
    "follows": None,
    "follows_fence": None,
    "because": "vacant",
}


def test_fields_of_a_later_release_are_kept_and_not_refused() -> None:
    data = decode(_event("OwnerResigned", {**RESIGNED, "farewell": "bye"}))
    assert not isinstance(data, Unreadable)
    assert data.model_dump()["farewell"] == "bye"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (_event("SomethingNew", {"x": 1}), "unknown_type"),
        (_event("OwnerResigned", RESIGNED, version=99), "newer_version"),
        (_event("OwnerResigned", {"owner": "a"}), "invalid_data"),
        (_event("OwnerResigned", {**RESIGNED, "fence": "one"}), "invalid_data"),
    ],
)
def test_what_cannot_be_read_is_kept_with_its_reason_and_stops_nothing(
    event: Event, why: str
) -> None:
    data = decode(event)
    assert isinstance(data, Unreadable)
    assert data.why == why
    state = fold([_event("OwnerElected", ELECTED), Event(**{**_fields(event), "seq": 2})])
    assert (state.unread, state.seq, state.holes) == (1, 2, 0)
    assert state.ownership.owner == "a", "what came before still holds"
    assert describe(event)


def _fields(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in Event.__dataclass_fields__}


def test_an_older_version_goes_through_its_upcaster() -> None:
    old = {"who": "a", "fence": 1, "deadline_ms": 5, "how": "resigned"}

    def upcast(data: dict[str, Any]) -> dict[str, Any]:
        data = dict(data)
        data["owner"] = data.pop("who")
        return data

    data = decode(_event("OwnerResigned", old, version=0), {("OwnerResigned", 0): upcast})
    assert not isinstance(data, Unreadable)
    assert data.model_dump()["owner"] == "a"


def test_a_hole_in_seq_is_counted() -> None:
    state = fold([_event("OwnerElected", ELECTED, seq=1), _event("OwnerResigned", RESIGNED, seq=3)])
    assert state.holes == 1


GOOD = {
    b"type": b"OwnerResigned",
    b"v": b"1",
    b"seq": b"7",
    b"at_ms": b"1000",
    b"actor": b"a",
    b"fence": b"1",
    b"token": b"",
    b"data": dumps(RESIGNED),
}


def test_an_entry_reads_back_as_it_was_written() -> None:
    event = parse_entry(b"5-0", GOOD)
    assert (event.id, event.seq, event.fence, event.token) == ("5-0", 7, 1, None)
    assert event.as_document()["at"] == "1970-01-01T00:00:01.000Z"


@pytest.mark.parametrize(
    "damage",
    [
        {b"seq": b"x"},
        {b"data": b"{"},
        {b"data": b"[]"},
        {b"data": b"\xff\xfe"},
        {b"type": None},
        {b"v": b""},
        {b"at_ms": b"1e3"},
    ],
    ids=str,
)
def test_a_damaged_entry_is_a_corrupt_log_that_names_it(damage: dict[bytes, bytes | None]) -> None:
    fields = {k: v for k, v in {**GOOD, **damage}.items() if v is not None}
    with pytest.raises(CorruptLog, match="5-0"):
        parse_entry(b"5-0", fields)


@pytest.mark.parametrize("type_", sorted(EVENT_TYPES))
def test_a_damaged_event_of_each_type_is_shown_and_never_a_crash(type_: str) -> None:
    for data in ({}, {"models": 7}, {"fleet": None}, {"owner": None, "healthy": "x"}):
        assert isinstance(describe(_event(type_, data)), str)
