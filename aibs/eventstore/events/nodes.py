"""What operators and failures made of nodes, and which processes hold leases."""

from __future__ import annotations

from typing import ClassVar

from aibs.eventstore.events.envelope import EventData


class NodeCordoned(EventData):
    """A node takes no new leases by an operator's word; `until_ms` null: until further notice."""

    TYPE: ClassVar[str] = "NodeCordoned"

    node_id: str
    why: str
    by: str
    until_ms: int | None


class NodeUncordoned(EventData):
    """An operator opened the node again."""

    TYPE: ClassVar[str] = "NodeUncordoned"

    node_id: str
    by: str


class NodeTripped(EventData):
    """A node's answers failed: closed until `reopen_at_ms`, then one lease tries it."""

    TYPE: ClassVar[str] = "NodeTripped"

    node_id: str
    why: str
    by: str
    reopen_at_ms: int
    backoff_ms: int


class NodeRestored(EventData):
    """The lease that tried a tripped node completed."""

    TYPE: ClassVar[str] = "NodeRestored"

    node_id: str
    by: str


class WeightsForgotten(EventData):
    """What models were seen to weigh on a node counts no more."""

    TYPE: ClassVar[str] = "WeightsForgotten"

    node_id: str
    by: str
    keys: list[str]


class SessionOpened(EventData):
    """A process that holds leases made itself known."""

    TYPE: ClassVar[str] = "SessionOpened"

    holder: str
    environment: str
    host: str
    boot_id: str
    pid: int
    pid_start: int


class SessionEnded(EventData):
    """A holder is gone; its leases were reaped before."""

    TYPE: ClassVar[str] = "SessionEnded"

    holder: str
    why: str


class WarmupMeasured(EventData):
    """What an operator's warm-up saw resident. `ms`: how long the load took, None where the model
    was resident already.
    """

    TYPE: ClassVar[str] = "WarmupMeasured"

    worker_id: str
    model: str
    node_id: str
    size_bytes: int
    size_vram_bytes: int | None
    context_length: int | None
    ms: int | None
    by: str
