"""The grammar of `keep_alive`, as Ollama's `api.Duration` and Go's `time.ParseDuration` have it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

FOREVER_NS = 2**63 - 1
"""What a negative keep-alive means: about 292 years."""

_OVERFLOWED_NS = -(2**63)
"""What a number too large becomes on amd64: negative, so that the model goes at once."""

_UNITS_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_NUMBER = re.compile(r"\d*(?:\.\d*)?")
_UNIT = re.compile(r"[^.0-9]*")
_GO_TYPES = {bool: "bool", list: "[]interface {}", dict: "map[string]interface {}"}


class InvalidDuration(ValueError):
    """The value is not a duration. The message is the server's own text."""


def parse_duration(text: str) -> int:
    """A Go duration in nanoseconds. Raises InvalidDuration."""
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    invalid = InvalidDuration(f"time: invalid duration {quoted}")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise invalid
    total_ns = 0
    while rest:
        number = _NUMBER.match(rest)
        if number is None or number.group() in ("", "."):
            raise invalid
        rest = rest[number.end() :]
        unit_match = _UNIT.match(rest)
        unit = unit_match.group() if unit_match else ""
        if not unit:
            raise InvalidDuration(f"time: missing unit in duration {quoted}")
        if unit not in _UNITS_NS:
            raise InvalidDuration(f'time: unknown unit "{unit}" in duration {quoted}')
        rest = rest[len(unit) :]
        digits = number.group()
        total_ns += int(Decimal(f"0{digits}0" if "." in digits else digits) * _UNITS_NS[unit])
        if total_ns > FOREVER_NS:
            raise invalid
    return -total_ns if text[0] == "-" else total_ns


def parse_keep_alive(value: Any) -> int | None:
    """A request's `keep_alive` in nanoseconds; None where it does not say. Raises InvalidDuration.

    A number is seconds; below zero, number or duration, is for ever; null is as if absent.
    """
    if value is None:
        return None
    if isinstance(value, str):
        duration_ns = parse_duration(value)
        return FOREVER_NS if duration_ns < 0 else duration_ns
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidDuration(f"Unsupported type: '{_GO_TYPES[type(value)]}'")
    if value < 0:
        return FOREVER_NS
    # The server multiplies as float64; what passes int64 comes out negative.
    duration_ns = int(float(value) * 1e9)
    return duration_ns if duration_ns <= FOREVER_NS else _OVERFLOWED_NS
