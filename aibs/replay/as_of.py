"""The state at an instant, as `aibs status` would have shown it, from the log alone.

What the log does not tell is null: terms are renewed without events, so a term's end is not known.
Polls that change nothing are told once a minute: that a node was fresh in between is inferred, and
the document says of which nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from aibs.codec import rfc3339
from aibs.projections.leaks import Leaks
from aibs.replay.past_parts import parts_of, readable, told_ms
from aibs.reports.leaks import LeaseReport  # noqa: TC001 - pydantic reads it
from aibs.reports.moment import Moment
from aibs.reports.part import Part, Timestamp, schema_of
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

SCHEMA: Final = "aibs.replay.as-of/1"

UNKNOWN_FOR_MS = 3_600_000
"""Longer than slots drain."""


class AsOfFleet(Part):
    """What was declared."""

    revision: int
    fingerprint: str


class AsOfOwner(Part):
    """Who held the term, as far as the log had told."""

    owner: str
    fence: int
    elected_at: Timestamp


class AsOfDocument(Part):
    """The whole answer. `as_of` is the moment that it shows."""

    schema_: Literal["aibs.replay.as-of/1"] = Field(SCHEMA, alias="schema")
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
    """Those that were active."""
    other_leases: list[LeaseReport]
    """Those that were held, and late, overdue or revoked."""
    inferred_fresh: list[str]
    """Nodes of which no poll is told that was young enough: that they were seen since is inferred.
    Their stamp is the newest that is told."""
    notes: list[str]
    """What the log left open, in sentences."""


def as_of_document(
    past: Past, timing: Timing, namespace: str, *, generated_ms: int
) -> AsOfDocument:
    """The document of one moment, made at `generated_ms`."""
    status = status_of(past, timing, namespace)
    state = past.folded.coordination
    return AsOfDocument(
        generated_at=rfc3339(generated_ms),
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
        nodes=[_as_told(node, past) for node in status.nodes],
        inferred_fresh=[
            node.node_id
            for node in status.nodes
            if node.stamp is not None
            and node.stamp.fresh
            and past.at_ms - told_ms(past, node.node_id) > timing.staleness_ms
        ],
        queue=status.queue,
        leases=status.leases,
        other_leases=status.other_leases,
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
    if state.declared.document is not None and not readable(state.declared.document):
        notes.append(f"The fleet that {state.declared.event_id} declares cannot be read.")
    if state.holes:
        notes.append(f"The log has {state.holes} holes in its numbers before that moment.")
    unknown_ms = state.drains.unknown_at_ms
    if unknown_ms is not None and past.at_ms - unknown_ms < UNKNOWN_FOR_MS:
        notes.append(
            f"The state at {rfc3339(unknown_ms)} was kept by an older release, without the slots "
            "that drained then: until they were free again they are shown free."
        )
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


def _as_told(node: NodeReport, past: Past) -> NodeReport:
    """With the newest stamp that is told, not the one that is inferred."""
    if node.stamp is None:
        return node
    told = told_ms(past, node.node_id)
    stamp = node.stamp.model_copy(
        update={"observed_at": rfc3339(told), "age_ms": max(0, past.at_ms - told)}
    )
    return node.model_copy(update={"stamp": stamp})


def _settings(timing: Timing, namespace: str) -> Settings:
    """The defaults, with what the log's own process was run with."""
    from aibs.settings import load

    return load({}, None).model_copy(
        update={
            "model_cluster_namespace": namespace,
            "model_cluster_max_residency_staleness_ms": timing.staleness_ms,
            "model_cluster_heartbeat_interval_seconds": timing.heartbeat_ms / 1000,
            "model_cluster_swap_max_wait_seconds": timing.swap_max_ms / 1000,
        }
    )


def json_schema() -> dict[str, Any]:
    """Its JSON Schema."""
    return schema_of(AsOfDocument, SCHEMA)
