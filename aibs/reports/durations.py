"""Durations and moments as a person types them."""

from __future__ import annotations

import re

from aibs.errors import ConfigurationError

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION_MAX_MS = 3650 * _UNITS_MS["d"]
"""Ten years: beyond it lies a typing error, and no calendar."""

_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|min|h|d)")


def duration_ms(text: str, option: str) -> int:
    """`90s`, `15m`, `1h`, `2d` in milliseconds. Raises ConfigurationError, naming the option."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or not int(match.group(1)):
        raise ConfigurationError(
            f"{option} is {text[:40]!r}, not a duration.", mend="Write it like 90s, 15m, 1h or 2d."
        )
    found_ms = int(match.group(1)) * _UNITS_MS[match.group(2)]
    if found_ms > DURATION_MAX_MS:
        raise ConfigurationError(f"{option} is {text[:40]!r}, longer than ten years.")
    return found_ms
