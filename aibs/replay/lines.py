"""One line for one event: when by the server's clock, its number, its type, what happened. Pure."""

from __future__ import annotations

from aibs.codec import rfc3339
from aibs.projections.timeline import describe
from aibs.replay.entries import Damaged, Item, event_of

LINE_LENGTH_MAX = 1000
SEQ_WIDTH, TYPE_WIDTH = 7, 19
NO_TIME = "-" * 24


def line_of(item: Item) -> str:
    """The item as a line, safe for a terminal."""
    event = event_of(item)
    if event is None:
        assert isinstance(item, Damaged)
        return safe(f"{NO_TIME} {'-':>{SEQ_WIDTH}}  {'(damaged)':{TYPE_WIDTH}} {damage_of(item)}")
    return safe(
        f"{rfc3339(event.at_ms)} {event.seq:>{SEQ_WIDTH}}  {event.type:{TYPE_WIDTH}} "
        f"{describe(event)}"
    )


def damage_of(item: Damaged) -> str:
    """A damaged entry as a clause: `entry 176-0 has no field seq`."""
    return f"{'an entry' if item.id is None else f'entry {item.id}'} {item.why}"


def safe(text: str, limit: int = LINE_LENGTH_MAX) -> str:
    """Text from a log on one line of a terminal."""
    cut = text[: limit + 1]
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in cut)
    return shown if len(text) <= limit else f"{shown[:limit]}…"
