"""How long a holder trusts its lease by its own clock. Pure."""

from __future__ import annotations

MARGIN_MIN_MS = 200
MARGIN_MAX_MS = 2_000
_MARGIN_PART = 50
"""A fiftieth: 2 %."""


def margin_ms(ttl_ms: int) -> int:
    """What is taken off for clocks that run at different speeds and for ending the work."""
    return min(max(MARGIN_MIN_MS, ttl_ms // _MARGIN_PART), MARGIN_MAX_MS)


def trusted_until_ms(sent_at_ms: int, remaining_ms: int, ttl_ms: int) -> int:
    """When trust ends, on the clock of `sent_at_ms`.

    Counted from before the request was sent, so that a slow answer never lengthens it; more than
    the TTL is not believed, as a server whose clock stepped back would say it.
    """
    return sent_at_ms + min(remaining_ms, ttl_ms) - margin_ms(ttl_ms)
