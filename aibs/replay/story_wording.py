"""How a request's story names reasons, requests and ends. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.placement.values import NodeReason
from aibs.placement.wording import node_clause
from aibs.replay.story import NodeWhy

if TYPE_CHECKING:
    from aibs.replay.story import Outcome


def missed(last_ms: int, now_ms: int, interval_ms: int) -> int:
    """Heartbeats that were due and did not come; half an interval late is not missed."""
    return max(0, (now_ms - last_ms - interval_ms // 2) // max(1, interval_ms))


def reason(told: dict[str, Any]) -> NodeReason:
    """A node's reason as it is stored."""
    return NodeReason(
        told["node_id"],
        told["reason"],
        told.get("missing_bytes"),
        told.get("wait_ms"),
        told.get("why"),
    )


def whys(reasons: list[dict[str, Any]]) -> list[NodeWhy]:
    """The reasons that a decision told."""
    return [
        NodeWhy(
            node_id=told["node_id"],
            reason=told["reason"],
            detail=node_clause(reason(told)),
            told="by_the_decision",
        )
        for told in reasons
    ]


def clauses(data: dict[str, Any]) -> str:
    """The same as one clause."""
    told = [node_clause(reason(one)) for one in data["reasons"]]
    told += [f"{count} more nodes: {reason}" for reason, count in sorted(data["others"].items())]
    return ", ".join(told) or str(data["reason"])


def asked_for(asked: dict[str, Any]) -> str:
    """The model, the role, or both."""
    lane = asked.get("lane")
    if isinstance(lane, str):
        kind, _, rest = lane.partition("|")
        key, _, role = rest.partition("|")
        named = {"m": key, "r": f"the role {key}", "mr": f"{key} as {role}"}
        return named.get(kind, lane).removeprefix("registry.ollama.ai/library/")
    model, wanted_role = asked.get("model"), asked.get("role")
    if model is None:
        return "a model"
    return str(model) if wanted_role is None else f"{model} as {wanted_role}"


def was(outcome: Outcome) -> str:
    """How a lease ended, as a verb."""
    return {
        "completed": "completed",
        "failed": "failed",
        "cancelled": "was cancelled",
        "expired": "expired without a release",
        "reaped": "was reaped",
    }.get(outcome, outcome)
