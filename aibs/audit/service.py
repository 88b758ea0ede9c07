"""The audit as a whole: ask everything at once, then judge what was found."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aibs.audit import suggestions as weights
from aibs.audit import workers
from aibs.audit.compose import coordination_of, log_of, node_report
from aibs.audit.document import SCHEMA, AuditDocument
from aibs.audit.facts import Configured, Evidence, PoolFacts, Timing
from aibs.audit.gates import judge, ready
from aibs.audit.information import inform
from aibs.audit.inspect import inspect_all
from aibs.codec import rfc3339
from aibs.errors import Broken, ConfigurationError
from aibs.fleet import Fleet, InvalidNodeUrl, Node, normalise_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aibs.audit.document import WarmupReport
    from aibs.audit.facts import NodeFinding
    from aibs.audit.warmup import NodePlan
    from aibs.clock import Clock
    from aibs.fleet import Worker
    from aibs.settings import Settings


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What the operator asked for beyond the settings."""

    node_urls: tuple[str, ...] = ()
    warmup: bool = False
    warmup_node_ids: tuple[str, ...] = ()


async def audit(
    settings: Settings,
    options: AuditOptions,
    clock: Clock,
    *,
    stop: asyncio.Event,
    tell: Callable[[str], None],
) -> AuditDocument:
    """Audit the settings' fleet and the ad-hoc nodes. `stop` ends a warm-up early.

    Raises ConfigurationError for options that cannot be used; what nodes and servers do is in the
    document.
    """
    fleet = settings.fleet()
    ad_hoc = ad_hoc_nodes(options.node_urls)
    check_warmup_ids(options, fleet, ad_hoc)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(_pool(settings))
        inspecting = group.create_task(
            inspect_all(
                fleet.nodes,
                ad_hoc,
                fleet,
                timeout_s=settings.poll_timeout_ms / 1000,
                telemetry_urls=settings.host_telemetry_urls,
            )
        )
    pool, findings = reading.result(), inspecting.result()
    reports = None
    if options.warmup:
        from aibs.audit.warmup import warm_up

        reports = await warm_up(
            plans(fleet, findings, options.warmup_node_ids),
            load_timeout_s=settings.load_timeout_ms / 1000,
            stop=stop,
            tell=tell,
        )
    return compose(configured_of(settings), fleet, pool, findings, reports, clock.wall_ms())


def ad_hoc_nodes(urls: Sequence[str]) -> tuple[Node, ...]:
    """Nodes `url-1`, `url-2`, …, of unknown budget. Raises ConfigurationError, naming the URL."""
    from aibs.eventstore.endpoint import redact

    nodes = []
    for number, raw in enumerate(urls, 1):
        try:
            nodes.append(Node(f"url-{number}", normalise_url(raw)))
        except InvalidNodeUrl as error:
            raise ConfigurationError(
                f"--node-url {redact(raw)!r} {error}.",
                mend="Give an Ollama server's base URL, as http://10.4.3.16:11434.",
            ) from error
    return tuple(nodes)


def check_warmup_ids(options: AuditOptions, fleet: Fleet, ad_hoc: Sequence[Node]) -> None:
    """Refuse ids that no node has, and ids without a warm-up. Raises ConfigurationError."""
    if options.warmup_node_ids and not options.warmup:
        raise ConfigurationError(
            "--warmup-node-id is given without --warmup.", mend="Add --warmup."
        )
    known = [node.node_id for node in (*fleet.nodes, *ad_hoc)]
    for node_id in options.warmup_node_ids:
        if node_id not in known:
            raise ConfigurationError(
                f"--warmup-node-id {node_id!r} is no node.",
                mend=f"The nodes are: {', '.join(known) or 'none'}.",
            )


def plans(
    fleet: Fleet, findings: Sequence[NodeFinding], node_ids: Sequence[str]
) -> tuple[NodePlan, ...]:
    """What to warm up where: on each node the workers that its roles allow.

    An ad-hoc node has no roles: it takes every worker, where it was named or where no node is
    configured.
    """
    from aibs.audit.warmup import NodePlan

    chosen = []
    for finding in findings:
        node = finding.node
        by_default = finding.configured or not fleet.nodes
        wanted = node.node_id in node_ids if node_ids else by_default
        if wanted:
            chosen.append(
                NodePlan(
                    node=node,
                    workers=_workers_for(node, fleet, finding.configured),
                    digests=finding.installed,
                    why_not="" if finding.state == "ok" else finding.error or finding.state,
                )
            )
    return tuple(chosen)


def _workers_for(node: Node, fleet: Fleet, configured: bool) -> tuple[Worker, ...]:
    return tuple(
        worker
        for worker in fleet.workers
        if not configured or any(n.node_id == node.node_id for n in fleet.allowed_nodes(worker))
    )


def configured_of(settings: Settings) -> Configured:
    """The part of the settings that gates and information ask for."""
    return Configured(
        coordination_backend=settings.coordination_backend,
        cluster_backend=settings.model_cluster_backend,
        cluster_enabled=settings.model_cluster_enabled,
        namespace=settings.model_cluster_namespace,
        monitor_enabled=settings.model_cluster_residency_monitor_enabled,
        embedded=settings.model_pool_url == "embedded",
        single_host=settings.model_cluster_single_host,
        timing=Timing(
            poll_interval_ms=settings.poll_interval_ms,
            poll_timeout_ms=settings.poll_timeout_ms,
            lease_ttl_ms=settings.monitor_lease_ttl_ms,
            standby_retry_ms=settings.standby_retry_ms,
            staleness_ms=settings.max_residency_staleness_ms,
            heartbeat_ms=settings.heartbeat_interval_ms,
            active_lease_ttl_ms=settings.active_lease_ttl_ms,
            history_window_ms=settings.health_history_window_ms,
            history_ttl_ms=settings.health_history_ttl_ms,
        ),
    )


async def _pool(settings: Settings) -> PoolFacts | None:
    if settings.coordination_backend != "valkey":
        return None
    # Only now: an audit of the memory backend needs no Valkey client.
    from aibs.audit.pool_facts import read_pool

    return await read_pool(
        settings.model_pool_url, settings.model_cluster_namespace, Path(settings.data_dir)
    )


def mismatch_of(pool: PoolFacts | None, fleet: Fleet) -> tuple[str, ...]:
    """How the settings' fleet differs from the declared one; empty where it does not."""
    if pool is None or pool.fleet is None or pool.fleet.fingerprint == fleet.fingerprint:
        return ()
    from aibs.monitor.declaration import changes_between

    try:
        return changes_between(Fleet.from_document(pool.fleet.document), fleet)
    except Broken:
        return ("the declared fleet cannot be read by this release",)


def compose(
    configured: Configured,
    fleet: Fleet,
    pool: PoolFacts | None,
    findings: Sequence[NodeFinding],
    warmup: Sequence[WarmupReport] | None,
    now_ms: int,
) -> AuditDocument:
    """The document, out of all that was found. Pure. `now_ms` is the wall clock's."""
    measured = list(weights.measurements_of(findings))
    if warmup:
        from aibs.audit.warmup import measurements_of

        measured += measurements_of(warmup)
    suggested = weights.suggest(measured)
    worker_reports = workers.report(fleet, findings, measured, suggested)
    evidence = Evidence(
        configured, fleet, pool, [found for found in findings if found.configured], worker_reports
    )
    gates = judge(evidence)
    may_enable = ready(gates)
    return AuditDocument(
        schema=SCHEMA,
        generated_at=rfc3339(now_ms),
        cluster_enabled=configured.cluster_enabled,
        ready_to_enable_global_scheduler=may_enable,
        ready_for_global_scheduler=may_enable and configured.cluster_enabled,
        gates=gates,
        information=inform(configured, pool, findings, mismatch=mismatch_of(pool, fleet)),
        coordination=coordination_of(configured, pool),
        log=log_of(pool),
        nodes=[node_report(finding, evidence) for finding in findings],
        workers=worker_reports,
        warmup=None if warmup is None else list(warmup),
        suggested_roster=weights.suggested_roster(fleet.workers, suggested),
    )


def exit_status(document: AuditDocument) -> int:
    """0 good, 1 a gate says no, 3 Valkey or a node could not be reached.

    With ad-hoc nodes and none configured the question is only whether they answered.
    """
    if any(report.status == "cancelled" for report in document.warmup or ()):
        return 1
    if any(node.state == "unreachable" for node in document.nodes):
        return 3
    if document.nodes and not any(node.configured for node in document.nodes):
        return 0 if all(node.state == "ok" for node in document.nodes) else 1
    if document.ready_to_enable_global_scheduler:
        return 0
    coordination = document.coordination
    return 3 if coordination.backend == "valkey" and not coordination.reachable else 1
