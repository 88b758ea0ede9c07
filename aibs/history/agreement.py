"""Whether the live state, the fold of the log, and what the nodes hold agree. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aibs.eventstore.placement_state import Drain, LiveParts
    from aibs.projections.coordination import Coordination
    from aibs.projections.drains import RestingSlot

DIFFERENCES_MAX = 32
DRAIN = ("node_id", "key", "weight_bytes", "ended_at_ms", "until_ms")

Kind = Literal["leased_not_resident", "resident_unleased", "used_by_others"]


@dataclass(frozen=True, slots=True)
class Note:
    """A model that is leased and not resident, or the reverse."""

    node_id: str
    model: str
    kind: Kind
    detail: str


def differences_of(live: LiveParts, folded: Coordination) -> list[str]:
    """Where the fold of the log and the live state part, a sentence each."""
    found: list[str] = []
    if folded.unread:
        found.append(
            f"{folded.unread} events cannot be read by this release: {folded.last_unread}."
        )
    if folded.holes:
        found.append(f"The log has {folded.holes} holes in its numbers.")
    if live.pool is not None and folded.seq != live.pool.seq:
        found.append(f"The log ends at number {folded.seq}, the pool at {live.pool.seq}.")
    leases, queue, marks = (
        folded.leases.live_part(),
        folded.queue.live_part(),
        folded.marks.live_part(),
    )
    plain_marks = {k: v for k, v in live.marks.items() if not k.startswith("revoked|")}
    pairs: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("lease", live.leases, leases["leases"]),
        ("deadline of lease", live.deadlines, leases["deadlines"]),
        ("mark", plain_marks, leases["marks"]),
        ("revocation of lease", live.revocations(), leases["revoked"]),
        ("acknowledgement of lease", live.acks, leases["acks"]),
        ("waiter", live.waiters, queue["waiters"]),
        ("head of the queue", live.heads, queue["heads"]),
        ("reservation of node", live.reservations, queue["reservations"]),
        ("cordon of node", live.cordons, marks["cordons"]),
        ("trip of node", live.trips, marks["trips"]),
        ("observed weight", live.weights, marks["weights"]),
        ("session", live.sessions, marks["sessions"]),
        ("node", live.nodes, folded.residency.live_part()),
    )
    for what, present, told in pairs:
        found += _compared(what, present, told)
    found += differences_of_drains(live, folded)
    if len(found) > DIFFERENCES_MAX:
        rest = len(found) - DIFFERENCES_MAX
        found = [*found[:DIFFERENCES_MAX], f"And {rest} more differences."]
    return found


def differences_of_drains(live: LiveParts, folded: Coordination) -> list[str]:
    """Slots that drain for the one and not for the other.

    A drain is over without an event, and is looked after when its node is: one that is over by the
    node's stamp may be there or not. So may those of a node that moved, or is gone.
    """
    found = []
    present, told = {one.lease_id: one for one in live.drains}, folded.drains.held
    for lease_id in sorted(present.keys() | told.keys()):
        what = f"The drain of lease {lease_id}"
        here, there = present.get(lease_id), told.get(lease_id)
        if there is None:
            assert here is not None
            gone = here.node_id not in live.stamps and live.now_ms >= here.until_ms
            if not gone and not _over(live, here):
                found.append(f"{what} is live, and the log does not tell of it.")
        elif here is None:
            if folded.drains.stands(there) and not _over(live, there):
                found.append(f"{what} is told by the log, and is not live.")
        else:
            fields = [name for name in DRAIN if getattr(here, name) != getattr(there, name)]
            if fields:
                found.append(f"{what} differs from what the log tells, in {', '.join(fields)}.")
    return found


def _over(live: LiveParts, one: Drain | RestingSlot) -> bool:
    stamp = live.stamps.get(one.node_id)
    seen_later = stamp is not None and stamp.observed_at_ms > one.ended_at_ms
    return live.now_ms >= one.until_ms and seen_later


def _compared(what: str, present: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    found = []
    for name in sorted(present.keys() | told.keys()):
        if name not in told:
            found.append(f"The {what} {name} is live, and the log does not tell of it.")
        elif name not in present:
            found.append(f"The {what} {name} is told by the log, and is not live.")
        elif present[name] != told[name]:
            parts = _parts(present[name], told[name])
            found.append(f"The {what} {name} differs from what the log tells{parts}.")
    return found


def _parts(present: Any, told: Any) -> str:
    """Which fields differ, or the two values where they are no documents."""
    if isinstance(present, dict) and isinstance(told, dict):
        fields = sorted(
            field for field in present.keys() | told.keys() if present.get(field) != told.get(field)
        )
        return f", in {', '.join(fields)}"
    return f": {present} live, {told} by the log"


def residency_notes(live: LiveParts) -> list[Note]:
    """Leases whose model is not resident, and own models resident without a lease."""
    leased: dict[tuple[str, str], list[str]] = {}
    for lease_id, document in live.leases.items():
        leased.setdefault((document["node_id"], document["key"]), []).append(lease_id)
    notes: list[Note] = []
    resident: set[tuple[str, str]] = set()
    for node_id, node in sorted(live.nodes.items()):
        for model in node["models"]:
            if model["ownership"] != "own":
                continue
            keys = model.get("roster_keys") or [model["key"]]
            resident |= {(node_id, key) for key in keys}
            if not any((node_id, key) in leased for key in keys):
                detail = f"{model['name']} is resident on {node_id} without a lease: idle."
                notes.append(Note(node_id, model["name"], "resident_unleased", detail))
    for node_id, key in sorted(leased.keys() - resident):
        ids = leased[node_id, key]
        detail = (
            f"{len(ids)} leases are held for {key} on {node_id}, which was not seen to hold it: "
            "it is being loaded, or it was evicted."
        )
        notes.append(Note(node_id, key, "leased_not_resident", detail))
    return notes
