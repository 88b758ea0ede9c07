"""What became of placed requests: leases from grant to end."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from aibs.eventstore.events.envelope import EventData


class LeaseDocument(BaseModel):
    """A lease as it is stored from its grant to its end. Sizes in bytes, times in milliseconds;
    `params` counts millions of active parameters; `unload_first` has comparison keys.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    lease_id: str
    token: str
    request_key: str
    request_id: str
    request_hash: str
    call_id: str
    environment: str
    holder: str
    requester: str
    model: str
    key: str
    worker_id: str
    role: str | None
    node_id: str
    base_url: str
    weight_bytes: int
    params: int
    ttl_ms: int
    drain_ms: int
    acquired_at_ms: int
    probe: bool
    warm: bool
    unload_first: list[str]
    queue_ms: int


class Evidence(BaseModel):
    """What a grant relied on. `foreign_bytes` is what the node's others hold, as charged to this
    model; `passed` names waiters that stood before it.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    stamp_age_ms: int
    observed_at_ms: int
    stamp_fence: int
    stamp_seq: int
    budget_bytes: int
    foreign_bytes: int
    leased_before_bytes: int
    leased_after_bytes: int
    slots: int
    slots_used_before: int
    slots_used_after: int
    weight_bytes: int
    weight_source: str
    fingerprint: str
    nodes_tried: int
    passed: list[str]


class LeaseAcquired(EventData):
    """A request got a node. `next` names waiters that may look again."""

    TYPE: ClassVar[str] = "LeaseAcquired"

    lease: LeaseDocument
    deadline_ms: int
    evidence: Evidence
    next: list[str] = Field(default_factory=list)


class NodeRefusal(BaseModel):
    """Why one node did not take a request."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    node_id: str
    reason: str
    missing_bytes: int | None = None
    wait_ms: int | None = None
    why: str | None = None


class LeaseDenied(EventData):
    """A request that did not wait was refused. Equal ones that follow are counted, not repeated.
    `others` counts the nodes beyond those listed, by reason.
    """

    TYPE: ClassVar[str] = "LeaseDenied"

    environment: str
    requester: str
    request_id: str
    lane: str
    reason: str
    reasons: list[NodeRefusal]
    others: dict[str, int]


class DenialsCounted(EventData):
    """So many equal denials followed the one that was logged at `since_ms`."""

    TYPE: ClassVar[str] = "DenialsCounted"

    environment: str
    lane: str
    reason: str
    count: int
    since_ms: int


class LeasesRenewed(EventData):
    """A heartbeat renewed leases: `deadlines` in the order of `leases`."""

    TYPE: ClassVar[str] = "LeasesRenewed"

    holder: str
    leases: list[str]
    deadlines: list[int]


class ModelLoading(EventData):
    """A lease's holder begins to load its model; the node may not answer polls meanwhile."""

    TYPE: ClassVar[str] = "ModelLoading"

    lease_id: str
    node_id: str
    model: str
    ms: int
    outcome: str


class ModelLoaded(EventData):
    """The load ended after `ms`: outcome ok or failed."""

    TYPE: ClassVar[str] = "ModelLoaded"

    lease_id: str
    node_id: str
    model: str
    ms: int
    outcome: str


class ModelUnloaded(EventData):
    """A model that the grant named was unloaded to make room: outcome ok or failed."""

    TYPE: ClassVar[str] = "ModelUnloaded"

    lease_id: str
    node_id: str
    model: str
    ms: int
    outcome: str


class LeaseReleased(EventData):
    """The holder gave the lease back: completed, cancelled or failed."""

    TYPE: ClassVar[str] = "LeaseReleased"

    lease_id: str
    node_id: str
    request_key: str
    outcome: str
    held_ms: int
    call_id: str
    next: list[str] = Field(default_factory=list)


class LeaseExpired(EventData):
    """The lease's deadline passed without a renewal; its slot drains."""

    TYPE: ClassVar[str] = "LeaseExpired"

    lease_id: str
    node_id: str
    request_key: str
    held_ms: int
    deadline_ms: int


class LeaseRevoked(EventData):
    """An operator took the lease back: its holder learns it by `due_ms`, or it is reaped then."""

    TYPE: ClassVar[str] = "LeaseRevoked"

    lease_id: str
    node_id: str
    why: str
    by: str
    due_ms: int


class LeaseReaped(EventData):
    """A revoked lease, or a dead holder's, ended. Not `drained`: its holder had released it."""

    TYPE: ClassVar[str] = "LeaseReaped"

    lease_id: str
    node_id: str
    request_key: str
    held_ms: int
    why: str
    by: str
    drained: bool


class LateRelease(EventData):
    """A lease was given back after it had ended as `ended_by`: expired, reaped or revoked."""

    TYPE: ClassVar[str] = "LateRelease"

    lease_id: str
    token: str
    node_id: str | None
    ended_by: str
    outcome: str


class DoubleRelease(EventData):
    """Another call gave back a lease that had been given back."""

    TYPE: ClassVar[str] = "DoubleRelease"

    lease_id: str
    token: str
    node_id: str | None
    first_call_id: str
    call_id: str


class LeakAcknowledged(EventData):
    """An operator knows of these leaks: they no longer fail the check."""

    TYPE: ClassVar[str] = "LeakAcknowledged"

    leases: list[str]
    by: str
