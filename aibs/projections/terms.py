"""The terms of office: who held which, how it ended, the gaps between, and refused writes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.projections.engine import Fold

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler

TERMS_MAX = 512
REJECTIONS_MAX = 512


@dataclass(slots=True)
class PastTerm:
    """A term. `ended_at_ms` is when the log says that it was over: for an expired one its last
    deadline, which may lie before the event that found it.
    """

    owner: str
    fence: int
    elected_at_ms: int
    because: str
    ended_at_ms: int | None = None
    how: str | None = None

    def as_json(self) -> list[Any]:
        """As a list of its fields, in their order."""
        return [getattr(self, name) for name in self.__slots__]


@dataclass(frozen=True, slots=True)
class RejectedWrite:
    """A write under a fence that was not the living term's; `repeats` came before it uncounted."""

    at_ms: int
    script: str
    owner: str
    fence: int
    current_fence: int
    repeats: int

    def as_json(self) -> list[Any]:
        """As a list of its fields, in their order."""
        return [getattr(self, name) for name in self.__slots__]


class Terms(Fold):
    """The newest terms and refused writes, oldest first, and how many there were in all."""

    name = "ownership"
    version = 1

    def __init__(self) -> None:
        super().__init__()
        self.terms: deque[PastTerm] = deque(maxlen=TERMS_MAX)
        self.rejected: deque[RejectedWrite] = deque(maxlen=REJECTIONS_MAX)
        self.elections = 0
        self.rejected_writes = 0

    def gaps(self) -> tuple[tuple[int, int], ...]:
        """When nobody held the term: (from, until) in milliseconds, the last one open at 0."""
        found = []
        terms = list(self.terms)
        for number, term in enumerate(terms):
            if term.ended_at_ms is None:
                continue
            later = terms[number + 1].elected_at_ms if number + 1 < len(terms) else 0
            if later == 0 or later > term.ended_at_ms:
                found.append((term.ended_at_ms, later))
        return tuple(found)

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "OwnerElected": self._elected,
            "OwnerResigned": self._resigned,
            "OwnerExpired": self._expired,
            "FencedWriteRejected": self._rejected,
        }

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "terms": [term.as_json() for term in self.terms],
            "rejected": [one.as_json() for one in self.rejected],
            "elections": self.elections,
            "rejected_writes": self.rejected_writes,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become what was written as this."""
        self.terms.extend(PastTerm(*one) for one in state["terms"])
        self.rejected.extend(RejectedWrite(*one) for one in state["rejected"])
        self.elections, self.rejected_writes = state["elections"], state["rejected_writes"]

    def _elected(self, event: Event, data: dict[str, Any]) -> None:
        self.elections += 1
        self.terms.append(PastTerm(data["owner"], data["fence"], event.at_ms, data["because"]))

    def _end(self, data: dict[str, Any], at_ms: int) -> None:
        if self.terms and self.terms[-1].fence == data["fence"]:
            self.terms[-1].ended_at_ms, self.terms[-1].how = at_ms, data["how"]

    def _resigned(self, event: Event, data: dict[str, Any]) -> None:
        self._end(data, event.at_ms)

    def _expired(self, event: Event, data: dict[str, Any]) -> None:
        self._end(data, min(event.at_ms, data["deadline_ms"]))

    def _rejected(self, event: Event, data: dict[str, Any]) -> None:
        self.rejected_writes += 1 + data["repeats"]
        self.rejected.append(
            RejectedWrite(
                event.at_ms,
                data["script"],
                data["owner"],
                data["fence"],
                data["current_fence"],
                data["repeats"],
            )
        )
