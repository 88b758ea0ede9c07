"""What became of a request's leases: grants, loads, heartbeats, ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aibs.codec import rfc3339
from aibs.placement.wording import gb, seconds
from aibs.replay.story import Ending, Grant, Heartbeats, Load, NodeWhy, Silence
from aibs.replay.story_wording import missed

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.replay.telling import Telling

LOADS = {"ModelLoading": "loading", "ModelLoaded": "loaded", "ModelUnloaded": "unloaded"}


@dataclass
class LeaseSoFar:
    """A lease that goes on. `event_id` None: it is known from a stored state."""

    lease: dict[str, Any]
    deadline_ms: int
    event_id: str | None
    evidence: dict[str, Any] | None
    nodes: list[NodeWhy]
    loads: list[Load] = field(default_factory=list)
    heard_ms: int | None = None
    beats: int = 0
    silences: list[Silence] = field(default_factory=list)
    revoked: Ending | None = None
    ended: Ending | None = None


class LeaseChapter:
    """Told of every event about leases; those of others are read over."""

    def __init__(self, heartbeat_ms: int, telling: Telling) -> None:
        self._heartbeat_ms, self._telling = heartbeat_ms, telling
        self._grants: list[LeaseSoFar] = []

    def forget(self) -> None:
        """What was told is another request's, of the same id."""
        self._grants = []

    def held(self, lease: dict[str, Any], deadline_ms: int) -> None:
        """A lease that was held when the log begins."""
        self._grants.append(LeaseSoFar(lease, deadline_ms, None, None, []))

    @property
    def last(self) -> LeaseSoFar | None:
        """The newest lease, that goes on or is over."""
        return self._grants[-1] if self._grants else None

    def close(self, end_ms: int) -> None:
        """The log ends at that moment: who still holds a lease may have fallen silent."""
        for grant in self._grants:
            if grant.ended is None:
                self._note_silence(grant, _heard_ms(grant), end_ms)

    def documents(self) -> list[Grant]:
        """Every lease."""
        return [self._document(one) for one in self._grants]

    def granted(self, event: Event, nodes: list[NodeWhy]) -> None:
        """It got a lease; `nodes` tells why no other node took it."""
        data = event.data
        lease, evidence = data["lease"], data["evidence"]
        self._grants.append(LeaseSoFar(lease, data["deadline_ms"], event.id, evidence, nodes))
        unload = ", ".join(lease["unload_first"])
        self._telling.step(
            event,
            f"granted lease {lease['lease_id']} on {lease['node_id']}, "
            f"{'warm' if lease['warm'] else 'cold'}: {gb(evidence['weight_bytes'])} "
            f"({evidence['weight_source']}), leased {gb(evidence['leased_before_bytes'])} → "
            f"{gb(evidence['leased_after_bytes'])} and {gb(evidence['foreign_bytes'])} foreign of "
            f"{gb(evidence['budget_bytes'])}, slots {evidence['slots_used_before']} → "
            f"{evidence['slots_used_after']} of {evidence['slots']}, seen "
            f"{seconds(evidence['stamp_age_ms'])} before"
            + (f"; to unload first: {unload}" if unload else ""),
        )
        for node in nodes:
            self._telling.step(event, f"not on {node.node_id}: {node.detail}")

    def mine(self, lease_id: str) -> LeaseSoFar | None:
        """The lease of that id, where it is this request's."""
        return next(
            (one for one in reversed(self._grants) if one.lease["lease_id"] == lease_id), None
        )

    def renewed(self, event: Event) -> None:
        """A heartbeat."""
        data = event.data
        for lease_id, deadline_ms in zip(data["leases"], data["deadlines"], strict=False):
            grant = self.mine(lease_id)
            if grant is not None and grant.ended is None:
                self._silence(grant, event.at_ms, event)
                grant.beats += 1
                grant.heard_ms = event.at_ms
                grant.deadline_ms = deadline_ms

    def _silence(self, grant: LeaseSoFar, until_ms: int, event: Event) -> None:
        """Heartbeats that should have come since the last one."""
        last_ms = _heard_ms(grant)
        lost = self._note_silence(grant, last_ms, until_ms)
        if lost:
            beats = "1 heartbeat" if lost == 1 else f"{lost} heartbeats"
            self._telling.step(event, f"{beats} missed: silent for {seconds(until_ms - last_ms)}")

    def _note_silence(self, grant: LeaseSoFar, last_ms: int, until_ms: int) -> int:
        lost = missed(last_ms, until_ms, self._heartbeat_ms)
        if lost:
            grant.silences.append(
                Silence(since=rfc3339(last_ms), until=rfc3339(until_ms), missed=lost)
            )
        return lost

    def loaded(self, event: Event) -> None:
        """A model was loaded, or unloaded."""
        data = event.data
        grant = self.mine(data["lease_id"])
        if grant is None:
            return
        what = LOADS[event.type]
        grant.loads.append(
            Load.model_validate(
                {
                    "event_id": event.id,
                    "at": rfc3339(event.at_ms),
                    "what": what,
                    "model": data["model"],
                    "ms": data["ms"],
                    "outcome": data["outcome"],
                }
            )
        )
        took = f" after {seconds(data['ms'])}" if what != "loading" else ""
        failed = ", failed" if data["outcome"] != "ok" else ""
        self._telling.step(event, f"{data['model']} {what} on {data['node_id']}{took}{failed}")

    def revoked(self, event: Event) -> None:
        """An operator took it back."""
        data = event.data
        grant = self.mine(data["lease_id"])
        if grant is not None:
            grant.revoked = Ending(
                event_id=event.id,
                at=rfc3339(event.at_ms),
                how="revoked",
                held_ms=max(0, event.at_ms - grant.lease["acquired_at_ms"]),
                why=data["why"],
                by=data["by"],
            )
            self._telling.step(event, f"revoked by {data['by']}: {data['why']}")

    def ended(self, event: Event) -> bool:
        """A lease is over; whether it was this request's."""
        data = event.data
        grant = self.mine(data["lease_id"])
        if grant is None:
            return False
        self._silence(grant, event.at_ms, event)
        how = {"LeaseExpired": "expired", "LeaseReaped": "reaped"}.get(event.type)
        grant.ended = Ending(
            event_id=event.id,
            at=rfc3339(event.at_ms),
            how=how or data["outcome"],
            held_ms=data["held_ms"],
            why=data.get("why"),
            by=data.get("by"),
        )
        because = f" by {data['by']}: {data['why']}" if "by" in data and "why" in data else ""
        self._telling.step(event, f"{grant.ended.how} after {seconds(data['held_ms'])}{because}")
        return True

    def _document(self, one: LeaseSoFar) -> Grant:
        lease = one.lease
        return Grant(
            lease_id=lease["lease_id"],
            token=lease["token"],
            event_id=one.event_id,
            at=rfc3339(lease["acquired_at_ms"]),
            node_id=lease["node_id"],
            node_base_url=lease["base_url"],
            model=lease["model"],
            worker_id=lease["worker_id"],
            weight_bytes=lease["weight_bytes"],
            warm=lease["warm"],
            unload_first=lease["unload_first"],
            probe=lease["probe"],
            queue_ms=lease["queue_ms"],
            evidence=one.evidence,
            nodes=one.nodes,
            loads=one.loads,
            heartbeats=Heartbeats(
                count=one.beats,
                interval_ms=self._heartbeat_ms,
                last_at=None if one.heard_ms is None else rfc3339(one.heard_ms),
                missed=sum(silence.missed for silence in one.silences),
                silences=one.silences,
            ),
            revoked=one.revoked,
            ended=one.ended,
            deadline=rfc3339(one.deadline_ms),
        )


def _heard_ms(grant: LeaseSoFar) -> int:
    heard = grant.heard_ms
    return int(grant.lease["acquired_at_ms"]) if heard is None else heard
