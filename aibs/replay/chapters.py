"""The parts of one request's story, put together as the log is read. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aibs.codec import rfc3339
from aibs.placement.wording import gb, seconds
from aibs.replay.lines import safe
from aibs.replay.standing import standing
from aibs.replay.story import (
    Ahead,
    Denial,
    Ending,
    ExplainDocument,
    Grant,
    Heartbeats,
    Load,
    Meanwhile,
    NodeWhy,
    Outcome,
    Reserved,
    Silence,
    Step,
    Subject,
    Wait,
)
from aibs.replay.story_wording import asked_for, clauses, missed, was, whys

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.coordination import Coordination
    from aibs.projections.queue import Waiter
    from aibs.replay.folding import Folded
    from aibs.replay.header import Timing

SHOWN_MAX = 8
LOADS = {"ModelLoading": "loading", "ModelLoaded": "loaded", "ModelUnloaded": "unloaded"}


@dataclass
class _Wait:
    """A wait that goes on."""

    event: Event
    position: int
    behind: list[Ahead]
    meanwhile: list[Meanwhile] = field(default_factory=list)
    reserved: list[Reserved] = field(default_factory=list)
    ended: str | None = None
    ended_at_ms: int | None = None
    waited_ms: int | None = None


@dataclass
class _Grant:
    """A lease that goes on. `event_id` None: it is known from a stored state."""

    lease: dict[str, Any]
    deadline_ms: int
    event_id: str | None
    evidence: dict[str, Any] | None
    nodes: list[NodeWhy]
    loads: list[Load] = field(default_factory=list)
    beats_ms: list[int] = field(default_factory=list)
    beats: int = 0
    silences: list[Silence] = field(default_factory=list)
    revoked: Ending | None = None
    ended: Ending | None = None


class Chapters:
    """Feed every event twice: `before` it is folded, and `after` where `before` said so."""

    def __init__(
        self, request_key: str, lease_id: str | None, timing: Timing, namespace: str
    ) -> None:
        self._key, self._lease_id = request_key, lease_id
        self._timing, self._namespace = timing, namespace
        self._denials: list[Denial] = []
        self._waits: list[_Wait] = []
        self._grants: list[_Grant] = []
        self._story: list[Step] = []
        self._asked: dict[str, Any] = {}
        self._over = False

    def begin_with(self, start: Coordination) -> None:
        """A lease that was held when the log begins."""
        leases = start.leases.live_part()
        for lease_id, lease in leases["leases"].items():
            if lease["request_key"] == self._key:
                self._asked = lease
                self._grants.append(_Grant(lease, leases["deadlines"][lease_id], None, None, []))
        for key, waiter in start.queue.live_part()["waiters"].items():
            if key == self._key:
                self._asked = waiter

    # --- reading

    def before(self, event: Event, folded: Folded) -> bool:
        """Note the event, `folded` being the state that it met; whether to call `after`."""
        if self._over:
            return self._afterwards(event)
        data = event.data
        match event.type:
            case "LeaseDenied":
                self._denied(event)
            case "LeaseQueued":
                return bool(data["waiter"]["request_key"] == self._key)
            case "LeaseAcquired":
                self._acquired(event, folded)
            case "WaitEnded" if data["request_key"] == self._key:
                self._wait_ended(event)
            case "NodeReserved" if data["request_key"] == self._key:
                self._reserved(event)
            case "ReservationEnded" if data["request_key"] == self._key:
                self._reservation_ended(event)
            case "LeasesRenewed":
                self._renewed(event)
            case "ModelLoading" | "ModelLoaded" | "ModelUnloaded":
                self._loaded(event)
            case "LeaseRevoked":
                self._revoked(event)
            case "LeaseReleased" | "LeaseExpired" | "LeaseReaped":
                self._ended(event)
            case _:
                self._afterwards(event)
        return False

    def after(self, event: Event, folded: Folded) -> None:
        """The request is in the queue now."""
        data, waiter = event.data, event.data["waiter"]
        self._asked = waiter
        order = folded.coordination.queue.in_order(event.at_ms, self._timing.swap_max_ms)
        place = next(
            (n for n, one in enumerate(order) if one.document["request_key"] == self._key),
            len(order),
        )
        wait = _Wait(
            event, place + 1, [self._ahead(one, event.at_ms, waiter) for one in order[:place]]
        )
        self._waits.append(wait)
        names = ", ".join(
            f"{one.request_id} ({one.model}, {one.why})" for one in wait.behind[:SHOWN_MAX]
        )
        more = len(wait.behind) - SHOWN_MAX
        queued = f"waits at place {place + 1}" + (
            f" behind {names}" + (f" and {more} more" if more > 0 else "") if names else ""
        )
        self._step(event, f"{queued}: {clauses(data)}")

    def _ahead(self, one: Waiter, at_ms: int, mine: dict[str, Any]) -> Ahead:
        document = one.document
        rank = one.rank(at_ms, self._timing.swap_max_ms)
        if one.priority == mine["class"]:
            why = "came earlier"
        elif rank < {"high": 0, "normal": 1, "low": 2}[one.priority]:
            why = f"{one.priority} class, risen by its wait"
        else:
            why = f"{one.priority} class"
        return Ahead(
            request_id=document["request_id"],
            request_key=document["request_key"],
            model=document["model"],
            priority=one.priority,
            waiting_ms=max(0, at_ms - one.arrival_ms),
            why=why,
        )

    # --- asking and waiting

    def _denied(self, event: Event) -> None:
        data = event.data
        if f"{data['environment']}|{data['requester']}|{data['request_id']}" != self._key:
            return
        self._asked = self._asked or {
            **data,
            "request_key": self._key,
            "holder": data["requester"],
        }
        self._denials.append(
            Denial(
                event_id=event.id,
                at=rfc3339(event.at_ms),
                reason=data["reason"],
                nodes=whys(data["reasons"]),
                others=data["others"],
            )
        )
        self._step(event, f"denied, {data['reason']}: {clauses(data)}")

    def _waiting(self) -> _Wait | None:
        return self._waits[-1] if self._waits and self._waits[-1].ended is None else None

    def _wait_ended(self, event: Event) -> None:
        data, wait = event.data, self._waiting()
        if wait is not None:
            wait.ended, wait.ended_at_ms = data["how"], event.at_ms
            wait.waited_ms = data["waited_ms"]
        ended = {"timed_out": "timed out", "granted": "granted"}.get(data["how"], data["how"])
        self._step(event, f"the wait ends after {seconds(data['waited_ms'])}: {ended}")

    def _reserved(self, event: Event) -> None:
        data, wait = event.data, self._waiting()
        if wait is not None:
            wait.reserved.append(
                Reserved(
                    event_id=event.id,
                    at=rfc3339(event.at_ms),
                    node_id=data["node_id"],
                    why=data["why"],
                    ended=None,
                    ended_at=None,
                )
            )
        self._step(event, f"{data['node_id']} is kept for it, {gb(data['weight_bytes'])}")

    def _reservation_ended(self, event: Event) -> None:
        data = event.data
        for wait in self._waits[-1:]:
            wait.reserved = [
                one.model_copy(update={"ended": data["how"], "ended_at": rfc3339(event.at_ms)})
                if one.ended is None and one.node_id == data["node_id"]
                else one
                for one in wait.reserved
            ]
        how = str(data["how"]).replace("_", " ")
        self._step(event, f"{data['node_id']} is kept for it no longer: {how}")

    # --- the lease

    def _acquired(self, event: Event, folded: Folded) -> None:
        data = event.data
        lease, evidence = data["lease"], data["evidence"]
        if lease["request_key"] != self._key:
            self._meanwhile(event)
            return
        if self._lease_id is not None and lease["lease_id"] != self._lease_id:
            # The same request id was used before: another story.
            self._denials, self._waits, self._grants, self._story = [], [], [], []
            return
        self._asked = {**self._asked, **lease}
        nodes = standing(folded, event, self._timing, self._namespace)
        self._grants.append(_Grant(lease, data["deadline_ms"], event.id, evidence, nodes))
        unload = ", ".join(lease["unload_first"])
        self._step(
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
            self._step(event, f"not on {node.node_id}: {node.detail}")

    def _meanwhile(self, event: Event) -> None:
        wait = self._waiting()
        if wait is None:
            return
        lease, passed = event.data["lease"], self._key in event.data["evidence"]["passed"]
        wait.meanwhile.append(
            Meanwhile(
                event_id=event.id,
                at=rfc3339(event.at_ms),
                lease_id=lease["lease_id"],
                request_id=lease["request_id"],
                model=lease["model"],
                node_id=lease["node_id"],
                passed=passed,
            )
        )
        how = "passes it, its model being there" if passed else "goes first"
        self._step(
            event,
            f"meanwhile {lease['request_id']} {how}: {lease['model']} on {lease['node_id']}",
        )

    def _mine(self, lease_id: str) -> _Grant | None:
        return next(
            (one for one in reversed(self._grants) if one.lease["lease_id"] == lease_id), None
        )

    def _renewed(self, event: Event) -> None:
        data = event.data
        for lease_id, deadline_ms in zip(data["leases"], data["deadlines"], strict=False):
            grant = self._mine(lease_id)
            if grant is not None and grant.ended is None:
                self._silence(grant, event.at_ms, event)
                grant.beats += 1
                grant.beats_ms = [event.at_ms]
                grant.deadline_ms = deadline_ms

    def _silence(self, grant: _Grant, until_ms: int, event: Event) -> None:
        """Heartbeats that should have come since the last one."""
        last_ms = grant.beats_ms[-1] if grant.beats_ms else grant.lease["acquired_at_ms"]
        lost = self._note_silence(grant, last_ms, until_ms)
        if lost:
            beats = "1 heartbeat" if lost == 1 else f"{lost} heartbeats"
            self._step(event, f"{beats} missed: silent for {seconds(until_ms - last_ms)}")

    def _note_silence(self, grant: _Grant, last_ms: int, until_ms: int) -> int:
        lost = missed(last_ms, until_ms, self._timing.heartbeat_ms)
        if lost:
            grant.silences.append(
                Silence(since=rfc3339(last_ms), until=rfc3339(until_ms), missed=lost)
            )
        return lost

    def _loaded(self, event: Event) -> None:
        data = event.data
        grant = self._mine(data["lease_id"])
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
        self._step(event, f"{data['model']} {what} on {data['node_id']}{took}{failed}")

    def _revoked(self, event: Event) -> None:
        data = event.data
        grant = self._mine(data["lease_id"])
        if grant is not None:
            grant.revoked = Ending(
                event_id=event.id,
                at=rfc3339(event.at_ms),
                how="revoked",
                held_ms=max(0, event.at_ms - grant.lease["acquired_at_ms"]),
                why=data["why"],
                by=data["by"],
            )
            self._step(event, f"revoked by {data['by']}: {data['why']}")

    def _ended(self, event: Event) -> None:
        data = event.data
        grant = self._mine(data["lease_id"])
        if grant is None:
            return
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
        self._step(event, f"{grant.ended.how} after {seconds(data['held_ms'])}{because}")
        self._over = self._lease_id is not None

    def _afterwards(self, event: Event) -> bool:
        """What comes after the end: releases that are late, a leak that is known."""
        data = event.data
        if event.type in ("LateRelease", "DoubleRelease"):
            if self._mine(data["lease_id"]) is not None:
                late = event.type == "LateRelease"
                self._step(
                    event,
                    f"given back too late: it was {data['ended_by']} before"
                    if late
                    else "given back a second time, by another call",
                )
        elif event.type == "LeakAcknowledged" and any(map(self._mine, data["leases"])):
            self._step(event, f"{data['by']} knows of the leak")
        return False

    def _step(self, event: Event, text: str) -> None:
        self._story.append(
            Step(event_id=event.id, at=rfc3339(event.at_ms), seq=event.seq, text=safe(text))
        )

    # --- the document

    def document(self, end_ms: int, notes: list[str]) -> ExplainDocument:
        """The story as far as it was read, to the log's last event at `end_ms`."""
        for grant in self._grants:
            if grant.ended is None:
                last_ms = grant.beats_ms[-1] if grant.beats_ms else grant.lease["acquired_at_ms"]
                self._note_silence(grant, last_ms, end_ms)
        subject = self._subject()
        outcome = self._outcome()
        return ExplainDocument(
            schema="aibs.replay.explain/1",
            generated_at=rfc3339(end_ms),
            subject=subject,
            outcome=outcome,
            summary=self._summary(subject, outcome),
            denials=self._denials,
            waits=[_wait(one) for one in self._waits],
            grants=[self._grant(one) for one in self._grants],
            story=self._story,
            notes=notes,
        )

    def _subject(self) -> Subject:
        asked = self._asked
        environment, _, rest = self._key.partition("|")
        return Subject(
            request_id=asked.get("request_id") or rest.partition("|")[2],
            request_key=self._key,
            lease_id=self._grants[-1].lease["lease_id"] if self._grants else None,
            environment=asked.get("environment") or environment,
            holder=asked.get("holder") or rest.partition("|")[0],
            asked_for=asked_for(asked),
            priority=asked.get("class"),
        )

    def _outcome(self) -> Outcome:
        if self._grants:
            last = self._grants[-1]
            if last.ended is None:
                return "held" if last.revoked is None else "revoked"
            match last.ended.how:
                case "completed" | "cancelled" | "failed" | "expired" | "reaped" as how:
                    return how
            return "failed"
        if self._waits:
            return "waiting" if self._waits[-1].ended is None else "wait_ended"
        return "denied" if self._denials else "waiting"

    def _summary(self, subject: Subject, outcome: Outcome) -> str:
        what = f"{subject.request_id} asked for {subject.asked_for}"
        waited = self._waits[-1].waited_ms if self._waits else None
        wait = "" if waited is None else f", waited {seconds(waited)}"
        if self._grants:
            last = self._grants[-1]
            there = "warm" if last.lease["warm"] else "cold"
            got = f"{what}{wait}, got {last.lease['node_id']} ({there})"
            lost = sum(one.missed for one in last.silences)
            beats = f", {lost} heartbeats missed" if lost else ""
            if last.ended is None:
                return f"{got} and is {outcome}{beats}."
            return f"{got} and {was(outcome)} after {seconds(last.ended.held_ms)}{beats}."
        if outcome == "wait_ended":
            how = {"timed_out": "until its time was over"}.get(
                str(self._waits[-1].ended), f"until it was {self._waits[-1].ended}"
            )
            return f"{what}{wait}, {how}, and got nothing."
        if outcome == "denied":
            last_denial = self._denials[-1]
            times = len(self._denials)
            often = "" if times == 1 else f" {times} times, the last time"
            return f"{what} and was denied{often}: {last_denial.reason}."
        return f"{what} and waits."

    def _grant(self, one: _Grant) -> Grant:
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
                interval_ms=self._timing.heartbeat_ms,
                last_at=rfc3339(one.beats_ms[-1]) if one.beats_ms else None,
                missed=sum(silence.missed for silence in one.silences),
                silences=one.silences,
            ),
            revoked=one.revoked,
            ended=one.ended,
            deadline=rfc3339(one.deadline_ms),
        )


def _wait(one: _Wait) -> Wait:
    data = one.event.data
    return Wait(
        event_id=one.event.id,
        at=rfc3339(one.event.at_ms),
        position=one.position,
        behind=one.behind,
        reason=data["reason"],
        nodes=whys(data["reasons"]),
        others=data["others"],
        meanwhile=one.meanwhile,
        reserved=one.reserved,
        ended=one.ended,
        ended_at=None if one.ended_at_ms is None else rfc3339(one.ended_at_ms),
        waited_ms=one.waited_ms,
    )
