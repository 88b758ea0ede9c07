"""docs/events.md out of the event types: `python -m aibs.replay.event_docs` prints it."""

from __future__ import annotations

import inspect
import sys

from pydantic import BaseModel

from aibs.eventstore.events import EVENT_TYPES
from aibs.eventstore.scripts import packaged, script_names

HEAD = """# Events

Every type of the log, its version, its data and who writes it. Made from the types and the scripts
themselves: `python -m aibs.replay.event_docs > docs/events.md`; a test compares.

Each event also has `id` (the order), `seq` (dense), `at_ms` (the server's clock), `type`, `v`,
`actor` (host:pid:role:random), and `fence` or `token` where its writer held one. A *moment* is
milliseconds since 1970 by the server's clock. Fields of later releases are kept; a type or version
that this release does not know is shown as it is stored, and named by `aibs replay --verify`.

*Written by* names who calls, and in which scripts of `aibs/lua`. A script may tell of what it found
and did not cause: an ended lease, a term that is over.
"""

CALLERS = {
    "acknowledge": "an operator",
    "acquire": "a placer",
    "admit": "a placer",
    "cancel": "a placer",
    "close": "the last holder of an embedded server",
    "cordon": "an operator",
    "declare": "the owner",
    "elect": "a candidate for the term",
    "forget": "an operator",
    "heartbeat": "a placer",
    "leave": "a placer",
    "model": "a placer",
    "observe": "the owner",
    "open": "whoever connects",
    "reap": "the owner",
    "record": "an operator",
    "refresh": "a placer",
    "reindex": "an operator",
    "release": "a placer",
    "renew": "the owner",
    "resign": "the owner",
    "revoke": "an operator",
    "session": "a placer",
    "snapshot": "the owner",
    "snapshot_part": "the owner",
    "trim": "the owner",
    "trip": "a placer",
    "uncordon": "an operator",
}
"""Who calls a script that writes events. A placer places requests and holds their leases."""

SCRIPTS_NAMED_MAX = 8

MOMENTS = frozenset({"arrival_ms", "deadlines", "due_ms", "since_ms", "until_ms"})
UNITS = {
    "bytes": "bytes",
    "context_length": "tokens",
    "ms": "ms",
    "params": "millions",
    "pid_start": "clock ticks since the host's start",
}
"""What neither a name's end nor its being a plain count tells."""


def page() -> str:
    """The whole page."""
    parts, nested, writers = [HEAD], dict[str, type[BaseModel]](), writers_of_all()
    for name in sorted(EVENT_TYPES):
        model = EVENT_TYPES[name]
        parts.append(
            f"\n## {name} (v{model.VERSION})\n\n{_told(model)}\n"
            f"Written by {_written_by(writers[name])}.\n\n{_table(model, nested)}"
        )
    parts.append("\n# Parts\n")
    shown: set[str] = set()
    while nested.keys() - shown:
        name = min(nested.keys() - shown)
        shown.add(name)
        parts.append(f"\n## {name}\n\n{_told(nested[name])}\n{_table(nested[name], nested)}")
    return "".join(parts)


def writers_of_all() -> dict[str, list[str]]:
    """By type, the scripts that write it, as their headers declare."""
    found: dict[str, list[str]] = {}
    for script in script_names():
        for type_ in packaged(script).header.events:
            found.setdefault(type_, []).append(script)
    return found


def unit_of(name: str) -> str:
    """What a number of that name counts; empty where it is a plain count or a number of order."""
    if name in MOMENTS or name.endswith(("_at_ms", "deadline_ms")):
        return "moment"
    if name.endswith("_ms"):
        return "ms"
    if name.endswith("_bytes"):
        return "bytes"
    return UNITS.get(name, "")


def _written_by(scripts: list[str]) -> str:
    if len(scripts) > SCRIPTS_NAMED_MAX:
        return f"whoever notices it first ({len(scripts)} scripts)"
    by: dict[str, list[str]] = {}
    for script in scripts:
        by.setdefault(CALLERS[script], []).append(f"`{script}`")
    return "; ".join(f"{caller} ({', '.join(names)})" for caller, names in sorted(by.items()))


def _told(model: type[BaseModel]) -> str:
    return " ".join(inspect.cleandoc(model.__doc__ or "").split()) + "\n"


def _table(model: type[BaseModel], nested: dict[str, type[BaseModel]]) -> str:
    if not model.model_fields:
        return ""
    rows = ["| field | type | unit |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        kind = _kind(field.annotation, nested)
        optional = "" if field.is_required() else ", may be absent"
        rows.append(f"| `{name}` | {kind}{optional} | {unit_of(name)} |")
    return "\n".join(rows) + "\n"


def _kind(annotation: object, nested: dict[str, type[BaseModel]]) -> str:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", None):
        if issubclass(annotation, BaseModel):
            nested[annotation.__name__] = annotation
        return annotation.__name__.replace("NoneType", "null")
    arguments = [_kind(one, nested) for one in getattr(annotation, "__args__", ())]
    origin = getattr(annotation, "__origin__", None)
    if origin is None and arguments:
        return " or ".join(arguments)
    name = getattr(origin, "__name__", str(annotation))
    return f"{name} of {', '.join(arguments)}" if arguments else name


if __name__ == "__main__":
    sys.stdout.write(page())
