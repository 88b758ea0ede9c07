"""What the monitors' own log lines mean for the proof. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.codec import loads
from aibs.proofs.document import Stderr

if TYPE_CHECKING:
    from collections.abc import Iterable

QUIET = ("debug", "info")

CHURN = frozenset(
    {
        "term_lost",
        "renewal_unanswered",
        "coordination_unreachable",
        "observation_unanswered",
        "declaration_unanswered",
        "server_clock_differs",
    }
)
"""Warnings of a monitor whose term, or whose way to the server, was in doubt."""

AFTER_A_PAUSE = frozenset({"term_lost", "poll_failed", "poll_refused", "renewal_unanswered"})
"""What a monitor says that was stopped past its term, and went on."""

SHOWN_MAX = 300


def classify(lines: Iterable[str], *, paused: bool = False) -> Stderr:
    """Sort the lines of one monitor. Ordinary ones (info) are told nowhere."""
    expected: list[str] = []
    churn: list[str] = []
    unexplained: list[str] = []
    for line in lines:
        if not line.strip():
            continue
        entry = _entry(line)
        shown = line.strip()[:SHOWN_MAX]
        if entry is None:
            unexplained.append(shown)
        elif entry.get("level") in QUIET:
            continue
        elif paused and entry.get("event") in AFTER_A_PAUSE:
            expected.append(shown)
        elif entry.get("event") in CHURN:
            churn.append(shown)
        else:
            unexplained.append(shown)
    return Stderr(expected=expected, churn=churn, unexplained=unexplained)


def joined(parts: Iterable[Stderr]) -> Stderr:
    """Several monitors' as one."""
    told = list(parts)
    return Stderr(
        expected=[line for one in told for line in one.expected],
        churn=[line for one in told for line in one.churn],
        unexplained=[line for one in told for line in one.unexplained],
    )


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry = loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
