"""Why each node but the chosen one did not get a lease, made out from the log before the grant.

A grant tells what its own node had; of the others it tells how many were looked at. Their state is
in the log, and the order of the choice is the protocol's: free slots, then warm, then the least
active parameters, then the most free memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.errors import Broken
from aibs.fleet import Fleet
from aibs.lanes import lane_name, lanes_of
from aibs.placement.values import NodeReason
from aibs.placement.wording import node_clause
from aibs.replay.as_of import status_of
from aibs.replay.states import Past
from aibs.replay.story import NodeWhy

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.replay.folding import Folded
    from aibs.replay.header import Timing
    from aibs.reports.status import NodeReport

CLOSED = {
    "cordoned": "node_cordoned",
    "tripped": "node_tripped",
    "unhealthy": "node_unhealthy",
    "loading": "node_loading",
    "stale": "stale_residency",
    "unaccounted": "unaccounted_resident",
    "undeclared": "affinity",
}
PASSED_OVER = "passed_over"


@dataclass(frozen=True, slots=True)
class _Rank:
    """What the choice compares, in its order."""

    free_slots: int
    warm: bool
    params: int
    free_bytes: int


def standing(before: Folded, event: Event, timing: Timing, namespace: str) -> list[NodeWhy]:
    """Each other declared node, `before` being the state before the grant."""
    lease = event.data["lease"]
    status = status_of(Past(before, event.at_ms, partial=False), timing, namespace)
    allowed = _allowed(before, lease)
    chosen = next((node for node in status.nodes if node.node_id == lease["node_id"]), None)
    best = None if chosen is None else _rank(before, chosen, lease["key"])
    found = []
    for node in status.nodes:
        if node.node_id == lease["node_id"] or node.state == "undeclared":
            continue
        reason = _reason(before, node, lease, allowed)
        if reason is not None:
            detail = node_clause(reason)
            code = reason.reason
        else:
            detail = f"{node.node_id} could have taken it: {_behind(before, node, lease, best)}"
            code = PASSED_OVER
        found.append(NodeWhy(node_id=node.node_id, reason=code, detail=detail, told="from_the_log"))
    return found


def _allowed(before: Folded, lease: dict[str, Any]) -> frozenset[str] | None:
    """The nodes on which the worker may run in that role; None: not known, or all."""
    document = before.coordination.declared.document
    if document is None:
        return None
    try:
        lanes = lanes_of(Fleet.from_document(document))
    except Broken:
        return None
    found = lanes.get(lane_name(lease["key"], lease["role"]))
    if found is None or isinstance(found, str):
        return None
    nodes = next((lane.nodes for lane in found if lane.worker_id == lease["worker_id"]), None)
    return None if nodes is None else frozenset(nodes)


def _reason(
    before: Folded, node: NodeReport, lease: dict[str, Any], allowed: frozenset[str] | None
) -> NodeReason | None:
    """The first reason why not, in the order in which placement looks."""
    node_id = node.node_id
    if allowed is not None and node_id not in allowed:
        return NodeReason(node_id, "affinity")
    closed = CLOSED.get(node.state)
    if closed is not None:
        return NodeReason(node_id, closed, why=node.detail if node.state == "cordoned" else None)
    if node.slots is not None and node.slots_used >= node.slots:
        drains = node.slots_used - node.slots_draining < node.slots
        return NodeReason(node_id, "draining" if drains else "no_slot")
    leased = _leased(before, node_id)
    added = max(0, lease["weight_bytes"] - leased.get(lease["key"], (0, 0))[0])
    if node.free_bytes is not None and added > node.free_bytes:
        return NodeReason(node_id, "no_memory", missing_bytes=added - node.free_bytes)
    if node.reserved_for not in (None, lease["request_key"]):
        return NodeReason(node_id, "reserved")
    return None


def _leased(before: Folded, node_id: str) -> dict[str, tuple[int, int]]:
    """Weight and active parameters of each leased model there."""
    found: dict[str, tuple[int, int]] = {}
    for lease in before.coordination.leases.live_part()["leases"].values():
        if lease["node_id"] == node_id:
            weight, params = found.get(lease["key"], (0, 0))
            found[lease["key"]] = (max(weight, lease["weight_bytes"]), params + lease["params"])
    return found


def _rank(before: Folded, node: NodeReport, key: str) -> _Rank:
    leased = _leased(before, node.node_id)
    residency = before.coordination.residency.live_part().get(node.node_id)
    resident = () if residency is None else residency["models"]
    warm = key in leased or any(
        key in (model.get("roster_keys") or [model["key"]]) for model in resident
    )
    return _Rank(
        free_slots=(node.slots or 0) - node.slots_used,
        warm=warm,
        params=sum(params for _, params in leased.values()),
        free_bytes=node.free_bytes or 0,
    )


def _behind(before: Folded, node: NodeReport, lease: dict[str, Any], best: _Rank | None) -> str:
    if best is None:
        return "the chosen node ranked before it"
    chosen, here = lease["node_id"], _rank(before, node, lease["key"])
    if here.free_slots != best.free_slots:
        return f"{chosen} had {best.free_slots} free slots, it had {here.free_slots}"
    if here.warm != best.warm:
        return f"the model was {'warm' if best.warm else 'not there'} on {chosen}" + (
            "" if best.warm else ", and warm on it"
        )
    if here.params != best.params:
        worked, works = best.params / 1000, here.params / 1000
        return f"{chosen} worked on {worked:g} billion active parameters, it on {works:g}"
    if here.free_bytes != best.free_bytes:
        return f"{chosen} had more memory free"
    return f"both were equal, and it was {chosen}'s turn"
