"""Each worker of the roster against the nodes: where it fits, where it is, what is wrong. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.audit.document import Suggestion, WorkerReport
from aibs.audit.wording import gb, names
from aibs.codec import bytes_to_gb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aibs.audit.facts import NodeFinding
    from aibs.audit.suggestions import Measurement
    from aibs.fleet import Fleet, Node, Worker

TOLERANCE_PERCENT = 5
"""How much more than declared may be resident before it is a problem: sizes are estimates."""


def report(
    fleet: Fleet,
    findings: Sequence[NodeFinding],
    measurements: Sequence[Measurement],
    suggestions: Mapping[str, Suggestion],
) -> list[WorkerReport]:
    """One report a worker, in the roster's order."""
    return [
        _worker(worker, fleet, findings, measurements, suggestions.get(worker.worker_id))
        for worker in fleet.workers
    ]


def fitting(worker: Worker, allowed: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes whose budget holds the declared weight; none while either is unknown."""
    weight = worker.resident_weight_bytes
    return tuple(
        node
        for node in allowed
        if weight is not None
        and node.vram_budget_bytes is not None
        and weight <= node.vram_budget_bytes
    )


def _worker(
    worker: Worker,
    fleet: Fleet,
    findings: Sequence[NodeFinding],
    measurements: Sequence[Measurement],
    suggestion: Suggestion | None,
) -> WorkerReport:
    allowed = fleet.allowed_nodes(worker)
    fits = fitting(worker, allowed)
    active = worker.active_parameter_billions
    weight = worker.resident_weight_bytes
    problems = [
        *_unmeasured(worker, suggestion),
        *_unfit(worker, allowed, fits),
        *_misplaced(worker, allowed, findings),
        *_sizes(worker, [seen for seen in measurements if seen.worker_id == worker.worker_id]),
    ]
    return WorkerReport(
        worker_id=worker.worker_id,
        model=worker.model,
        key=worker.key,
        kind=worker.kind,
        roles=list(worker.roles),
        resident_weight_gb=None if weight is None else bytes_to_gb(weight),
        active_parameter_billions=None if active is None else float(active),
        measured=worker.measured,
        fits_on=[node.node_id for node in fits],
        loaded_on=[finding.node.node_id for finding in findings if _loaded(worker, finding)],
        suggestion=suggestion,
        problems=list(dict.fromkeys(problems)),
    )


def _loaded(worker: Worker, finding: NodeFinding) -> bool:
    return finding.residency is not None and any(
        worker.worker_id in entry.worker_ids and entry.model.placement != "loading"
        for entry in finding.residency.models
    )


def _unmeasured(worker: Worker, suggestion: Suggestion | None) -> list[str]:
    problems = []
    if worker.resident_weight_bytes is None:
        seen = (
            f"{suggestion.resident_weight_gb:.12g} GB was seen on {suggestion.node_id}"
            if suggestion
            else "load the model, or run aibs audit --warmup, to measure it"
        )
        problems.append(f"resident_weight_gb is not set: {seen}.")
    if worker.active_parameter_billions is None:
        problems.append(
            "active_parameter_billions is not set: take it from the model's card, no node tells it."
        )
    return problems


def _unfit(worker: Worker, allowed: Sequence[Node], fits: Sequence[Node]) -> list[str]:
    roles = names(worker.roles)
    if not allowed:
        return [f"its roles ({roles}) allow no configured node."]
    weight = worker.resident_weight_bytes
    known = [node for node in allowed if node.vram_budget_bytes is not None]
    if weight is None or fits or not known:
        return []
    budgets = names(f"{node.node_id} {gb(node.vram_budget_bytes or 0)}" for node in known)
    return [f"weighs {gb(weight)}, more than the budget of any node its roles allow: {budgets}."]


def _misplaced(
    worker: Worker, allowed: Sequence[Node], findings: Sequence[NodeFinding]
) -> list[str]:
    allowed_ids = {node.node_id for node in allowed}
    absent, strange = [], []
    for finding in findings:
        node_id = finding.node.node_id
        loaded = _loaded(worker, finding)
        if finding.configured and loaded and node_id not in allowed_ids:
            strange.append(node_id)
        installed = finding.installed
        if node_id in allowed_ids and installed is not None and worker.key not in installed:
            absent.append(node_id)
    problems = []
    if absent:
        problems.append(f"is not installed on {names(absent)}: run ollama pull there.")
    if strange:
        problems.append(f"is loaded on {names(strange)}, which its roles do not allow.")
    return problems


def _sizes(worker: Worker, seen: Sequence[Measurement]) -> list[str]:
    problems = []
    weight = worker.resident_weight_bytes
    for found in seen:
        where = f"on {found.node_id}"
        resident = found.resident_bytes
        if weight is not None and resident * 100 > weight * (100 + TOLERANCE_PERCENT):
            problems.append(f"is {gb(resident)} resident {where}, more than its {gb(weight)}.")
        if found.size_vram_bytes < found.size_bytes:
            share = found.size_vram_bytes * 100 // found.size_bytes
            problems.append(
                f"is only {share} % on the GPU {where}: slow, and its size may differ when "
                "it is loaded in full."
            )
        if worker.num_ctx and found.context_length and found.context_length != worker.num_ctx:
            problems.append(
                f"is loaded with context {found.context_length} {where}, num_ctx is "
                f"{worker.num_ctx}: its size there is not that of this worker."
            )
    return problems
