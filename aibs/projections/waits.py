"""The queue with its past: who waits now, and how the newest `ENDED_MAX` waits ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.projections.engine import Fold
from aibs.projections.queue import Queue

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler

ENDED_MAX = 1024


@dataclass(frozen=True, slots=True)
class EndedWait:
    """A wait that is over. `how`: granted, cancelled, forgotten, timed_out, refused."""

    at_ms: int
    request_key: str
    lane: str
    priority: str
    environment: str
    reason: str
    how: str
    waited_ms: int

    def as_json(self) -> list[Any]:
        """As a list of its fields, in their order."""
        return [getattr(self, name) for name in self.__slots__]


class Waits(Fold):
    """`queue` is the queue now; `ended` lists waits, oldest first; `counts` has all of them."""

    name = "queue"
    version = 1

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.ended: deque[EndedWait] = deque(maxlen=ENDED_MAX)
        self.counts: dict[str, int] = {}

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        told = self.queue.handlers()
        end = told["WaitEnded"]

        def wait_ended(event: Event, data: dict[str, Any]) -> None:
            self._note(event, data)
            end(event, data)

        return {**told, "WaitEnded": wait_ended}

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "queue": self.queue.document(),
            "ended": [one.as_json() for one in self.ended],
            "counts": dict(self.counts),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become what was written as this."""
        self.queue.restore(state["queue"])
        self.ended.extend(EndedWait(*one) for one in state["ended"])
        self.counts = state["counts"]

    def _note(self, event: Event, data: dict[str, Any]) -> None:
        waiter = self.queue.waiters.get(data["request_key"])
        how = data["how"]
        self.counts[how] = self.counts.get(how, 0) + 1
        if waiter is None:
            return
        stored = waiter.document
        self.ended.append(
            EndedWait(
                event.at_ms,
                data["request_key"],
                stored["lane"],
                stored["class"],
                stored["environment"],
                waiter.reason,
                how,
                data["waited_ms"],
            )
        )
