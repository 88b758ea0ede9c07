"""How a denial is told over HTTP. Pure."""

from __future__ import annotations

from typing import Final

STATUSES: Final = {
    "unknown_model": 404,
    "request_conflict": 409,
    "request_ended": 409,
    "queue_full": 429,
}
"""Every other denial is 503: it cannot be placed now."""

NEVER: Final = frozenset(
    {"unknown_model", "unmeasured_weight", "never_fits", "affinity", "request_conflict"}
    | {"request_ended", "pool_version", "fleet_mismatch"}
)
"""No waiting mends these, so no time to ask again is told."""

RETRY_AFTER_MS: Final = 2_000
"""Where the pool does not say when asking again may help."""


def answer_to(reason: str, retry_after_ms: int | None) -> tuple[int, int | None]:
    """The status, and milliseconds until it is worth asking again, None where it never is."""
    status = STATUSES.get(reason, 503)
    if reason in NEVER:
        return status, None
    return status, retry_after_ms or RETRY_AFTER_MS
