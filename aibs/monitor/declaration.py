"""Declaring the fleet as its owner, or learning which fleet is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs import logs
from aibs.codec import bytes_to_gb, dumps
from aibs.errors import CoordinationUnavailable, Fenced, OutcomeUnknown
from aibs.fleet import Fleet
from aibs.lanes import lane_arguments
from aibs.monitor.elector import TermLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aibs.clock import Clock
    from aibs.eventstore.pool import CoordinationPool
    from aibs.eventstore.state import LiveState
    from aibs.fleet import Node
    from aibs.monitor.elector import Elector
    from aibs.monitor.term import Term

RETRY_S = 0.2


async def declare_until_answered(
    ours: Fleet,
    pool: CoordinationPool,
    live: LiveState,
    elector: Elector,
    clock: Clock,
    *,
    on_unreachable: Callable[[], Awaitable[None]],
) -> Fleet:
    """Declare under the living term, again while the answer is lost: the same content declared
    twice is declared once. Raises TermLost when the term or our trust in it is over.
    """
    log = logs.get("aibs.monitor.declaration", owner=elector.owner)
    while True:
        term = elector.require_term()
        try:
            return await declare(ours, pool, live, term)
        except Fenced as error:
            raise TermLost("fenced") from error
        except (OutcomeUnknown, CoordinationUnavailable) as error:
            log.warning("declaration_unanswered", error=str(error))
            await on_unreachable()
            await clock.sleep(RETRY_S)


async def declare(ours: Fleet, pool: CoordinationPool, live: LiveState, term: Term) -> Fleet:
    """Declare our fleet; the fleet to poll is the one declared, which may be another.

    A fleet changes only by a higher revision, so that two releases of the settings cannot take
    turns in declaring theirs. Raises TermLost where the fleet changed under us.
    """
    log = logs.get("aibs.monitor.declaration", owner=term.owner)
    before = await live.fleet()
    changes = changes_between(Fleet.from_document(before.document), ours) if before else ()
    declared = await pool.declare(
        term.owner,
        term.fence,
        revision=ours.revision,
        fingerprint=ours.fingerprint,
        document=dumps(ours.document()),
        changes=dumps(changes),
        lanes=lane_arguments(ours),
    )
    if declared.word != "mismatch":
        log.info("fleet_declared", outcome=declared.word, fingerprint=declared.fingerprint)
        return ours
    log.warning(
        "fleet_mismatch",
        declared=declared.fingerprint,
        declared_revision=declared.revision,
        ours=ours.fingerprint,
        our_revision=ours.revision,
        mend="Raise AIBS_MODEL_CLUSTER_FLEET_REVISION above the declared one to change the fleet.",
    )
    now = await live.fleet()
    if now is None or now.fingerprint != declared.fingerprint:
        raise TermLost("fleet_mismatch")
    return Fleet.from_document(now.document)


def changes_between(before: Fleet, after: Fleet) -> tuple[str, ...]:
    """What differs between two fleets, a clause for each."""
    old, new = ({node.node_id: node for node in fleet.nodes} for fleet in (before, after))
    clauses = [f"node {node_id} removed" for node_id in sorted(old.keys() - new.keys())]
    clauses += [f"node {node_id} added" for node_id in sorted(new.keys() - old.keys())]
    for node_id in sorted(old.keys() & new.keys()):
        clauses += [f"node {node_id}: {clause}" for clause in _node(old[node_id], new[node_id])]
    old_workers, new_workers = (
        {worker.worker_id: worker for worker in fleet.workers} for fleet in (before, after)
    )
    for worker_id in sorted(old_workers.keys() | new_workers.keys()):
        if worker_id not in new_workers:
            clauses.append(f"worker {worker_id} removed")
        elif worker_id not in old_workers:
            clauses.append(f"worker {worker_id} added")
        elif old_workers[worker_id] != new_workers[worker_id]:
            clauses.append(f"worker {worker_id} changed")
    if before.affinity != after.affinity:
        clauses.append("role affinity changed")
    return tuple(clauses)


def _node(old: Node, new: Node) -> list[str]:
    clauses = []
    if old.base_url != new.base_url:
        clauses.append(f"URL {old.base_url} → {new.base_url}")
    if old.vram_budget_bytes != new.vram_budget_bytes:
        clauses.append(f"budget {_gb(old.vram_budget_bytes)} → {_gb(new.vram_budget_bytes)}")
    if old.max_parallel_requests != new.max_parallel_requests:
        clauses.append(f"slots {old.max_parallel_requests} → {new.max_parallel_requests}")
    if old.memory != new.memory:
        clauses.append(f"memory {old.memory} → {new.memory}")
    return clauses


def _gb(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{bytes_to_gb(size_bytes)} GB"
