"""Gates on the nodes and the roster: are they configured, do they answer, does it all fit? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.audit.verdict import GATES_ABOVE, PREFIX, ROSTER, failed, passed, unknown
from aibs.audit.wording import gb, names, plural, printable

if TYPE_CHECKING:
    from aibs.audit.document import Gate
    from aibs.audit.facts import Evidence, NodeFinding
    from aibs.fleet import Node


def nodes_configured(evidence: Evidence) -> Gate:
    """There is a node."""
    nodes = evidence.fleet.nodes
    if nodes:
        return passed("nodes_configured", names(node.node_id for node in nodes))
    return failed(
        "nodes_configured",
        "no node is configured",
        f"List the nodes in {PREFIX}NODE_IDS and their URLs in {PREFIX}NODE_URLS.",
    )


def budgets_configured(evidence: Evidence) -> Gate:
    """Each node has a budget and a slot count."""
    name = "budgets_configured"
    nodes = evidence.fleet.nodes
    fix = (
        f"Give each node its GB in {PREFIX}NODE_VRAM_GB and its slots in "
        f"{PREFIX}NODE_MAX_PARALLEL_REQUESTS."
    )
    if not nodes:
        return unknown(name, "no node is configured", fix)
    missing = [f"{node.node_id} has no {_lacks(node)}" for node in nodes if _lacks(node)]
    if missing:
        return failed(name, names(missing), fix)
    return passed(
        name, names(f"{node.node_id} {gb(node.vram_budget_bytes or 0)}" for node in nodes)
    )


def _lacks(node: Node) -> str:
    lacking = []
    if node.vram_budget_bytes is None:
        lacking.append("budget")
    if node.max_parallel_requests is None:
        lacking.append("slot count")
    return " and no ".join(lacking)


def nodes_reachable(evidence: Evidence) -> Gate:
    """Each configured node lists its resident models now."""
    name, fix = "nodes_reachable", "Start Ollama there, or correct the node's URL."
    if not evidence.findings:
        return unknown(name, "no node is configured", fix)
    silent = [finding for finding in evidence.findings if finding.state != "ok"]
    if silent:
        return failed(name, names(_silence(finding) for finding in silent), fix)
    return passed(name, f"{plural(len(evidence.findings), 'node')} answered /api/ps")


def _silence(finding: NodeFinding) -> str:
    state = finding.state.replace("_", " ")
    return f"{finding.node.node_id}: {state} ({printable(finding.error or 'no reason given')})"


def roster_configured(evidence: Evidence) -> Gate:
    """There is a worker."""
    if evidence.workers:
        return passed("roster_configured", plural(len(evidence.workers), "worker"))
    return failed("roster_configured", "no worker is configured", f"List the workers in {ROSTER}.")


def weights_measured(evidence: Evidence) -> Gate:
    """Each worker has a resident weight."""
    missing = [found.worker_id for found in evidence.workers if found.resident_weight_gb is None]
    fix = f"Take over the suggested roster, or run aibs audit --warmup; then set {ROSTER}."
    return _measured(evidence, "weights_measured", "resident_weight_gb", missing, fix)


def active_parameters_measured(evidence: Evidence) -> Gate:
    """Each worker has its active parameters."""
    missing = [
        found.worker_id for found in evidence.workers if found.active_parameter_billions is None
    ]
    fix = f"Take it from each model's card and set it in {ROSTER}: no node tells it."
    return _measured(
        evidence, "active_parameters_measured", "active_parameter_billions", missing, fix
    )


def _measured(evidence: Evidence, name: str, setting: str, missing: list[str], fix: str) -> Gate:
    if not evidence.workers:
        return unknown(name, "no worker is configured", fix)
    if missing:
        return failed(name, f"{setting} is not set for {names(missing)}", fix)
    return passed(name, f"{setting} is set for {plural(len(evidence.workers), 'worker')}")


def workers_fit(evidence: Evidence) -> Gate:
    """Each worker fits the budget of a node that its roles allow."""
    name = "workers_fit"
    fix = (
        f"Raise a budget in {PREFIX}NODE_VRAM_GB, widen the role affinity, or use a smaller model."
    )
    if not evidence.workers:
        return unknown(name, "no worker is configured", fix)
    if not evidence.fleet.nodes:
        return unknown(name, "no node is configured", fix)
    # A node without a budget may hold anything or nothing: what fits only there is not known.
    budgets_known = all(node.vram_budget_bytes is not None for node in evidence.fleet.nodes)
    open_questions, misfits = [], []
    for found in evidence.workers:
        if found.fits_on:
            continue
        if found.resident_weight_gb is None or not budgets_known:
            open_questions.append(found.worker_id)
        else:
            misfits.append(f"{found.worker_id} ({found.resident_weight_gb:.12g} GB)")
    if misfits:
        return failed(name, f"no node that its roles allow holds {names(misfits)}", fix)
    if open_questions:
        why = "a weight or a budget is missing"
        return unknown(name, f"{why} for {names(open_questions)}", GATES_ABOVE)
    return passed(name, "each worker fits a node that its roles allow")
