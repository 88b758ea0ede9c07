"""The state at an instant, as `aibs status` would have shown it, from the log alone.

What the log does not tell is null: terms are renewed without events, so a term's end is not known;
polls that changed nothing are told once a minute, so a node counts as fresh for so much longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from aibs.codec import dumps_text, rfc3339
from aibs.eventstore.placement_state import Drain, LiveParts
from aibs.eventstore.state import FleetState, PoolState, Stamp, TermState
from aibs.fleet import Fleet, InvalidFleetDocument
from aibs.projections.leaks import Leaks
from aibs.replay.surroundings import TOLD_EVERY_MS
from aibs.reports.leaks import LeaseReport  # noqa: TC001 - pydantic reads it
from aibs.reports.moment import Moment
from aibs.reports.part import Part, Timestamp
from aibs.reports.status import (
    NodeReport,
    PoolReport,
    StatusDocument,
    WaiterReport,
    status_document,
)

if TYPE_CHECKING:
    from aibs.replay.header import Timing
    from aibs.replay.states import Past
    from aibs.settings import Settings

SCHEMA: Final = "aibs.replay.as_of/1"


class AsOfFleet(Part):
    """What was declared."""

    revision: int
    fingerprint: str


class AsOfOwner(Part):
    """Who held the term, as far as the log had told."""

    owner: str
    fence: int
    elected_at: Timestamp | None


class AsOfDocument(Part):
    """The whole answer. `generated_at` is the moment that it shows."""

    schema_: Literal["aibs.replay.as_of/1"] = Field(SCHEMA, alias="schema")
    generated_at: Timestamp
    as_of: Timestamp
    last_id: str
    """The last event before that moment."""
    seq: int
    pool: PoolReport
    fleet: AsOfFleet | None
    owner: AsOfOwner | None
    nodes: list[NodeReport]
    queue: list[WaiterReport]
    leases: list[LeaseReport]
    notes: list[str]
    """What the log left open, in sentences."""


def as_of_document(past: Past, timing: Timing, namespace: str) -> AsOfDocument:
    """The document of one moment."""
    status = status_of(past, timing, namespace)
    state = past.folded.coordination
    return AsOfDocument(
        generated_at=status.generated_at,
        as_of=status.generated_at,
        last_id=state.last_id,
        seq=state.seq,
        pool=status.pool,
        fleet=None
        if status.fleet is None
        else AsOfFleet(revision=status.fleet.revision, fingerprint=status.fleet.fingerprint),
        owner=None
        if status.owner is None
        else AsOfOwner(
            owner=status.owner.owner,
            fence=status.owner.fence,
            elected_at=status.owner.elected_at,
        ),
        nodes=status.nodes,
        queue=status.queue,
        leases=status.leases,
        notes=notes_of(past),
    )


def notes_of(past: Past) -> list[str]:
    """What a reader must know of a state that is not whole."""
    notes, state = [], past.folded.coordination
    if past.partial:
        notes.append(
            "The log no longer reaches back to its beginning: what began before it is not shown."
        )
    if past.folded.unread:
        notes.append(
            f"{past.folded.unread} events before that moment could not be read, the last of them "
            f"{past.folded.last_unread}."
        )
    if state.declared.document is not None and not _readable(state.declared.document):
        notes.append(f"The fleet that {state.declared.event_id} declares cannot be read.")
    if state.holes:
        notes.append(f"The log has {state.holes} holes in its numbers before that moment.")
    if state.stopped_at is not None:
        notes.append(
            f"The state is that before {state.stopped_at}, which this release cannot read: "
            f"{state.stopped_why}."
        )
    return notes


def status_of(past: Past, timing: Timing, namespace: str) -> StatusDocument:
    """The past as the present's report sees it."""
    live = parts_of(past)
    moment = Moment(live, past.folded.coordination, Leaks(since_ms=past.at_ms), past.at_ms)
    return status_document(moment, _settings(timing, namespace))


def _settings(timing: Timing, namespace: str) -> Settings:
    """The defaults, with what the log's own process was run with."""
    from aibs.settings import load

    return load({}, None).model_copy(
        update={
            "model_cluster_namespace": namespace,
            "model_cluster_max_residency_staleness_ms": timing.staleness_ms + TOLD_EVERY_MS,
            "model_cluster_heartbeat_interval_seconds": timing.heartbeat_ms / 1000,
            "model_cluster_swap_max_wait_seconds": timing.swap_max_ms / 1000,
        }
    )


def parts_of(past: Past) -> LiveParts:
    """The live state that the log's events make."""
    state, at_ms = past.folded.coordination, past.at_ms
    leases, queue, marks = (
        state.leases.live_part(),
        state.queue.live_part(),
        state.marks.live_part(),
    )
    revoked = {f"revoked|{key}": dumps_text(mark) for key, mark in leases["revoked"].items()}
    return LiveParts(
        now_ms=at_ms,
        pool=_pool(past),
        term=_term(past),
        fleet=_fleet(past),
        nodes=state.residency.live_part(),
        stamps=_stamps(past, leases["marks"]),
        leases=leases["leases"],
        deadlines=leases["deadlines"],
        marks=leases["marks"] | revoked,
        waiters=queue["waiters"],
        heads=queue["heads"],
        reservations=queue["reservations"],
        cordons=marks["cordons"],
        trips=marks["trips"],
        weights=marks["weights"],
        sessions=marks["sessions"],
        acks=leases["acks"],
        drains=tuple(
            Drain(
                one.lease_id,
                one.node_id,
                one.key,
                one.weight_bytes,
                one.ended_at_ms or 0,
                (one.ended_at_ms or 0) + one.drain_ms,
            )
            for one in past.folded.surroundings.draining(at_ms)
        ),
        standbys={},
    )


def _pool(past: Past) -> PoolState:
    state = past.folded.coordination
    identity = state.identity
    return PoolState(
        pool_id=identity.pool_id or "unknown",
        state_version="",
        run_id=identity.run_id or "",
        state=identity.state or "open",
        epoch=identity.epoch,
        seq=state.seq,
        last_id=state.last_id,
        recover_at_ms=None,
    )


def _term(past: Past) -> TermState | None:
    ownership = past.folded.coordination.ownership
    if not ownership.elections and ownership.owner is None:
        return None
    return TermState(
        owner=ownership.owner,
        fence=ownership.fence,
        # Renewals leave no event: a term lasts until the log tells its end.
        deadline_ms=past.at_ms + 1,
        ttl_ms=0,
        elected_at_ms=ownership.elected_at_ms,
        ended=ownership.ended,
        last_owner=ownership.last_owner,
        event_id=ownership.event_id,
    )


def _fleet(past: Past) -> FleetState | None:
    declared = past.folded.coordination.declared
    if declared.document is None or not _readable(declared.document):
        return None
    return FleetState(
        revision=declared.revision or 0,
        fingerprint=declared.fingerprint or "",
        document=declared.document,
        event_id=declared.event_id or "",
    )


def _readable(document: dict[str, Any]) -> bool:
    try:
        Fleet.from_document(document)
    except InvalidFleetDocument:
        return False
    return True


def _stamps(past: Past, marks: dict[str, str]) -> dict[str, Stamp]:
    surroundings = past.folded.surroundings
    loading = {text.partition(" ")[2] for name, text in marks.items() if name.startswith("loading")}
    found = {}
    for node_id, node in past.folded.coordination.residency.live_part().items():
        seen = surroundings.seen.get(node_id)
        observed_ms = max(node["observed_at_ms"], 0 if seen is None else seen.observed_at_ms)
        found[node_id] = Stamp(
            observed_at_ms=observed_ms if node["observed_at_ms"] else 0,
            observed_fence=node["fence"],
            fence=node["fence"],
            seq=0,
            fingerprint=_fingerprint(past),
            base_url=node["base_url"],
            healthy=node["healthy"],
            reason=node["reason"],
            own_bytes=node["own"],
            foreign_bytes=node["foreign"],
            unaccounted=node["unaccounted"],
            failed_in_row=0,
            epoch=0 if seen is None else seen.epoch,
            loading=node_id in loading and past.at_ms - observed_ms > TOLD_EVERY_MS,
        )
    return found


def _fingerprint(past: Past) -> str:
    """Of the fleet: a node that is still declared under its URL is seen for the new one with the
    next poll, which is no change that the log tells.
    """
    return past.folded.coordination.declared.fingerprint or ""


def json_schema() -> dict[str, Any]:
    """Its JSON Schema."""
    return AsOfDocument.model_json_schema(by_alias=True)


def moment_text(past: Past) -> str:
    """`2026-12-01T12:03:04.567Z, after event 176-0 (number 12)`."""
    state = past.folded.coordination
    return f"{rfc3339(past.at_ms)}, after event {state.last_id} (number {state.seq})"
