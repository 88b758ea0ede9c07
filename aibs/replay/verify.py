"""Whether a log can be what a working pool wrote. Pure: feed it every item in order.

It knows nothing of the scripts and shares nothing with the folds: numbers, IDs, fences and leases
are followed from the raw events, so that a fault of the folds is not a fault of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from aibs.eventstore.events import Unreadable, decode
from aibs.replay.entries import Damaged, Oversized, event_of, order
from aibs.replay.holdings import Holdings
from aibs.replay.terms import Terms
from aibs.reports.part import Part, Timestamp, schema_of

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.coordination import Coordination
    from aibs.replay.entries import Item

SCHEMA: Final = "aibs.replay.verify/1"

PROBLEMS_MAX = 1000
"""A log that is wrong throughout is told to be so after this many."""

Kind = Literal[
    "damaged",
    "oversized",
    "unknown_type",
    "newer_version",
    "invalid_data",
    "hole",
    "repeat",
    "order",
    "id_order",
    "fence",
    "token",
    "lease_twice",
    "request_twice",
    "end_without_beginning",
    "ended_twice",
    "evidence",
    "recovering",
    "truncated",
    "live_differs",
    "more",
]


class Problem(Part):
    """One thing that is wrong. `id` is the event's, null where it has none."""

    id: str | None
    kind: Kind
    detail: str


class VerifyDocument(Part):
    """The whole answer."""

    schema_: Literal["aibs.replay.verify/1"] = Field(SCHEMA, alias="schema")
    generated_at: Timestamp
    ok: bool
    events: int
    first_id: str | None
    last_id: str | None
    snapshot_id: str | None
    """The event after which the reading began with a stored state."""
    truncated: bool
    """Whether the log begins after its beginning, or the file ends before its end."""
    compared_with_live_state: bool
    problems: list[Problem]


class Verifier:
    """Follows one log. `problems` is complete after the last `feed`."""

    def __init__(self, start: Coordination | None = None) -> None:
        self.problems: list[Problem] = []
        self.events = 0
        self.first_id: str | None = None
        self.last_id: str | None = None
        self.begins_late = False
        self._more = 0
        self._seq: int | None = None if start is None else start.seq
        self._order = order("0-0" if start is None else start.last_id)
        self._numbers: dict[int, str] = {}
        self._terms = Terms.after(start)
        self._holdings = Holdings.after(start)

    def feed(self, item: Item) -> None:
        """One more item."""
        self.events += 1
        if item.id is not None:
            self.first_id = self.first_id or item.id
            self._check_id(item.id)
            self.last_id = item.id
        event = event_of(item)
        if event is None:
            assert isinstance(item, Damaged)
            self.tell(item.id, "damaged", f"The entry {item.why}.")
            # Its number is unknown: the next event's is not held against the log.
            if self._seq is not None:
                self._seq += 1
            return
        if isinstance(item, Oversized):
            self.tell(event.id, "oversized", "The event is larger than 1 MiB: none of ours is.")
        self._check_seq(event)
        data = decode(event)
        if isinstance(data, Unreadable):
            kind: Kind = "invalid_data"
            if data.why == "unknown_type":
                kind = "unknown_type"
            elif data.why == "newer_version":
                kind = "newer_version"
            self.tell(event.id, kind, f"Number {event.seq} cannot be read: {data.detail}.")
            self._holdings.unsure(event)
            return
        if event.type == "PoolCreated":
            self._terms, self._holdings = Terms(), Holdings()
        for found in self._terms.feed(event):
            self.tell(event.id, "fence", found)
        try:
            unsound = list(self._holdings.feed(event))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # The fleet's own document is read here alone, and may lack anything.
            self.tell(
                event.id,
                "invalid_data",
                f"Number {event.seq} cannot be read: {type(error).__name__} {error}.",
            )
            return
        for one in unsound:
            self.tell(event.id, one.kind, one.detail)

    def tell(self, event_id: str | None, kind: Kind, detail: str) -> None:
        """Note a problem."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(id=event_id, kind=kind, detail=detail))
        else:
            self._more += 1

    def all_problems(self) -> list[Problem]:
        """Every problem, and how many more there are."""
        if not self._more:
            return self.problems
        more = Problem(id=None, kind="more", detail=f"And {self._more} more problems.")
        return [*self.problems, more]

    def _check_id(self, entry_id: str) -> None:
        here = order(entry_id)
        if here <= self._order and self._order != (0, 0):
            self.tell(
                entry_id, "id_order", f"The ID stands after {self.last_id}, which is not below it."
            )
        self._order = max(here, self._order)

    def _check_seq(self, event: Event) -> None:
        last, seq = self._seq, event.seq
        if last is None:
            self.begins_late = seq != 1 and event.type != "PoolCreated"
            if self.begins_late:
                self._terms.late()
                self._holdings.late()
        elif event.type != "PoolCreated" and seq != last + 1:
            self._wrong_seq(event, last)
        if last is None or seq > last or event.type == "PoolCreated":
            self._seq = seq
        self._remember(event)

    def _wrong_seq(self, event: Event, last: int) -> None:
        seq = event.seq
        if seq > last + 1:
            missing = f"number {last + 1} is" if seq == last + 2 else f"{last + 1} to {seq - 1} are"
            self.tell(event.id, "hole", f"Before number {seq} {missing} missing.")
        elif seq in self._numbers:
            self.tell(
                event.id, "repeat", f"Number {seq} stands twice; it was {self._numbers[seq]}'s."
            )
        else:
            self.tell(event.id, "order", f"Number {seq} stands after number {last}.")

    def _remember(self, event: Event) -> None:
        self._numbers[event.seq] = event.id
        if len(self._numbers) > 4096:
            for number in list(self._numbers)[:2048]:
                del self._numbers[number]


def json_schema() -> dict[str, Any]:
    """Its JSON Schema."""
    return schema_of(VerifyDocument, SCHEMA)
