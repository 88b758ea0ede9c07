"""How sentences of the audit name sizes, times and lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.codec import bytes_to_gb

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES_MAX = 8
"""Names that a sentence lists before it counts the rest: a fleet may have a thousand."""

NAME_LENGTH_MAX = 200


def gb(size_bytes: int) -> str:
    """`6.654 GB`."""
    return f"{bytes_to_gb(size_bytes):.12g} GB"


def seconds(duration_ms: int) -> str:
    """`2 s`, `0.25 s`."""
    return f"{duration_ms / 1000:.12g} s"


def age(duration_ms: int) -> str:
    """A duration for a glance: `0.4 s`, `75 s`, `12 min`, `3 h`."""
    if duration_ms < 10_000:
        return f"{duration_ms / 1000:.1f} s"
    for limit_ms, unit_ms, unit in ((120_000, 1000, "s"), (7_200_000, 60_000, "min")):
        if duration_ms < limit_ms:
            return f"{duration_ms // unit_ms} {unit}"
    return f"{duration_ms // 3_600_000} h"


def names(found: Iterable[str]) -> str:
    """`a, b and 3 more`."""
    listed = list(found)
    shown = ", ".join(listed[:NAMES_MAX])
    return shown if len(listed) <= NAMES_MAX else f"{shown} and {len(listed) - NAMES_MAX} more"


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """Text from outside, safe for a terminal: an escape sequence in a model's name stays text."""
    safe = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return safe if len(safe) <= NAME_LENGTH_MAX else f"{safe[:NAME_LENGTH_MAX]}…"
