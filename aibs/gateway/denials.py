"""How a denial, and what fails around one, is told over HTTP. Pure.

Every 503 says when to ask again: in seconds where waiting helps, in a minute where an operator has
to mend something first. Sentences for clients have no address of the coordination server and no
path of a machine; the log has those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aibs.errors import (
    ConfigurationError,
    FleetMismatch,
    LeaseLost,
    NodeError,
    PlacementDenied,
    PoolMissing,
    PoolVersionMismatch,
    Unreachable,
)
from aibs.gateway.installed import NOT_INSTALLED

if TYPE_CHECKING:
    from aibs.errors import AibsError

STATUSES: Final = {
    "unknown_model": 404,
    "request_conflict": 409,
    "request_ended": 409,
    "queue_full": 429,
}
"""Every other denial is 503: it cannot be placed now."""

MENDED_BY_OPERATOR: Final = frozenset(
    {"unmeasured_weight", "never_fits", "affinity", "pool_version", "fleet_mismatch"}
    | {NOT_INSTALLED}
)
"""No waiting mends these by itself: somebody has to measure, to set or to install something."""

NEVER: Final = frozenset({"unknown_model", "request_conflict", "request_ended"})
"""No time mends these, so none to ask again is told."""

RETRY_AFTER_MS: Final = 2_000
"""Where the pool does not say when asking again may help."""

MENDED_AFTER_MS: Final = 60_000
"""An operator mends a setting in minutes; a client that asks each minute costs nothing."""

NO_RETRY: Final = ("x-should-retry", "false")
"""Heard by OpenAI's clients, which ask again by themselves: the time to ask again is honest, and a
program that waited it out in silence, twice, would hide what is wrong."""

AWAY_RETRY_MS: Final = 1_000
"""Whether the coordination server is away is looked at twice a second."""

AWAY: Final = (
    "The coordination server does not serve now, and nothing is decided without it. Repeat the "
    "same request in a moment; the gateway's log says what failed."
)

SHUTTING_DOWN: Final = "shutting_down"
SHUTTING_DOWN_RETRY_MS: Final = 1_000
"""By then another instance has the address, or this one is back."""

BROKE: Final = "The gateway failed; its log says why."


@dataclass(frozen=True, slots=True)
class Told:
    """A failure as a client is told it."""

    status: int
    reason: str
    sentence: str
    retry_after_ms: int | None = None


def answer_to(reason: str, retry_after_ms: int | None) -> tuple[int, int | None]:
    """The status, and milliseconds until it is worth asking again, None where it never is."""
    status = STATUSES.get(reason, 503)
    if reason in NEVER:
        return status, None
    if reason in MENDED_BY_OPERATOR:
        return status, MENDED_AFTER_MS
    return status, retry_after_ms or RETRY_AFTER_MS


def sentence_of(denial: PlacementDenied) -> str:
    """The denial's sentence for a client. Why the coordination server is away names its address."""
    return AWAY if denial.reason == "coordination_unavailable" else str(denial)


def logged_of(denial: PlacementDenied) -> str:
    """What the log says of it: a client's sentence has not all of what brought it about."""
    return str(denial.__cause__ or denial)


def told(error: AibsError, *, stopping: bool = False) -> Told:
    """What a client is told of an error that no part before had an answer for."""
    match error:
        case PlacementDenied():
            status, retry_after_ms = answer_to(error.reason, error.retry_after_ms)
            return Told(status, error.reason, sentence_of(error), retry_after_ms)
        case LeaseLost():
            return Told(503, error.reason, str(error), RETRY_AFTER_MS)
        case NodeError():
            return Told(503, "node_unhealthy", str(error), RETRY_AFTER_MS)
        case Unreachable() | PoolMissing():
            return Told(503, "coordination_unavailable", AWAY, AWAY_RETRY_MS)
        case FleetMismatch():
            return Told(503, "fleet_mismatch", str(error), MENDED_AFTER_MS)
        case PoolVersionMismatch():
            return Told(503, "pool_version", str(error), MENDED_AFTER_MS)
        case ConfigurationError() if stopping:
            # The placer is closed.
            sentence = "This gateway is shutting down: send the same request to another one."
            return Told(503, SHUTTING_DOWN, sentence, SHUTTING_DOWN_RETRY_MS)
    return Told(500, "failed", BROKE)
