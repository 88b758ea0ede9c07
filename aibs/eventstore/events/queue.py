"""Who waited for a node, why, behind what, and how the waiting ended."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from aibs.eventstore.events.envelope import EventData
from aibs.eventstore.events.leases import NodeRefusal  # noqa: TC001 - pydantic reads it


class WaiterLane(BaseModel):
    """A worker that may serve a waiter."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    worker_id: str
    key: str


class WaiterDocument(BaseModel):
    """A waiter as it is stored while it waits. `number` is its place in the order of arrival;
    `avoid` are nodes that it must not get.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    request_key: str
    request_id: str
    request_hash: str
    environment: str
    holder: str
    requester: str
    role: str | None
    lane: str
    member: str
    number: int
    arrival_ms: int
    wait_deadline_ms: int
    ttl_ms: int
    model: str
    lanes: list[WaiterLane]
    avoid: list[str] = Field(default_factory=list)


class LeaseQueued(EventData):
    """A request waits: the nearest reason, and each node's at that moment."""

    TYPE: ClassVar[str] = "LeaseQueued"

    waiter: WaiterDocument
    reason: str
    reasons: list[NodeRefusal]
    others: dict[str, int]


class WaitEnded(EventData):
    """A wait ended: granted, cancelled, forgotten (its process fell silent), timed_out, refused."""

    TYPE: ClassVar[str] = "WaitEnded"

    request_key: str
    how: str
    waited_ms: int


class NodeReserved(EventData):
    """A node is kept for a waiter that has the memory nowhere now: younger requests take from it
    only what fits beside.
    """

    TYPE: ClassVar[str] = "NodeReserved"

    node_id: str
    request_key: str
    why: str
    weight_bytes: int


class ReservationEnded(EventData):
    """A reservation ended: granted, wait_ended, node_ineligible."""

    TYPE: ClassVar[str] = "ReservationEnded"

    node_id: str
    request_key: str
    how: str
    next: list[str] = Field(default_factory=list)
