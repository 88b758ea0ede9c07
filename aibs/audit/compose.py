"""The document's parts on the pool and the nodes, out of what was found. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.audit.document import (
    Coordination,
    HostReport,
    LogReport,
    ModelReport,
    NodeReport,
    StampReport,
)
from aibs.codec import bytes_to_gb, rfc3339
from aibs.eventstore.endpoint import redact

if TYPE_CHECKING:
    from aibs.audit.facts import Configured, Evidence, HostMemory, NodeFinding, PoolFacts
    from aibs.fleet import Node
    from aibs.ollama.ownership import ClassifiedModel


def coordination_of(configured: Configured, pool: PoolFacts | None) -> Coordination:
    """The pool's server as the document tells it."""
    error = pool.error if pool else "The memory backend has no server that others could reach."
    if pool is not None and pool.reachable and not pool.supported:
        error = f"{pool.server} {pool.version} is not Valkey 8 or newer."
    return Coordination(
        backend=configured.coordination_backend,
        server=pool.server if pool else None,
        version=pool.version if pool else None,
        namespace=configured.namespace,
        reachable=pool is not None and pool.reachable,
        error=error,
        url=pool.url if pool else None,
    )


def log_of(pool: PoolFacts | None) -> LogReport | None:
    """What was read of the log."""
    log = pool.log if pool else None
    if log is None:
        return None
    return LogReport(
        last_id=log.last_id,
        seq=log.seq,
        snapshot_id=log.began,
        consistent_with_live_state=log.error is None and not log.differences,
        differences=list(log.differences),
        error=log.error,
    )


def node_report(finding: NodeFinding, evidence: Evidence) -> NodeReport:
    """A node as the document tells it."""
    node, residency = finding.node, finding.residency
    log = evidence.pool.log if evidence.pool and finding.configured else None
    logged = log.nodes.get(node.node_id) if log else None
    budget = node.vram_budget_bytes
    return NodeReport(
        node_id=node.node_id,
        base_url=node.base_url,
        state=finding.state,
        error=finding.error,
        ollama_version=finding.version,
        latency_ms=finding.latency_ms,
        vram_budget_gb=None if budget is None else bytes_to_gb(budget),
        max_parallel_requests=node.max_parallel_requests,
        foreign_resident_bytes=residency.foreign_bytes if residency else None,
        own_resident_bytes=residency.own_bytes if residency else None,
        unaccounted=residency.unaccounted if residency else False,
        warnings=list(finding.warnings),
        resident_models=[_model(entry) for entry in residency.models] if residency else [],
        stamp=_stamp(node, evidence) if finding.configured else None,
        memory=node.memory,
        configured=finding.configured,
        host_telemetry=_host(finding.host),
        leases=list(logged.leases) if logged else None,
        leased_bytes=logged.leased_bytes if logged else None,
        slots_used=logged.slots_used if logged else None,
    )


def _model(entry: ClassifiedModel) -> ModelReport:
    model = entry.model
    return ModelReport(
        name=model.name,
        key=model.key,
        ownership=entry.ownership,
        worker_ids=list(entry.worker_ids),
        size_bytes=model.size_bytes,
        size_vram_bytes=model.size_vram_bytes,
        digest=model.digest,
        context_length=model.context_length,
        expires_at=None if model.expires_at_ms is None else rfc3339(model.expires_at_ms),
        keeps_forever=model.keeps_forever,
        placement=model.placement,
        charge_bytes=entry.charge_bytes,
    )


def _stamp(node: Node, evidence: Evidence) -> StampReport | None:
    """The stamp by the server's clock. One of another fleet or URL is not fresh, nor is one from
    the future: the clock was stepped.
    """
    pool = evidence.pool
    stamp = pool.stamps.get(node.node_id) if pool else None
    age_ms = stamp.age_ms(pool.now_ms) if stamp and pool else None
    if pool is None or stamp is None or age_ms is None:
        return None
    fresh = stamp.base_url == node.base_url and stamp.fresh(
        pool.now_ms,
        staleness_ms=evidence.configured.timing.staleness_ms,
        fingerprint=evidence.fleet.fingerprint,
    )
    return StampReport(
        observed_at=rfc3339(stamp.observed_at_ms),
        age_ms=age_ms,
        fresh=fresh,
        healthy=bool(stamp.healthy),
        fence=stamp.observed_fence,
    )


def _host(host: HostMemory | None) -> HostReport | None:
    if host is None:
        return None
    return HostReport(
        url=redact(host.url),
        available=not host.error,
        error=host.error or None,
        gpu_used_bytes=host.gpu_used_bytes,
        gpu_total_bytes=host.gpu_total_bytes,
    )
