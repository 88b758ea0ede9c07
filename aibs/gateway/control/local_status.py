"""The status of a process that admits by itself: no pool, no owner, no monitor.

It knows its nodes by its settings and by its own leases alone: what others hold there is unknown,
and said to be so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.codec import rfc3339
from aibs.placement.memory import MemoryBackend
from aibs.reports.leaks import LeaseReport
from aibs.reports.status import (
    FleetReport,
    NodeReport,
    PoolReport,
    StatusDocument,
    WaiterReport,
)

if TYPE_CHECKING:
    from aibs.gateway.context import GatewayContext
    from aibs.placement.model.decide import PlacementModel
    from aibs.placement.model.state import HeldLease, NodeRecord, Waiter


def local_status(context: GatewayContext) -> StatusDocument:
    """The document of now."""
    fleet = context.fleet
    backend = context.placer.backend
    model = backend.model if isinstance(backend, MemoryBackend) else None
    now_ms, wall_ms = context.clock.boottime_ms(), context.clock.wall_ms()
    held = [] if model is None else model.leases.values()
    leases = [_lease(one, wall_ms - now_ms) for one in held]
    return StatusDocument(
        generated_at=rfc3339(wall_ms),
        pool=PoolReport(pool_id="local", namespace=context.settings.namespace, state="open"),
        cluster_enabled=False,
        fleet=FleetReport(
            revision=fleet.revision, fingerprint=fleet.fingerprint, matches_settings=True
        ),
        owner=None,
        standbys=[],
        nodes=[] if model is None else [_node(node, now_ms) for node in _declared(model)],
        queue=[] if model is None else _queue(model, now_ms),
        leases=[lease for lease in leases if lease.state == "active"],
        other_leases=[lease for lease in leases if lease.state != "active"],
    )


def _declared(model: PlacementModel) -> list[NodeRecord]:
    return [model.nodes[node_id] for node_id in sorted(model.nodes)]


def _node(node: NodeRecord, now_ms: int) -> NodeReport:
    tripped = node.trip is not None
    leased = sum(node.leased().values())
    left_ms = 0 if node.trip is None else max(0, node.trip.reopen_ms - now_ms)
    return NodeReport(
        node_id=node.node_id,
        base_url=node.base_url,
        state="tripped" if tripped else "ready",
        detail=f"closed after failures, tried again in {left_ms / 1000:.1f} s" if tripped else None,
        stamp=None,
        budget_bytes=node.budget,
        foreign_bytes=None,
        leased_bytes=leased,
        free_bytes=None if node.budget is None else max(0, node.budget - leased),
        slots=node.slots,
        slots_used=node.used,
        slots_draining=node.draining,
        leases=sorted(lease for lease, hold in node.holds.items() if hold.ended_ms is None),
        reserved_for=None if node.reserved is None else node.reserved.request_key,
    )


def _queue(model: PlacementModel, now_ms: int) -> list[WaiterReport]:
    return [
        _waiter(waiter, position, now_ms, model)
        for position, waiter in enumerate(model.in_order(now_ms), 1)
    ]


def _waiter(waiter: Waiter, position: int, now_ms: int, model: PlacementModel) -> WaiterReport:
    environment, holder, request_id = waiter.request_key.split("|", 2)
    asked: Any = waiter.lanes[0].model if waiter.lanes else ""
    role = waiter.lane.rpartition("|")[2] if waiter.lane.startswith(("r|", "mr|")) else None
    reserved = [
        node.node_id
        for node in model.nodes.values()
        if node.reserved is not None and node.reserved.request_key == waiter.request_key
    ]
    return WaiterReport(
        request_id=request_id,
        model=asked,
        role=role,
        priority=waiter.priority,
        position=position,
        waiting_ms=max(0, now_ms - waiter.arrival_ms),
        reason=waiter.tried_reason or "no_slot",
        reserves=reserved[0] if reserved else None,
        environment=environment,
        holder=holder,
    )


def _lease(held: HeldLease, to_wall_ms: int) -> LeaseReport:
    """Times of this backend are boot times: `to_wall_ms` makes them a day's."""
    lease, heard = held.lease, held.heartbeat_ms
    return LeaseReport(
        lease_id=lease.lease_id,
        request_id=lease.request_id,
        token=lease.token,
        state="revoked" if held.revoked else "active",
        acknowledged=False,
        node_id=lease.node_id,
        node_base_url=lease.base_url,
        model=lease.model,
        worker_id=lease.worker_id,
        role=lease.role,
        environment=lease.environment,
        holder=lease.holder,
        acquired_at=rfc3339(lease.acquired_at_ms + to_wall_ms),
        last_heartbeat_at=None if heard is None else rfc3339(heard + to_wall_ms),
        deadline=rfc3339(held.deadline_ms + to_wall_ms),
        ended_at=None,
        end=None,
        held_ms=None,
    )
