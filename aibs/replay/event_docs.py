"""docs/events.md out of the event types: `python -m aibs.replay.event_docs` prints it."""

from __future__ import annotations

import inspect
import sys

from pydantic import BaseModel

from aibs.eventstore.events import EVENT_TYPES

HEAD = """# Events

Every type of the log, its version and its data. Made from the types themselves:
`python -m aibs.replay.event_docs > docs/events.md`; a test compares.

Each event also has `id` (the order), `seq` (dense), `at_ms` (the server's clock), `type`, `v`,
`actor` (host:pid:role:random), and `fence` or `token` where its writer held one. Sizes are bytes,
times milliseconds. Fields of later releases are kept; a type or version that this release does not
know is shown as it is stored, and named by `aibs replay --verify`.
"""


def page() -> str:
    """The whole page."""
    parts, nested = [HEAD], dict[str, type[BaseModel]]()
    for name in sorted(EVENT_TYPES):
        model = EVENT_TYPES[name]
        parts.append(f"\n## {name} (v{model.VERSION})\n\n{_told(model)}\n{_table(model, nested)}")
    parts.append("\n# Parts\n")
    shown: set[str] = set()
    while nested.keys() - shown:
        name = min(nested.keys() - shown)
        shown.add(name)
        parts.append(f"\n## {name}\n\n{_told(nested[name])}\n{_table(nested[name], nested)}")
    return "".join(parts)


def _told(model: type[BaseModel]) -> str:
    return " ".join(inspect.cleandoc(model.__doc__ or "").split()) + "\n"


def _table(model: type[BaseModel], nested: dict[str, type[BaseModel]]) -> str:
    if not model.model_fields:
        return ""
    rows = ["| field | type |", "|---|---|"]
    for name, field in model.model_fields.items():
        optional = "" if field.is_required() else ", may be absent"
        rows.append(f"| `{name}` | {_kind(field.annotation, nested)}{optional} |")
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
