"""The one JSON codec, and the two conversions that every document needs: times and GB."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson

BYTES_PER_GB = 10**9
"""GB are decimal, as `ollama ps` prints them."""


def dumps(value: Any) -> bytes:
    """Canonical JSON: keys sorted, no spaces, UTF-8."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def dumps_in_order(value: Any) -> bytes:
    """JSON with members in the order they stand in, for documents that are not ours: of a schema
    that a model answers by, the order of the properties is the order of the answer.
    """
    return orjson.dumps(value)


def dumps_text(value: Any) -> str:
    """Canonical JSON as text."""
    return dumps(value).decode()


def dumps_pretty(value: Any) -> str:
    """Indented JSON for a person, keys in the order given."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def loads(data: bytes | str) -> Any:
    """Parse JSON. Raises ValueError where it is not JSON."""
    return orjson.loads(data)


def rfc3339(at_ms: int) -> str:
    """Milliseconds since the epoch as RFC 3339 UTC with milliseconds, ending in Z."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def gb_to_bytes(gb: Decimal | float | int | str) -> int:
    """Decimal GB as a whole number of bytes, without binary rounding."""
    return int((Decimal(str(gb)) * BYTES_PER_GB).to_integral_value())


def bytes_to_gb(size_bytes: int) -> float:
    """Bytes as decimal GB, rounded to 3 places."""
    return round(size_bytes / BYTES_PER_GB, 3)
