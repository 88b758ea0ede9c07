"""How a request asked and waited: denials, its places in the queue, nodes kept for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aibs.codec import rfc3339
from aibs.placement.wording import gb, seconds
from aibs.replay.story import Ahead, Denial, Meanwhile, Reserved, Wait
from aibs.replay.story_wording import clauses, whys

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.queue import Queue, Waiter
    from aibs.replay.telling import Telling

SHOWN_MAX = 8


@dataclass
class WaitSoFar:
    """A wait that goes on."""

    event: Event
    position: int
    behind: list[Ahead]
    meanwhile: list[Meanwhile] = field(default_factory=list)
    reserved: list[Reserved] = field(default_factory=list)
    ended: str | None = None
    ended_at_ms: int | None = None
    waited_ms: int | None = None


class WaitChapter:
    """Told of one request's events alone. `asked` is what it asks for, by its newest event."""

    def __init__(self, request_key: str, swap_max_ms: int, telling: Telling) -> None:
        self._key, self._swap_max_ms, self._telling = request_key, swap_max_ms, telling
        self.denials: list[Denial] = []
        self.asked: dict[str, Any] = {}
        self._waits: list[WaitSoFar] = []

    def forget(self) -> None:
        """What was told is another request's, of the same id."""
        self.denials, self._waits = [], []

    @property
    def last(self) -> WaitSoFar | None:
        """Its newest wait, that goes on or is over."""
        return self._waits[-1] if self._waits else None

    def documents(self) -> list[Wait]:
        """Every wait."""
        return [_document(one) for one in self._waits]

    def queued(self, event: Event, queue: Queue) -> None:
        """The request is in the queue now."""
        data, waiter = event.data, event.data["waiter"]
        self.asked = waiter
        order = queue.in_order(event.at_ms, self._swap_max_ms)
        place = next(
            (n for n, one in enumerate(order) if one.document["request_key"] == self._key),
            len(order),
        )
        wait = WaitSoFar(
            event, place + 1, [self._ahead(one, event.at_ms, waiter) for one in order[:place]]
        )
        self._waits.append(wait)
        names = ", ".join(
            f"{one.request_id} ({one.model}, {one.why})" for one in wait.behind[:SHOWN_MAX]
        )
        more = len(wait.behind) - SHOWN_MAX
        place_told = f"waits at place {place + 1}" + (
            f" behind {names}" + (f" and {more} more" if more > 0 else "") if names else ""
        )
        self._telling.step(event, f"{place_told}: {clauses(data)}")

    def _ahead(self, one: Waiter, at_ms: int, mine: dict[str, Any]) -> Ahead:
        document = one.document
        rank = one.rank(at_ms, self._swap_max_ms)
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

    def denied(self, event: Event) -> None:
        """It was refused, and did not wait."""
        data = event.data
        if f"{data['environment']}|{data['requester']}|{data['request_id']}" != self._key:
            return
        self.asked = self.asked or {
            **data,
            "request_key": self._key,
            "holder": data["requester"],
        }
        self.denials.append(
            Denial(
                event_id=event.id,
                at=rfc3339(event.at_ms),
                reason=data["reason"],
                nodes=whys(data["reasons"]),
                others=data["others"],
            )
        )
        self._telling.step(event, f"denied, {data['reason']}: {clauses(data)}")

    def _waiting(self) -> WaitSoFar | None:
        return self._waits[-1] if self._waits and self._waits[-1].ended is None else None

    def ended(self, event: Event) -> None:
        """It waits no longer."""
        data, wait = event.data, self._waiting()
        if wait is not None:
            wait.ended, wait.ended_at_ms = data["how"], event.at_ms
            wait.waited_ms = data["waited_ms"]
        ended = {"timed_out": "timed out", "granted": "granted"}.get(data["how"], data["how"])
        self._telling.step(event, f"the wait ends after {seconds(data['waited_ms'])}: {ended}")

    def reserved(self, event: Event) -> None:
        """A node is kept for it."""
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
        self._telling.step(event, f"{data['node_id']} is kept for it, {gb(data['weight_bytes'])}")

    def reservation_ended(self, event: Event) -> None:
        """A node is kept for it no longer."""
        data = event.data
        for wait in self._waits[-1:]:
            wait.reserved = [
                one.model_copy(update={"ended": data["how"], "ended_at": rfc3339(event.at_ms)})
                if one.ended is None and one.node_id == data["node_id"]
                else one
                for one in wait.reserved
            ]
        how = str(data["how"]).replace("_", " ")
        self._telling.step(event, f"{data['node_id']} is kept for it no longer: {how}")

    def meanwhile(self, event: Event) -> None:
        """Another request got a lease."""
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
        self._telling.step(
            event,
            f"meanwhile {lease['request_id']} {how}: {lease['model']} on {lease['node_id']}",
        )


def _document(one: WaitSoFar) -> Wait:
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
