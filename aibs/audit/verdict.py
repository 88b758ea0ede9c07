"""How a gate says passed, failed or not known, and the settings' names that its mends give."""

from __future__ import annotations

from aibs.audit.document import Gate

PREFIX = "AIBS_MODEL_CLUSTER_"
MONITOR = f"{PREFIX}RESIDENCY_MONITOR_"
ROSTER = "AIBS_MODEL_ADMISSION_WORKER_ROSTER"

GATES_ABOVE = "Mend the gates above first."


def passed(name: str, detail: str) -> Gate:
    """A gate that passed on what was found."""
    return Gate(name=name, passed=True, detail=detail, fix=None)


def failed(name: str, detail: str, fix: str) -> Gate:
    """A gate that failed on what was found."""
    return Gate(name=name, passed=False, detail=detail, fix=fix)


def unknown(name: str, why: str, fix: str) -> Gate:
    """A gate whose evidence is missing: failed, and it says so."""
    return Gate(name=name, passed=False, detail=f"not known: {why}", fix=fix)
