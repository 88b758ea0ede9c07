"""What a line of `aibs replay --json`, and of an exported log behind its header, holds."""

from __future__ import annotations

from typing import Any, Final

SCHEMA: Final = "aibs.replay.event/1"

_ID = {"type": "string", "pattern": "^[0-9]{1,20}-[0-9]{1,20}$"}
_TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
_NUMBER, _TEXT, _OBJECT, _NULL = (
    {"type": kind} for kind in ("integer", "string", "object", "null")
)

_EVENT = {
    "id": _ID,
    "seq": _NUMBER,
    "at": _TIME,
    "type": _TEXT,
    "v": _NUMBER,
    "actor": _TEXT,
    "fence": {"type": ["integer", "null"]},
    "token": {"type": ["string", "null"]},
    "data": _OBJECT,
}
_DAMAGED = {
    **dict.fromkeys(_EVENT, _NULL),
    "id": {"anyOf": [_ID, _NULL]},
    "data": {"type": "object", "maxProperties": 0},
    "damaged": _TEXT,
    "fields": {"type": "object", "additionalProperties": _TEXT},
}


def json_schema() -> dict[str, Any]:
    """An event, or an entry of the log that is none: why, and its fields in base64."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "Event",
        "description": "The data of each type is in docs/events.md.",
        "oneOf": [_line(_EVENT), _line(_DAMAGED)],
    }


def _line(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
