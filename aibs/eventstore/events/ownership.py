"""Who was the elected monitor, under which fence, and who tried to write after their term."""

from __future__ import annotations

from typing import ClassVar

from aibs.eventstore.events.envelope import EventData


class OwnerElected(EventData):
    """A term began. `because` is vacant, or how the term before ended: resigned, expired,
    pool_suspect. `deadline_ms` is its first deadline by the server's clock.
    """

    TYPE: ClassVar[str] = "OwnerElected"

    owner: str
    fence: int
    ttl_ms: int
    deadline_ms: int
    follows: str | None
    follows_fence: int | None
    because: str


class OwnerResigned(EventData):
    """The owner gave its term back."""

    TYPE: ClassVar[str] = "OwnerResigned"

    owner: str
    fence: int
    deadline_ms: int
    how: str


class OwnerExpired(EventData):
    """A term was found over: its deadline passed (expired), or the pool became suspect."""

    TYPE: ClassVar[str] = "OwnerExpired"

    owner: str
    fence: int
    deadline_ms: int
    how: str


class FencedWriteRejected(EventData):
    """A write under a fence that is not the living term's was refused. `repeats` counts the
    refusals of the same writer and script that came after the previous such event.
    """

    TYPE: ClassVar[str] = "FencedWriteRejected"

    script: str
    owner: str
    fence: int
    current_owner: str
    current_fence: int
    repeats: int


class ClockStepped(EventData):
    """The server's clock moved by `delta_ms` against the owner's, which counts suspended time."""

    TYPE: ClassVar[str] = "ClockStepped"

    delta_ms: int
