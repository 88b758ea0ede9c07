"""One node's capacity: the document that the fold keeps of it, and what that says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """One node at one moment. Bytes are None where they are not known.

    `free_bytes` is what budget leaves beside foreign and leased models, below 0 where the budget
    shrank; `slots_draining` are part of `slots_used`, and drain until a later poll is told of;
    `closed_by` has reason codes; `evidence` is what the newest grant there relied on.
    """

    node_id: str
    base_url: str
    declared: bool
    budget_bytes: int | None
    own_bytes: int | None
    foreign_bytes: int | None
    leased_bytes: int
    free_bytes: int | None
    slots: int | None
    slots_used: int
    slots_draining: int
    slots_free: int | None
    leases: tuple[str, ...]
    observed_ms_ago: int | None
    closed_by: tuple[str, ...]
    evidence: dict[str, Any] | None


def new_node(base_url: str) -> dict[str, Any]:
    """A node of which nothing is known."""
    return {
        "base_url": base_url,
        "declared": False,
        "budget_bytes": None,
        "slots": None,
        "residency": None,
        "unhealthy": None,
        "seen_at_ms": 0,
        "leases": {},
        "draining": [],
        "cordon": None,
        "trip": None,
        "evidence": None,
    }


def rests(one: dict[str, Any], seen_at_ms: int, at_ms: int) -> bool:
    """A slot comes back after its time, once a poll that began after its lease's end answered."""
    return bool(one["until_ms"] > at_ms or one["ended_at_ms"] >= seen_at_ms)


def see(node: dict[str, Any], observed_at_ms: int, at_ms: int) -> None:
    """A poll of the node, that the log tells of at `at_ms`."""
    if observed_at_ms > node["seen_at_ms"]:
        node["seen_at_ms"] = observed_at_ms
    if node["draining"]:
        node["draining"] = [
            one for one in node["draining"] if rests(one, node["seen_at_ms"], at_ms)
        ]


def closed_by(node: dict[str, Any], at_ms: int) -> list[str]:
    """Reason codes of what keeps new leases away, whatever they weigh."""
    found = []
    if not node["declared"]:
        found.append("undeclared")
    seen = node["residency"]
    if seen is None:
        found.append("node_unhealthy" if node["unhealthy"] else "stale_residency")
    else:
        if not seen["healthy"]:
            found.append("node_unhealthy")
        if seen["unaccounted"]:
            found.append("unaccounted_resident")
    cordon = node["cordon"]
    if cordon is not None and (cordon["until_ms"] is None or at_ms < cordon["until_ms"]):
        found.append("node_cordoned")
    trip = node["trip"]
    if trip is not None and at_ms < trip["reopen_at_ms"]:
        found.append("node_tripped")
    return found
