"""One request's story, put together as the log is read. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.codec import rfc3339
from aibs.placement.wording import seconds
from aibs.replay.chapter_leases import LeaseChapter
from aibs.replay.chapter_waits import WaitChapter
from aibs.replay.standing import standing
from aibs.replay.story import ExplainDocument, Outcome, Subject
from aibs.replay.story_wording import asked_for, was
from aibs.replay.telling import Telling

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.coordination import Coordination
    from aibs.replay.folding import Folded
    from aibs.replay.header import Timing


class Chapters:
    """Feed every event twice: `before` it is folded, and `after` where `before` said so."""

    def __init__(
        self, request_key: str, lease_id: str | None, timing: Timing, namespace: str
    ) -> None:
        self._key, self._lease_id = request_key, lease_id
        self._timing, self._namespace = timing, namespace
        self._telling = Telling()
        self._waits = WaitChapter(request_key, timing.swap_max_ms, self._telling)
        self._leases = LeaseChapter(timing.heartbeat_ms, self._telling)
        self._over = False

    def begin_with(self, start: Coordination) -> None:
        """A lease that was held when the log begins."""
        leases = start.leases.live_part()
        for lease_id, lease in leases["leases"].items():
            if lease["request_key"] == self._key:
                self._waits.asked = lease
                self._leases.held(lease, leases["deadlines"][lease_id])
        for key, waiter in start.queue.live_part()["waiters"].items():
            if key == self._key:
                self._waits.asked = waiter

    # --- reading

    def before(self, event: Event, folded: Folded) -> bool:
        """Note the event, `folded` being the state that it met; whether to call `after`."""
        if self._over:
            self._afterwards(event)
            return False
        data = event.data
        match event.type:
            case "LeaseDenied":
                self._waits.denied(event)
            case "LeaseQueued":
                return bool(data["waiter"]["request_key"] == self._key)
            case "LeaseAcquired":
                self._acquired(event, folded)
            case "WaitEnded" if data["request_key"] == self._key:
                self._waits.ended(event)
            case "NodeReserved" if data["request_key"] == self._key:
                self._waits.reserved(event)
            case "ReservationEnded" if data["request_key"] == self._key:
                self._waits.reservation_ended(event)
            case "LeasesRenewed":
                self._leases.renewed(event)
            case "ModelLoading" | "ModelLoaded" | "ModelUnloaded":
                self._leases.loaded(event)
            case "LeaseRevoked":
                self._leases.revoked(event)
            case "LeaseReleased" | "LeaseExpired" | "LeaseReaped":
                if self._leases.ended(event):
                    self._over = self._lease_id is not None
            case _:
                self._afterwards(event)
        return False

    def after(self, event: Event, folded: Folded) -> None:
        """The request is in the queue now."""
        self._waits.queued(event, folded.coordination.queue)

    def _acquired(self, event: Event, folded: Folded) -> None:
        lease = event.data["lease"]
        if lease["request_key"] != self._key:
            self._waits.meanwhile(event)
            return
        if self._lease_id is not None and lease["lease_id"] != self._lease_id:
            # The same request id was used before: another story.
            for part in (self._waits, self._leases, self._telling):
                part.forget()
            return
        self._waits.asked = {**self._waits.asked, **lease}
        self._leases.granted(event, standing(folded, event, self._timing, self._namespace))

    def _afterwards(self, event: Event) -> None:
        """What comes after the end: releases that are late, a leak that is known."""
        data = event.data
        if event.type in ("LateRelease", "DoubleRelease"):
            if self._leases.mine(data["lease_id"]) is not None:
                late = event.type == "LateRelease"
                self._telling.step(
                    event,
                    f"given back too late: it was {data['ended_by']} before"
                    if late
                    else "given back a second time, by another call",
                )
        elif event.type == "LeakAcknowledged" and any(map(self._leases.mine, data["leases"])):
            self._telling.step(event, f"{data['by']} knows of the leak")

    # --- the document

    def document(self, end_ms: int, notes: list[str], *, generated_ms: int) -> ExplainDocument:
        """The story as far as it was read, to the log's last event at `end_ms`."""
        self._leases.close(end_ms)
        subject = self._subject()
        outcome = self._outcome()
        return ExplainDocument(
            schema="aibs.replay.explain/1",
            generated_at=rfc3339(generated_ms),
            subject=subject,
            outcome=outcome,
            summary=self._summary(subject, outcome),
            denials=self._waits.denials,
            waits=self._waits.documents(),
            grants=self._leases.documents(),
            story=self._telling.steps,
            notes=notes,
        )

    def _subject(self) -> Subject:
        asked, last = self._waits.asked, self._leases.last
        environment, _, rest = self._key.partition("|")
        return Subject(
            request_id=asked.get("request_id") or rest.partition("|")[2],
            request_key=self._key,
            lease_id=None if last is None else last.lease["lease_id"],
            environment=asked.get("environment") or environment,
            holder=asked.get("holder") or rest.partition("|")[0],
            asked_for=asked_for(asked),
            priority=asked.get("class"),
        )

    def _outcome(self) -> Outcome:
        lease, wait = self._leases.last, self._waits.last
        if lease is not None:
            if lease.ended is None:
                return "held" if lease.revoked is None else "revoked"
            match lease.ended.how:
                case "completed" | "cancelled" | "failed" | "expired" | "reaped" as how:
                    return how
            return "failed"
        if wait is not None:
            return "waiting" if wait.ended is None else "wait_ended"
        return "denied" if self._waits.denials else "waiting"

    def _summary(self, subject: Subject, outcome: Outcome) -> str:
        lease, wait = self._leases.last, self._waits.last
        what = f"{subject.request_id} asked for {subject.asked_for}"
        waited = None if wait is None else wait.waited_ms
        told = "" if waited is None else f", waited {seconds(waited)}"
        if lease is not None:
            there = "warm" if lease.lease["warm"] else "cold"
            got = f"{what}{told}, got {lease.lease['node_id']} ({there})"
            lost = sum(one.missed for one in lease.silences)
            beats = f", {lost} heartbeats missed" if lost else ""
            if lease.ended is None:
                return f"{got} and is {outcome}{beats}."
            return f"{got} and {was(outcome)} after {seconds(lease.ended.held_ms)}{beats}."
        if wait is not None and outcome == "wait_ended":
            how = {"timed_out": "until its time was over"}.get(
                str(wait.ended), f"until it was {wait.ended}"
            )
            return f"{what}{told}, {how}, and got nothing."
        if outcome == "denied":
            denials = self._waits.denials
            often = "" if len(denials) == 1 else f" {len(denials)} times, the last time"
            return f"{what} and was denied{often}: {denials[-1].reason}."
        return f"{what} and waits."
