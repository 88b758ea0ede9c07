"""What a log holds: events, and entries that cannot be read as one. Pure."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from aibs.codec import rfc3339
from aibs.errors import CorruptLog
from aibs.eventstore.events.envelope import Event, parse_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

EVENT_BYTES_MAX = 1_048_576
"""Far above what a fleet of a thousand nodes writes: a larger entry is none of ours."""

AT_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, the last that can be written as a time."""

WHY_LENGTH_MAX = 200
_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
_ID_IN_LINE = re.compile(rb'"id":\s*"(\d{1,20}-\d{1,20})"')


@dataclass(frozen=True, slots=True)
class Damaged:
    """An entry that is not an event. `why` is a clause; `fields` are as stored, in base64."""

    id: str | None
    why: str
    fields: dict[str, str] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """As `aibs replay --json` prints it: an event of which nothing is known."""
        return {
            "id": self.id,
            "seq": None,
            "at": None,
            "type": None,
            "v": None,
            "actor": None,
            "fence": None,
            "token": None,
            "data": {},
            "damaged": self.why,
            "fields": self.fields,
        }


@dataclass(frozen=True, slots=True)
class Oversized:
    """An event that is larger than any that this project writes."""

    event: Event

    @property
    def id(self) -> str:
        """The event's."""
        return self.event.id

    def as_document(self) -> dict[str, Any]:
        """The event's."""
        return self.event.as_document()


Item = Event | Damaged | Oversized


def event_of(item: Item) -> Event | None:
    """The event, None where the entry is not one."""
    if isinstance(item, Event):
        return item
    return item.event if isinstance(item, Oversized) else None


def order(entry_id: str) -> tuple[int, int]:
    """An ID as what it is ordered by. Raises ValueError where it is none."""
    match = _ID.fullmatch(entry_id)
    if match is None:
        raise ValueError(f"{entry_id!r} is not an event ID")
    return int(match.group(1)), int(match.group(2))


def is_id(text: str) -> bool:
    """Whether the text is an event ID."""
    return _ID.fullmatch(text) is not None


def read_entry(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Item:
    """A stream entry as it is."""
    try:
        event = parse_entry(entry_id, fields)
    except CorruptLog as error:
        name = entry_id.decode("ascii", "replace")
        why = str(error).removeprefix(f"Entry {name} of the log ").rstrip(".")
        return Damaged(name, clause(why), _kept(fields))
    if not 0 <= event.at_ms <= AT_MS_MAX:
        return Damaged(event.id, clause(f"cannot be read: at_ms {event.at_ms}"), _kept(fields))
    if sum(map(len, fields.values())) > EVENT_BYTES_MAX:
        return Oversized(event)
    return event


def read_line(line: bytes, number: int) -> Item:
    """A line of an exported log as it is; `number` names one that has no ID."""
    try:
        document = orjson.loads(line)
    except ValueError as error:
        return _unreadable(line, f"cannot be read: line {number} is not JSON ({error})")
    if not isinstance(document, dict):
        return _unreadable(line, f"cannot be read: line {number} is not a JSON object")
    if "damaged" in document:
        return _told_damaged(document)
    try:
        event = _event(document)
    except KeyError as error:
        return _unreadable(line, f"has no field {error.args[0]}")
    except (ValueError, TypeError) as error:
        return _unreadable(line, f"cannot be read: {error}")
    return Oversized(event) if len(line) > EVENT_BYTES_MAX else event


def _event(document: dict[str, Any]) -> Event:
    fence, token, data = document["fence"], document["token"], document["data"]
    event = Event(
        document["id"],
        document["seq"],
        at_ms_of(document["at"]),
        document["type"],
        document["v"],
        document["actor"],
        fence,
        token,
        data,
    )
    if (
        type(event.seq) is not int
        or type(event.version) is not int
        or type(event.id) is not str
        or type(event.type) is not str
        or type(event.actor) is not str
        or type(data) is not dict
        or (fence is not None and type(fence) is not int)
        or (token is not None and type(token) is not str)
        or not _ID.fullmatch(event.id)
    ):
        raise TypeError("a field is of another kind than an event's")
    return event


def at_ms_of(text: str) -> int:
    """A time as this project writes it, in milliseconds. Raises ValueError, TypeError."""
    if len(text) != 24 or text[23] != "Z" or text[19] != ".":
        raise ValueError(f"{text[:40]!r} is not a time")
    return _minute_ms(text[:17]) + int(text[17:19]) * 1000 + int(text[20:23])


_minutes: dict[str, int] = {}


def _minute_ms(prefix: str) -> int:
    """Most events share their minute with the one before."""
    known = _minutes.get(prefix)
    if known is None:
        from datetime import datetime

        known = int(datetime.fromisoformat(f"{prefix}00Z").timestamp()) * 1000
        if len(_minutes) > 64:
            _minutes.clear()
        _minutes[prefix] = known
    return known


def as_line(item: Item) -> bytes:
    """The item as a line of an exported log."""
    if isinstance(item, Event):
        # As `as_document`, field by field: a long log has millions of them.
        return orjson.dumps(
            {
                "id": item.id,
                "seq": item.seq,
                "at": rfc3339(item.at_ms),
                "type": item.type,
                "v": item.version,
                "actor": item.actor,
                "fence": item.fence,
                "token": item.token,
                "data": item.data,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )
    return orjson.dumps(item.as_document(), option=orjson.OPT_APPEND_NEWLINE)


def clause(text: str) -> str:
    """Text about something damaged, short and on one line."""
    safe = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return safe if len(safe) <= WHY_LENGTH_MAX else f"{safe[:WHY_LENGTH_MAX]}…"


def _kept(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        name.decode("utf-8", "backslashreplace"): base64.b64encode(value).decode()
        for name, value in fields.items()
    }


def _unreadable(line: bytes, why: str) -> Damaged:
    found = _ID_IN_LINE.search(line)
    kept = {"line": base64.b64encode(line.rstrip(b"\n")).decode()}
    return Damaged(found.group(1).decode() if found else None, clause(why), kept)


def _told_damaged(document: dict[str, Any]) -> Damaged:
    entry_id, fields = document.get("id"), document.get("fields")
    kept = fields if isinstance(fields, dict) else {}
    return Damaged(
        entry_id if isinstance(entry_id, str) and is_id(entry_id) else None,
        clause(str(document["damaged"])),
        {str(name): str(value) for name, value in kept.items()},
    )
