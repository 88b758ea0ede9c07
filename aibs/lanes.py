"""What a request may ask for, and the workers that may serve it: derived from the fleet, pure.

A request names a model, a role, or both. Its lane name finds the workers; one of them is a lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aibs.codec import dumps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aibs.fleet import Fleet, Node, Worker

LANES_MAX = 8
"""Workers that one request may choose between."""

UNMEASURED: Literal["unmeasured_weight"] = "unmeasured_weight"


@dataclass(frozen=True, slots=True)
class Lane:
    """One worker for a request. `weight` in bytes, `params` in millions of active parameters;
    `nodes` None: all. `most` is the largest declared budget among its nodes, 0 where it has none.
    """

    worker_id: str
    model: str
    key: str
    weight: int
    params: int
    nodes: tuple[str, ...] | None
    most: int

    def document(self) -> dict[str, Any]:
        """As the scripts read it."""
        document: dict[str, Any] = {
            "worker_id": self.worker_id,
            "model": self.model,
            "key": self.key,
            "weight": self.weight,
            "params": self.params,
            "most": self.most,
            # The part of a lease's document that the lane decides, ready to be joined in.
            "text": dumps(
                {"model": self.model, "key": self.key, "worker_id": self.worker_id}
            ).decode()[1:-1],
        }
        if self.nodes is not None:
            document["nodes"] = list(self.nodes)
        return document


def lane_name(key: str | None, role: str | None) -> str:
    """The name under which lanes are found: by a model's comparison key, a role, or both."""
    if key is not None and role is not None:
        return f"mr|{key}|{role}"
    if key is not None:
        return f"m|{key}"
    if role is not None:
        return f"r|{role}"
    raise ValueError("a request names a model, a role, or both")


def lanes_of(fleet: Fleet) -> dict[str, tuple[Lane, ...] | Literal["unmeasured_weight"]]:
    """Every lane name of a fleet. A name whose workers are all unmeasured says so."""
    by_name: dict[str, list[tuple[Worker, tuple[Node, ...]]]] = {}
    for worker in sorted(fleet.workers, key=lambda one: one.worker_id):
        by_name.setdefault(lane_name(worker.key, None), []).append(
            (worker, fleet.allowed_nodes(worker))
        )
        for role in dict.fromkeys(worker.roles):
            nodes = fleet.nodes_for_role(role)
            by_name.setdefault(lane_name(None, role), []).append((worker, nodes))
            by_name.setdefault(lane_name(worker.key, role), []).append((worker, nodes))
    found: dict[str, tuple[Lane, ...] | Literal["unmeasured_weight"]] = {}
    for name, workers in by_name.items():
        measured = [(worker, nodes) for worker, nodes in workers if worker.measured]
        most = 1 if name.startswith("m|") else LANES_MAX
        lanes = tuple(_lane(fleet, worker, nodes) for worker, nodes in measured[:most])
        found[name] = lanes or UNMEASURED
    return found


def lane_arguments(fleet: Fleet) -> list[bytes]:
    """Names and documents in turn, as the declaring script takes them."""
    arguments = []
    for name, lanes in sorted(lanes_of(fleet).items()):
        document = lanes if isinstance(lanes, str) else [lane.document() for lane in lanes]
        arguments += [name.encode(), dumps(document)]
    return arguments


def _lane(fleet: Fleet, worker: Worker, nodes: Sequence[Node]) -> Lane:
    weight, billions = worker.resident_weight_bytes, worker.active_parameter_billions
    if weight is None or billions is None:
        raise ValueError(f"worker {worker.worker_id} is not measured")
    budgets = [node.vram_budget_bytes or 0 for node in nodes if node.max_parallel_requests]
    return Lane(
        worker_id=worker.worker_id,
        model=worker.model,
        key=worker.key,
        weight=weight,
        params=int(billions * 1000),
        nodes=None
        if len(nodes) == len(fleet.nodes)
        else tuple(sorted(node.node_id for node in nodes)),
        most=max(budgets, default=0),
    )
