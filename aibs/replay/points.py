"""Moments as an operator names them: a time with its zone, so long ago, an event's ID. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from aibs.codec import rfc3339
from aibs.errors import ConfigurationError
from aibs.replay.entries import AT_MS_MAX, is_id
from aibs.reports.durations import duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable

HOW = "Write a time like 2026-12-01T12:03:04Z, so long ago like -15m, or an event's ID."
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Point:
    """A moment. `at_ms` for a time, `ago_ms` before the log's now, `id` for an event."""

    kind: Literal["time", "ago", "id"]
    at_ms: int = 0
    ago_ms: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range: an event's ID, or a time by the server's clock.

    Where the server's clock stepped back a time is met twice; its first passage is meant.
    """

    id: str | None = None
    at_ms: int | None = None

    def __str__(self) -> str:
        return self.id if self.id is not None else rfc3339(self.at_ms or 0)


def read_point(text: str, option: str) -> Point:
    """The moment that the text names. Raises ConfigurationError, naming the option."""
    stripped = text.strip()
    if is_id(stripped):
        return Point("id", id=stripped)
    if stripped.lower() == "now":
        return Point("ago")
    if stripped.startswith("-") and stripped != "-":
        try:
            return Point("ago", ago_ms=duration_ms(stripped[1:], option))
        except ConfigurationError:
            raise _unreadable(text, option) from None
    if not _DATE.match(stripped):
        raise _unreadable(text, option)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise _unreadable(text, option) from None
    if moment.tzinfo is None:
        raise ConfigurationError(
            f"{option} is {text[:40]!r}, a time without a zone.",
            mend="Add Z for UTC, or an offset like +01:00.",
        )
    at_ms = round(moment.timestamp() * 1000)
    if not 0 <= at_ms <= AT_MS_MAX:
        raise _unreadable(text, option)
    return Point("time", at_ms=at_ms)


def bound_of(point: Point, now_ms: Callable[[], int]) -> Bound:
    """The moment, when the log's now is known; it is asked for only where it matters."""
    match point.kind:
        case "id":
            return Bound(id=point.id)
        case "ago":
            return Bound(at_ms=max(0, now_ms() - point.ago_ms))
    return Bound(at_ms=point.at_ms)


def _unreadable(text: str, option: str) -> ConfigurationError:
    return ConfigurationError(f"{option} is {text[:40]!r}, not a moment.", mend=HOW)
