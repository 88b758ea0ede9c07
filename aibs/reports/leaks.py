"""`aibs leaks` as a document: living leases, leaks, and whether all of it agrees.

What expired and is not acknowledged leaks however long ago that was; `since` is for the rest.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from aibs.codec import rfc3339
from aibs.history.agreement import differences_of, residency_notes
from aibs.reports.part import Part, Timestamp, schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aibs.eventstore.placement_state import LiveParts
    from aibs.projections.leaks import EndedLease
    from aibs.reports.moment import Moment

SCHEMA: Final = "aibs.leaks/1"

LeaseState = Literal["active", "late", "expired_unreleased", "revoked", "reaped", "released"]
GroupBy = Literal["holder", "environment", "model", "node"]
HEARTBEATS_UNTIL_LATE = 3


class Counts(Part):
    """The first four are now, the last four count since `since`."""

    active: int
    late: int
    expired_unreleased: int
    """Overdue now, or ended by their deadline, whenever that was, and not acknowledged."""
    draining: int
    """Slots that ended without a release and were not seen free since."""
    revoked: int
    reaped: int
    late_releases: int
    double_releases: int
    unlisted: int = 0
    """Of `expired_unreleased`, the oldest that are no longer listed: 4096 are kept. They count
    until all that are listed have been acknowledged."""


class LeaseReport(Part):
    """One lease."""

    lease_id: str
    request_id: str
    token: str
    state: LeaseState
    acknowledged: bool
    node_id: str
    node_base_url: str
    model: str
    worker_id: str
    role: str | None
    environment: str
    holder: str
    acquired_at: Timestamp
    last_heartbeat_at: Timestamp | None
    deadline: Timestamp
    ended_at: Timestamp | None
    end: Literal["released", "expired", "reaped"] | None
    held_ms: int | None


class ResidencyNote(Part):
    """Where leases and residency part, which may be right: a load takes its time."""

    node_id: str
    model: str
    kind: Literal["leased_not_resident", "resident_unleased", "used_by_others"]
    detail: str


class Group(Part):
    """Leases of one holder, environment, model or node."""

    by: GroupBy
    name: str
    living: int
    late: int
    leaked: int


class LeaksDocument(Part):
    """The whole answer."""

    schema_: Literal["aibs.leaks/1"] = Field(SCHEMA, alias="schema")
    generated_at: Timestamp
    since: Timestamp
    counts: Counts
    leases: list[LeaseReport]
    groups: list[Group]
    residency: list[ResidencyNote]
    consistent_with_live_state: bool
    differences: list[str]
    leaking: bool
    """Whether a lease is late now, or expired and nobody acknowledged it, or was reaped since
    `since` because its holder was gone, and nobody acknowledged it."""


def in_order(leases: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lease ids as they were granted: a token is the number of its grant's event."""
    return sorted(
        leases, key=lambda one: (leases[one]["acquired_at_ms"], leases[one]["token"].zfill(16))
    )


def living_leases(live: LiveParts, *, heartbeat_ms: int) -> list[LeaseReport]:
    """Every lease that has not ended, in the order of the grants."""
    return [_living(live, lease_id, heartbeat_ms) for lease_id in in_order(live.leases)]


def leaks_document(moment: Moment, *, heartbeat_ms: int) -> LeaksDocument:
    """The document of one moment."""
    live = moment.live
    living = living_leases(live, heartbeat_ms=heartbeat_ms)
    ended = [
        _ended(lease, acknowledged=lease_id in live.acks or lease.acknowledged)
        for lease_id, lease in moment.leaks.ended.items()
    ]
    leases = [*living, *ended]
    states = Counter(lease.state for lease in living)
    leaked = moment.leaks.unacknowledged()
    differences = differences_of(moment.live, moment.folded)
    return LeaksDocument(
        generated_at=rfc3339(live.now_ms),
        since=rfc3339(moment.since_ms),
        counts=Counts(
            active=states["active"],
            late=states["late"],
            expired_unreleased=states["expired_unreleased"] + moment.leaks.expired_unreleased,
            draining=len(live.drains),
            revoked=moment.leaks.revoked,
            reaped=moment.leaks.reaped,
            late_releases=moment.leaks.late_releases,
            double_releases=moment.leaks.double_releases,
            unlisted=moment.leaks.unlisted,
        ),
        leases=leases,
        groups=_groups(living, ended),
        residency=[
            ResidencyNote(
                node_id=note.node_id, model=note.model, kind=note.kind, detail=note.detail
            )
            for note in residency_notes(live)
        ],
        consistent_with_live_state=not differences,
        differences=differences,
        leaking=any(
            lease.state == "late"
            or (lease.state == "expired_unreleased" and not lease.acknowledged)
            for lease in living
        )
        or bool(leaked),
    )


def to_json(document: LeaksDocument) -> dict[str, Any]:
    """The document as printed."""
    return document.model_dump(mode="json", by_alias=True)


def json_schema() -> dict[str, Any]:
    """Its JSON Schema."""
    return schema_of(LeaksDocument, SCHEMA)


def _living(live: LiveParts, lease_id: str, heartbeat_ms: int) -> LeaseReport:
    document = live.leases[lease_id]
    heard, deadline_ms = live.heartbeat_ms(lease_id), live.deadlines[lease_id]
    silent_ms = live.now_ms - (document["acquired_at_ms"] if heard is None else heard)
    state: LeaseState = "active"
    if lease_id in live.revocations():
        state = "revoked"
    elif deadline_ms <= live.now_ms:
        state = "expired_unreleased"
    elif silent_ms >= HEARTBEATS_UNTIL_LATE * heartbeat_ms:
        state = "late"
    return _report(
        document,
        state=state,
        acknowledged=lease_id in live.acks,
        heard_ms=heard,
        deadline_ms=deadline_ms,
    )


def _ended(lease: EndedLease, *, acknowledged: bool) -> LeaseReport:
    return _report(
        lease.document.model_dump(),
        state="expired_unreleased" if lease.end == "expired" else "reaped",
        acknowledged=acknowledged or lease.by_hand,
        heard_ms=lease.last_heartbeat_ms,
        deadline_ms=lease.deadline_ms,
        ended=lease,
    )


def _report(
    document: dict[str, Any],
    *,
    state: LeaseState,
    acknowledged: bool,
    heard_ms: int | None,
    deadline_ms: int,
    ended: EndedLease | None = None,
) -> LeaseReport:
    return LeaseReport(
        lease_id=document["lease_id"],
        request_id=document["request_id"],
        token=document["token"],
        state=state,
        acknowledged=acknowledged,
        node_id=document["node_id"],
        node_base_url=document["base_url"],
        model=document["model"],
        worker_id=document["worker_id"],
        role=document["role"],
        environment=document["environment"],
        holder=document["holder"],
        acquired_at=rfc3339(document["acquired_at_ms"]),
        last_heartbeat_at=None if heard_ms is None else rfc3339(heard_ms),
        deadline=rfc3339(deadline_ms),
        ended_at=None if ended is None else rfc3339(ended.ended_at_ms),
        end=None if ended is None else ended.end,
        held_ms=None if ended is None else ended.held_ms,
    )


def _name(lease: LeaseReport, by: GroupBy) -> str:
    match by:
        case "holder":
            return lease.holder
        case "environment":
            return lease.environment
        case "model":
            return lease.model
        case "node":
            return lease.node_id


def _groups(living: list[LeaseReport], ended: list[LeaseReport]) -> list[Group]:
    kinds: tuple[GroupBy, ...] = ("holder", "environment", "model", "node")
    found = []
    for by in kinds:
        alive = Counter(_name(lease, by) for lease in living)
        late = Counter(_name(lease, by) for lease in living if lease.state == "late")
        leaked = Counter(_name(lease, by) for lease in ended if not lease.acknowledged)
        names = sorted({_name(lease, by) for lease in (*living, *ended)})
        found += [
            Group(by=by, name=name, living=alive[name], late=late[name], leaked=leaked[name])
            for name in names
        ]
    return found
