"""Asks every node what it holds now, all at once, each within its own time. GET requests only."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from aibs.audit.facts import NodeFinding
from aibs.audit.host_telemetry import read_host_memory
from aibs.errors import AibsError, NodeError
from aibs.ollama.client import NodeClient
from aibs.ollama.ownership import classify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aibs.audit.document import NodeState
    from aibs.fleet import Fleet, Node
    from aibs.ollama.tags import InstalledModel

NODES_AT_ONCE = 200
"""Bounds the open files: a node takes up to three connections."""


_STATES: dict[str, NodeState] = {
    "loading": "loading",
    "unsupported": "unsupported",
    "invalid_response": "invalid_response",
}


def own_keys_of(fleet: Fleet) -> dict[str, tuple[str, ...]]:
    """Comparison key → the workers that use it."""
    return {
        key: tuple(worker.worker_id for worker in workers)
        for key, workers in fleet.workers_by_key.items()
    }


def own_digests_of(
    own_keys: Mapping[str, tuple[str, ...]], installed: Sequence[InstalledModel]
) -> dict[str, tuple[str, ...]]:
    """Digest → workers, by what is installed: a model may be resident under another name."""
    found: dict[str, tuple[str, ...]] = {}
    for model in installed:
        workers = own_keys.get(model.key or "", ())
        if workers and model.digest:
            found[model.digest] = tuple(sorted({*found.get(model.digest, ()), *workers}))
    return found


async def inspect_all(
    configured: Sequence[Node],
    ad_hoc: Sequence[Node],
    fleet: Fleet,
    *,
    timeout_s: float,
    telemetry_urls: Mapping[str, str],
) -> list[NodeFinding]:
    """One finding a node, in the order given. Never raises for what a node does.

    `telemetry_urls` maps node ids to their telemetry agents.
    """
    own_keys = own_keys_of(fleet)
    slots = asyncio.Semaphore(NODES_AT_ONCE)

    async def one(node: Node, is_configured: bool) -> NodeFinding:
        async with slots:
            return await _inspect(
                node,
                own_keys,
                is_configured=is_configured,
                timeout_s=timeout_s,
                telemetry_url=telemetry_urls.get(node.node_id),
            )

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(node, True)) for node in configured]
        tasks += [group.create_task(one(node, False)) for node in ad_hoc]
    return [task.result() for task in tasks]


async def _inspect(
    node: Node,
    own_keys: Mapping[str, tuple[str, ...]],
    *,
    is_configured: bool,
    timeout_s: float,
    telemetry_url: str | None,
) -> NodeFinding:
    async with NodeClient(node.base_url, timeout_s=timeout_s) as api, asyncio.TaskGroup() as group:
        host = group.create_task(read_host_memory(telemetry_url, timeout_s=timeout_s))
        residency = group.create_task(_residency(node, api, own_keys, is_configured))
    found = residency.result()
    return NodeFinding(
        node=node,
        configured=is_configured,
        state=found.state,
        error=found.error,
        latency_ms=found.latency_ms,
        version=found.version,
        residency=found.residency,
        installed=found.installed,
        host=host.result(),
        warnings=found.warnings,
    )


async def _residency(
    node: Node, api: NodeClient, own_keys: Mapping[str, tuple[str, ...]], is_configured: bool
) -> NodeFinding:
    began = time.monotonic()
    try:
        snapshot = await api.ps()
    except NodeError as error:
        # A server without /api/ps still says what it is; one that is gone is not asked again.
        version = None if error.state == "unreachable" else await _version(api)
        return NodeFinding(
            node=node,
            configured=is_configured,
            state=_STATES.get(error.state, "unreachable"),
            error=str(error),
            version=version,
        )
    latency_ms = round((time.monotonic() - began) * 1000)
    version, (installed, problem) = await asyncio.gather(_version(api), _installed(api))
    digests = own_digests_of(own_keys, installed or ())
    residency = classify(snapshot, own_keys, digests, node.memory)
    return NodeFinding(
        node=node,
        configured=is_configured,
        state="ok",
        latency_ms=latency_ms,
        version=version,
        residency=residency,
        installed=None
        if installed is None
        else {model.key: model.digest or "" for model in installed if model.key},
        warnings=(*residency.warnings, *((problem,) if problem else ())),
    )


async def _version(api: NodeClient) -> str | None:
    try:
        return await api.version()
    except AibsError:
        return None


async def _installed(api: NodeClient) -> tuple[tuple[InstalledModel, ...] | None, str]:
    """What is installed, or why that is not known: a model of ours under another name then
    counts as foreign.
    """
    try:
        return tuple(model for model in await api.tags() if not model.remote), ""
    except AibsError as error:
        return None, f"the installed models are not known: {error}"
