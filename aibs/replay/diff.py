"""What changed between two moments: nodes, leases, queue, owner, fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from aibs.codec import rfc3339
from aibs.errors import ConfigurationError
from aibs.replay.as_of import AsOfFleet, AsOfOwner, as_of_document
from aibs.replay.entries import event_of
from aibs.replay.points import Bound
from aibs.replay.source import Range
from aibs.replay.states import Past, past
from aibs.reports.leaks import LeaseReport  # noqa: TC001 - pydantic reads it
from aibs.reports.part import Part, Timestamp, schema_of
from aibs.reports.status import WaiterReport  # noqa: TC001 - pydantic reads it

if TYPE_CHECKING:
    from aibs.clock import Clock
    from aibs.eventstore.events import Event
    from aibs.replay.as_of import AsOfDocument
    from aibs.replay.source import Source
    from aibs.reports.status import NodeReport

SCHEMA: Final = "aibs.replay.diff/1"

NODE_FIELDS = (
    "base_url",
    "state",
    "detail",
    "budget_bytes",
    "foreign_bytes",
    "leased_bytes",
    "free_bytes",
    "slots",
    "slots_used",
    "slots_draining",
    "reserved_for",
)
"""What of a node's report is compared; ages only pass."""


class Side(Part):
    """One of the two moments."""

    at: Timestamp
    last_id: str
    seq: int


class Change(Part):
    """One thing that is otherwise than before."""

    what: str
    before: str | int | None
    after: str | int | None


class NodeChange(Part):
    """One node. Models by their names."""

    node_id: str
    change: Literal["appeared", "left", "changed"]
    changes: list[Change]
    models_loaded: list[str]
    models_gone: list[str]


class EndedLease(Part):
    """A lease that was held at the first moment, or began after it, and is over at the second."""

    lease_id: str
    request_id: str | None
    node_id: str
    model: str | None
    ended_at: Timestamp
    end: str
    """completed, cancelled, failed, expired or reaped."""
    began_between: bool
    event_id: str


class LeaseChanges(Part):
    """`begun` are held at the second moment and were not at the first."""

    begun: list[LeaseReport]
    ended: list[EndedLease]


class LeftQueue(Part):
    """A waiter of the first moment, or one that came after it, that waits no longer."""

    request_key: str
    how: str
    waited_ms: int
    at: Timestamp
    event_id: str


class QueueChanges(Part):
    """`joined` wait at the second moment and did not at the first."""

    joined: list[WaiterReport]
    left: list[LeftQueue]


class OwnerChange(Part):
    """Who held the term."""

    before: AsOfOwner | None
    after: AsOfOwner | None


class FleetChange(Part):
    """What was declared; `changes` are the declarations' own sentences."""

    before: AsOfFleet | None
    after: AsOfFleet | None
    changes: list[str]


class DiffDocument(Part):
    """The whole answer; null where nothing changed."""

    schema_: Literal["aibs.replay.diff/1"] = Field(SCHEMA, alias="schema")
    generated_at: Timestamp
    before: Side
    after: Side
    events: int
    """Events between the two."""
    pool: Change | None
    owner: OwnerChange | None
    fleet: FleetChange | None
    nodes: list[NodeChange]
    leases: LeaseChanges
    queue: QueueChanges
    notes: list[str]


class _Between:
    """What the events between the two moments tell of ends."""

    def __init__(self) -> None:
        self.events = 0
        self.begun: dict[str, dict[str, Any]] = {}
        self.ended: list[EndedLease] = []
        self.left: list[LeftQueue] = []
        self.fleet_changes: list[str] = []

    def apply(self, event: Event, held: dict[str, dict[str, Any]]) -> None:
        self.events += 1
        data = event.data
        match event.type:
            case "LeaseAcquired":
                self.begun[data["lease"]["lease_id"]] = data["lease"]
            case "LeaseReleased" | "LeaseExpired" | "LeaseReaped":
                self._end(event, held)
            case "WaitEnded":
                self.left.append(
                    LeftQueue(
                        request_key=data["request_key"],
                        how=data["how"],
                        waited_ms=data["waited_ms"],
                        at=rfc3339(event.at_ms),
                        event_id=event.id,
                    )
                )
            case "FleetDeclared":
                self.fleet_changes += data["changes"]

    def _end(self, event: Event, held: dict[str, dict[str, Any]]) -> None:
        data = event.data
        lease_id = data["lease_id"]
        lease = self.begun.get(lease_id) or held.get(lease_id) or {}
        end = {"LeaseExpired": "expired", "LeaseReaped": "reaped"}.get(event.type)
        self.ended.append(
            EndedLease(
                lease_id=lease_id,
                request_id=lease.get("request_id"),
                node_id=data["node_id"],
                model=lease.get("model"),
                ended_at=rfc3339(event.at_ms),
                end=end or data["outcome"],
                began_between=lease_id in self.begun,
                event_id=event.id,
            )
        )


async def diff(source: Source, first: Bound, second: Bound, clock: Clock) -> DiffDocument:
    """The document of two moments. Raises ConfigurationError where the second is the earlier."""
    before = await past(source, first, "--diff")
    generated_ms = clock.wall_ms()
    before_document = as_of_document(
        before, source.timing, source.namespace, generated_ms=generated_ms
    )
    held = before.folded.coordination.leases.live_part()["leases"]
    models = _models(before)
    after = await past(source, second, "--diff")
    if after.folded.coordination.seq < before_document.seq or after.at_ms < before.at_ms:
        raise ConfigurationError(
            f"--diff has {second} after {first}, and it is the earlier.",
            mend="Name the earlier moment first.",
        )
    between = _Between()
    wanted = Range(after=before_document.last_id, until=Bound(id=after.folded.last_id))
    async for item in source.items(wanted):
        event = event_of(item)
        if event is not None:
            try:
                between.apply(event, held)
            except (KeyError, TypeError, ValueError, AttributeError):
                continue  # an unreadable event: the notes count it
    after_document = as_of_document(
        after, source.timing, source.namespace, generated_ms=generated_ms
    )
    return _compared(before_document, after_document, between, models, _models(after))


Models = dict[str, dict[str, str]]


def _models(found: Past) -> Models:
    """Each node's resident models: their names by what tells one from another."""
    return {
        node_id: {
            f"{model['key']}|{model['digest']}|{model['context_length']}": model["name"]
            for model in node["models"]
        }
        for node_id, node in found.folded.coordination.residency.live_part().items()
    }


def _compared(
    before: AsOfDocument,
    after: AsOfDocument,
    between: _Between,
    models_before: Models,
    models_after: Models,
) -> DiffDocument:
    old_leases = {lease.lease_id for lease in (*before.leases, *before.other_leases)}
    new_leases = (*after.leases, *after.other_leases)
    old_waiters = {_waiter(one) for one in before.queue}
    return DiffDocument(
        generated_at=after.generated_at,
        before=_side(before),
        after=_side(after),
        events=between.events,
        pool=_change("state", before.pool.state, after.pool.state),
        owner=None
        if before.owner == after.owner
        else OwnerChange(before=before.owner, after=after.owner),
        fleet=None
        if before.fleet == after.fleet and not between.fleet_changes
        else FleetChange(before=before.fleet, after=after.fleet, changes=between.fleet_changes),
        nodes=_nodes(before, after, models_before, models_after),
        leases=LeaseChanges(
            begun=[lease for lease in new_leases if lease.lease_id not in old_leases],
            ended=between.ended,
        ),
        queue=QueueChanges(
            joined=[one for one in after.queue if _waiter(one) not in old_waiters],
            left=between.left,
        ),
        notes=list(dict.fromkeys((*before.notes, *after.notes))),
    )


def _side(document: AsOfDocument) -> Side:
    return Side(at=document.as_of, last_id=document.last_id, seq=document.seq)


def _waiter(one: WaiterReport) -> tuple[str, str, str]:
    return one.environment, one.holder, one.request_id


def _change(what: str, before: str | int | None, after: str | int | None) -> Change | None:
    return None if before == after else Change(what=what, before=before, after=after)


def _nodes(
    before: AsOfDocument, after: AsOfDocument, models_before: Models, models_after: Models
) -> list[NodeChange]:
    old = {node.node_id: node for node in before.nodes}
    new = {node.node_id: node for node in after.nodes}
    found = []
    for node_id in sorted(old.keys() | new.keys()):
        was, now = old.get(node_id), new.get(node_id)
        resident_before = models_before.get(node_id, {})
        resident_after = models_after.get(node_id, {})
        change = NodeChange(
            node_id=node_id,
            change="appeared" if was is None else "left" if now is None else "changed",
            changes=[] if was is None or now is None else _fields(was, now),
            models_loaded=[
                resident_after[key] for key in sorted(resident_after.keys() - resident_before)
            ],
            models_gone=[
                resident_before[key] for key in sorted(resident_before.keys() - resident_after)
            ],
        )
        if (
            was is None
            or now is None
            or change.changes
            or change.models_loaded
            or change.models_gone
        ):
            found.append(change)
    return found


def _fields(was: NodeReport, now: NodeReport) -> list[Change]:
    changes = [_change(name, getattr(was, name), getattr(now, name)) for name in NODE_FIELDS]
    return [change for change in changes if change is not None]


def json_schema() -> dict[str, Any]:
    """Its JSON Schema."""
    return schema_of(DiffDocument, SCHEMA)
