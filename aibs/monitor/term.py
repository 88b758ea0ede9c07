"""A term as its holder sees it: a value, with pure methods."""

from __future__ import annotations

from dataclasses import dataclass, replace

TRUST_MARGIN_RATIO = 0.1
"""Share of the TTL that a holder does not use: for clocks that run at slightly different speeds,
and for the time between looking at the clock and the packet leaving."""

RENEW_RATIO = 1 / 3
"""Renewals start every third of the TTL, so that two may fail before trust ends."""

TIMEOUT_RATIO = 1 / 4
"""A renewal waits at most a quarter of the TTL for its answer, so that a hung connection leaves
time for another."""


@dataclass(frozen=True, slots=True)
class Term:
    """Our term of office. `trusted_until_ms` is on our own boot-time clock."""

    owner: str
    fence: int
    ttl_ms: int
    trusted_until_ms: int

    def trusted(self, now_ms: int) -> bool:
        """Whether we may still act on the term."""
        return now_ms < self.trusted_until_ms

    def renewed(self, sent_at_ms: int, granted_ms: int) -> Term:
        """The term after the server granted `granted_ms` to a request sent at `sent_at_ms`."""
        return replace(self, trusted_until_ms=trusted_until_ms(sent_at_ms, granted_ms, self.ttl_ms))


def trusted_until_ms(sent_at_ms: int, granted_ms: int, ttl_ms: int) -> int:
    """Until when a grant is trusted: counted from before it was asked for."""
    return sent_at_ms + granted_ms - int(ttl_ms * TRUST_MARGIN_RATIO)
