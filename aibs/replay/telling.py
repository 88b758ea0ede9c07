"""The steps of a story, in the order in which they are told. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.codec import rfc3339
from aibs.replay.lines import safe
from aibs.replay.story import Step

if TYPE_CHECKING:
    from aibs.eventstore.events import Event


class Telling:
    """One story, whoever tells a part of it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def step(self, event: Event, text: str) -> None:
        """One more sentence, about an event."""
        self.steps.append(
            Step(event_id=event.id, at=rfc3339(event.at_ms), seq=event.seq, text=safe(text))
        )

    def forget(self) -> None:
        """What was told is of another story."""
        self.steps = []
