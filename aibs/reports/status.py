"""`aibs status` as a document: owner, nodes, leases and queue, as they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from aibs.audit.wording import age
from aibs.codec import rfc3339
from aibs.errors import CorruptLog
from aibs.reports.leaks import LeaseReport, living_leases
from aibs.reports.part import Part, Timestamp, schema_of

if TYPE_CHECKING:
    from aibs.eventstore.placement_state import LiveParts
    from aibs.eventstore.state import Stamp
    from aibs.reports.moment import Moment
    from aibs.settings import Settings

SCHEMA: Final = "aibs.status/1"

NodeState = Literal[
    "ready", "stale", "unhealthy", "unaccounted", "loading", "tripped", "cordoned", "undeclared"
]


class PoolReport(Part):
    """The pool. Recovering: a restarted server waits until holders and nodes were heard."""

    pool_id: str
    namespace: str
    state: Literal["open", "recovering", "suspect"]


class FleetReport(Part):
    """What is declared, and whether this process's settings say the same."""

    revision: int
    fingerprint: str
    matches_settings: bool


class OwnerReport(Part):
    """The elected monitor."""

    owner: str
    fence: int
    elected_at: Timestamp
    lease_expires_in_ms: int


class StampReport(Part):
    """A node's placement health record."""

    observed_at: Timestamp
    age_ms: int
    fresh: bool
    healthy: bool
    fence: int


class NodeReport(Part):
    """One node. Bytes are null where unknown; `detail` says why it is not ready."""

    node_id: str
    base_url: str
    state: NodeState
    detail: str | None
    stamp: StampReport | None
    budget_bytes: int | None
    foreign_bytes: int | None
    leased_bytes: int
    free_bytes: int | None
    slots: int | None
    slots_used: int
    slots_draining: int
    leases: list[str]
    reserved_for: str | None


class WaiterReport(Part):
    """One waiter. `reason` is the nearest one of when it was queued."""

    request_id: str
    model: str
    role: str | None
    priority: str
    position: int
    waiting_ms: int
    reason: str
    reserves: str | None
    environment: str
    holder: str


class StatusDocument(Part):
    """The whole answer."""

    schema_: Literal["aibs.status/1"] = Field(SCHEMA, alias="schema")
    generated_at: Timestamp
    pool: PoolReport
    cluster_enabled: bool
    fleet: FleetReport | None
    """Null in a pool in which none was declared yet."""
    owner: OwnerReport | None
    """Null while nobody holds the term."""
    standbys: list[str]
    nodes: list[NodeReport]
    queue: list[WaiterReport]
    leases: list[LeaseReport]
    """Those that are active."""
    other_leases: list[LeaseReport] = Field(default_factory=list)
    """Those that are held, and late, overdue or revoked."""


def status_document(moment: Moment, settings: Settings) -> StatusDocument:
    """The document of one moment."""
    live = moment.live
    assert live.pool is not None
    alive = live.term is not None and live.term.alive(live.now_ms)
    state: Literal["open", "recovering", "suspect"] = "open"
    if live.pool.state != "open":
        state = "recovering" if alive else "suspect"
    leases = living_leases(live, heartbeat_ms=settings.heartbeat_interval_ms)
    return StatusDocument(
        generated_at=rfc3339(live.now_ms),
        pool=PoolReport(
            pool_id=live.pool.pool_id,
            namespace=settings.model_cluster_namespace,
            state=state,
        ),
        cluster_enabled=settings.model_cluster_enabled,
        fleet=None
        if live.fleet is None
        else FleetReport(
            revision=live.fleet.revision,
            fingerprint=live.fleet.fingerprint,
            matches_settings=live.fleet.fingerprint == settings.fleet().fingerprint,
        ),
        owner=_owner(moment) if alive else None,
        standbys=sorted(live.standbys),
        nodes=_nodes(live, settings.max_residency_staleness_ms),
        queue=_queue(moment, settings.swap_max_wait_ms),
        leases=[lease for lease in leases if lease.state == "active"],
        other_leases=[lease for lease in leases if lease.state != "active"],
    )


def to_json(document: StatusDocument) -> dict[str, Any]:
    """The document as printed."""
    return document.model_dump(mode="json", by_alias=True)


def json_schema() -> dict[str, Any]:
    """Its JSON Schema."""
    return schema_of(StatusDocument, SCHEMA)


def _owner(moment: Moment) -> OwnerReport | None:
    live, term = moment.live, moment.live.term
    if term is None or term.owner is None:
        return None
    # An election writes its time with the owner: the log has it where the live state lost it.
    elected_ms = term.elected_at_ms or moment.folded.ownership.elected_at_ms
    if elected_ms is None:
        raise CorruptLog(
            f"Neither the live state nor the log tells when {term.owner} was elected.",
            mend="Run `aibs replay --verify`, which names what differs.",
        )
    return OwnerReport(
        owner=term.owner,
        fence=term.fence,
        elected_at=rfc3339(elected_ms),
        lease_expires_in_ms=term.deadline_ms - live.now_ms,
    )


def _nodes(live: LiveParts, staleness_ms: int) -> list[NodeReport]:
    declared = (
        {}
        if live.fleet is None
        else {node["node_id"]: node for node in live.fleet.document["nodes"]}
    )
    left = {
        document["node_id"]: document["base_url"]
        for document in live.leases.values()
        if declared.get(document["node_id"], {}).get("base_url") != document["base_url"]
    }
    reports = [
        _node(live, node_id, node, staleness_ms) for node_id, node in sorted(declared.items())
    ]
    for node_id, base_url in sorted(left.items()):
        gone = {"node_id": node_id, "base_url": base_url}
        reports.append(_node(live, node_id, gone, staleness_ms, undeclared=True))
    return reports


def _node(
    live: LiveParts,
    node_id: str,
    node: dict[str, Any],
    staleness_ms: int,
    *,
    undeclared: bool = False,
) -> NodeReport:
    leases = {
        lease_id: document
        for lease_id, document in live.leases.items()
        if (document["node_id"], document["base_url"]) == (node_id, node["base_url"])
    }
    drains = () if undeclared else tuple(d for d in live.drains if d.node_id == node_id)
    weights: dict[str, int] = {}
    for document in leases.values():
        weights[document["key"]] = max(weights.get(document["key"], 0), document["weight_bytes"])
    for drain in drains:
        weights[drain.key] = max(weights.get(drain.key, 0), drain.weight_bytes)
    stamp = None if undeclared else live.stamps.get(node_id)
    budget, leased = node.get("vram_budget_bytes"), sum(weights.values())
    foreign = None if stamp is None or stamp.unaccounted else stamp.foreign_bytes
    state, detail = (
        ("undeclared", "left the fleet")
        if undeclared
        else _state(live, node_id, stamp, staleness_ms)
    )
    free = None if budget is None or foreign is None else max(0, budget - foreign - leased)
    return NodeReport(
        node_id=node_id,
        base_url=node["base_url"],
        state=state,
        detail=detail,
        stamp=_stamp(live, stamp, staleness_ms),
        budget_bytes=budget,
        foreign_bytes=foreign,
        leased_bytes=leased,
        free_bytes=free,
        slots=node.get("max_parallel_requests"),
        slots_used=len(leases) + len(drains),
        slots_draining=len(drains),
        leases=sorted(leases),
        reserved_for=live.reservations.get(node_id),
    )


def _stamp(live: LiveParts, stamp: Stamp | None, staleness_ms: int) -> StampReport | None:
    if stamp is None or not stamp.observed_at_ms or live.fleet is None:
        return None
    age_ms = stamp.age_ms(live.now_ms)
    return StampReport(
        observed_at=rfc3339(stamp.observed_at_ms),
        age_ms=0 if age_ms is None else age_ms,
        fresh=stamp.fresh(
            live.now_ms, staleness_ms=staleness_ms, fingerprint=live.fleet.fingerprint
        ),
        healthy=bool(stamp.healthy),
        fence=stamp.observed_fence,
    )


def _state(
    live: LiveParts, node_id: str, stamp: Stamp | None, staleness_ms: int
) -> tuple[NodeState, str | None]:
    """In the order in which placement looks."""
    cordon, trip = live.cordons.get(node_id), live.trips.get(node_id)
    if cordon and (cordon["until_ms"] is None or live.now_ms < cordon["until_ms"]):
        left_ms = 0 if cordon["until_ms"] is None else cordon["until_ms"] - live.now_ms
        until = f", for {age(left_ms)} more" if left_ms else ""
        return "cordoned", f"{cordon['why']} ({cordon['by']}){until}"
    if trip:
        left_ms = trip["reopen_at_ms"] - live.now_ms
        when = f"in {age(left_ms)}" if left_ms > 0 else "by the next lease"
        return "tripped", f"{trip['why']} ({trip['by']}), tried again {when}"
    if stamp is None or not stamp.observed_at_ms or live.fleet is None:
        return "stale", "never seen"
    if stamp.healthy is False:
        return "unhealthy", stamp.reason
    if stamp.loading:
        return "loading", "a lease loads a model there"
    if not stamp.fresh(live.now_ms, staleness_ms=staleness_ms, fingerprint=live.fleet.fingerprint):
        return "stale", "not seen recently"
    if live.pool is not None and stamp.epoch != live.pool.epoch:
        return "stale", "not seen since the coordination server came back"
    if stamp.unaccounted:
        return "unaccounted", "it holds something whose size cannot be read"
    return "ready", None


def _queue(moment: Moment, swap_max_ms: int) -> list[WaiterReport]:
    queue, now_ms = moment.folded.queue, moment.live.now_ms
    return [
        WaiterReport(
            request_id=str(waiter.document["request_id"]),
            model=str(waiter.document["model"]),
            role=waiter.document["role"],
            priority=waiter.priority,
            position=position,
            waiting_ms=max(0, now_ms - waiter.arrival_ms),
            reason=waiter.reason,
            reserves=queue.reserves(str(waiter.document["request_key"])),
            environment=str(waiter.document["environment"]),
            holder=str(waiter.document["holder"]),
        )
        for position, waiter in enumerate(queue.in_order(now_ms, swap_max_ms), 1)
    ]
