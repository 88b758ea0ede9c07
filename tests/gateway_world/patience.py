"""Waiting for what others bring about, with a bound that only a hang reaches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S: Final = 25.0
LOOK_EVERY_S: Final = 0.01


def until(
    condition: Callable[[], bool], what: str | Callable[[], str], within_s: float = PATIENCE_S
) -> None:
    """Wait for a condition that others bring about."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"never within {within_s:g} s: {told}")
        time.sleep(LOOK_EVERY_S)
