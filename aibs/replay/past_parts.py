"""The live state of a past moment, part by part, as the log's events make it.

What the log does not tell is made up so that nothing is shown that could not have been: see
`told_ms` for what is known of polls, and the stamps for what is inferred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.codec import dumps_text
from aibs.eventstore.placement_state import Drain, LiveParts
from aibs.eventstore.state import FleetState, PoolState, Stamp, TermState
from aibs.fleet import Fleet, InvalidFleetDocument

if TYPE_CHECKING:
    from aibs.replay.states import Past

TOLD_EVERY_MS = 60_000
"""How often the log tells of a node that does not change."""


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
                one.ended_at_ms,
                one.until_ms,
            )
            for one in state.drains.draining(at_ms)
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
    if declared.document is None or not readable(declared.document):
        return None
    return FleetState(
        revision=declared.revision or 0,
        fingerprint=declared.fingerprint or "",
        document=declared.document,
        event_id=declared.event_id or "",
    )


def readable(document: dict[str, Any]) -> bool:
    """Whether a declared fleet is one."""
    try:
        Fleet.from_document(document)
    except InvalidFleetDocument:
        return False
    return True


def _stamps(past: Past, marks: dict[str, str]) -> dict[str, Stamp]:
    """Each node's stamp as it may have been: with the newest poll that fits what the log tells."""
    seen = past.folded.coordination.drains.seen
    loading = {text.partition(" ")[2] for name, text in marks.items() if name.startswith("loading")}
    found = {}
    for node_id, node in past.folded.coordination.residency.live_part().items():
        known = seen.get(node_id)
        found[node_id] = Stamp(
            observed_at_ms=_inferred_ms(past, node_id),
            observed_fence=node["fence"],
            fence=node["fence"],
            seq=0,
            # The first poll for another fleet is always told.
            fingerprint=node["fingerprint"],
            base_url=node["base_url"],
            healthy=node["healthy"],
            reason=node["reason"],
            own_bytes=node["own"],
            foreign_bytes=node["foreign"],
            unaccounted=node["unaccounted"],
            failed_in_row=0,
            epoch=0 if known is None else known.epoch,
            loading=node_id in loading and past.at_ms - told_ms(past, node_id) > TOLD_EVERY_MS,
        )
    return found


def told_ms(past: Past, node_id: str) -> int:
    """When the newest poll of a node began that the log tells of; 0: of none."""
    state = past.folded.coordination
    node, seen = state.residency.nodes.get(node_id), state.drains.seen.get(node_id)
    if node is None or not node.observed_at_ms:
        return 0
    return max(node.observed_at_ms, 0 if seen is None else seen.observed_at_ms)


def _inferred_ms(past: Past, node_id: str) -> int:
    """When the newest poll may have begun: polls that change nothing are told once a minute, the
    first of each term and of each recovery is told always, and without an owner there are none.
    """
    told, state = told_ms(past, node_id), past.folded.coordination
    if not told:
        return 0
    node, term = state.residency.nodes[node_id], state.ownership
    if not node.healthy:
        return told
    until_ms = told + TOLD_EVERY_MS
    in_term = term.owner is not None and node.fence == term.fence
    if not in_term and term.ended_at_ms is not None:
        until_ms = min(until_ms, max(told, term.ended_at_ms))
    return min(until_ms, max(told, past.at_ms))
