"""The known name that a mistyped one most likely means."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CUTOFF = 0.6
"""Below this likeness (0 to 1) a hint would mislead more than help."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, None where none is."""
    found = get_close_matches(name, list(known), n=1, cutoff=CUTOFF)
    return found[0] if found else None
