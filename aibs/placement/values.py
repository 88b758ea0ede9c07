"""What placement speaks of: a request, a lease, and the answers to every call. Values only.

Times are milliseconds. `*_at_ms` and `*deadline_ms` are the coordinating clock's (the server's
TIME, or the memory back end's clock); `remaining_ms` counts from the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Class = Literal["high", "normal", "low"]
Outcome = Literal["completed", "cancelled", "failed"]
ReportKind = Literal["loading", "loaded", "unloaded"]

REQUEST_ID_BYTES_MAX = 128
AVOID_MAX = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that decisions take from their caller."""

    staleness_ms: int
    grace_ms: int
    drain_ms: int
    swap_min_ms: int
    swap_max_ms: int
    queue_max: int
    heartbeat_ms: int


# Not frozen as the others are: each request of the gateway would pay for it. Nobody changes it.
@dataclass(slots=True)
class Request:
    """One request for a node. `lane` names what it asks for: `m|<key>`, `r|<role>` or
    `mr|<key>|<role>`. `requester` is the API key's name, or the holder. The same `request_key`
    with the same `request_hash` is the same request; with another, a conflict. `avoid` are nodes
    that it must not get: of this attempt alone, and no part of what the request is.
    """

    request_id: str
    environment: str
    holder: str
    requester: str
    lane: str
    role: str | None
    model: str | None
    priority: Class
    ttl_ms: int
    wait_ms: int
    request_hash: str
    avoid: tuple[str, ...] = ()

    @property
    def request_key(self) -> str:
        return f"{self.environment}|{self.requester}|{self.request_id}"


# As Request.
@dataclass(slots=True)
class Lease:
    """A grant. `token` grows from grant to grant; `document` is the stored lease, whole."""

    lease_id: str
    token: str
    request_key: str
    request_id: str
    environment: str
    holder: str
    model: str
    key: str
    worker_id: str
    role: str | None
    node_id: str
    base_url: str
    weight_bytes: int
    ttl_ms: int
    acquired_at_ms: int
    deadline_ms: int
    warm: bool
    probe: bool
    unload_first: tuple[str, ...]
    queue_ms: int
    document: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class NodeReason:
    """Why one node did not take the request. `missing_bytes` and `wait_ms` where they apply."""

    node_id: str
    reason: str
    missing_bytes: int | None = None
    wait_ms: int | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """The request has a lease. `remaining_ms` until its deadline, from `now_ms`."""

    lease: Lease
    now_ms: int
    remaining_ms: int


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits. `position` counts from 1; `nodes` has at most 16, `others` counts the
    rest by reason.
    """

    now_ms: int
    position: int
    reason: str
    nodes: tuple[NodeReason, ...]
    others: dict[str, int]
    wait_deadline_ms: int
    no_owner: bool = False


@dataclass(frozen=True, slots=True)
class Denied:
    """The request has no lease and does not wait. `reason` is a code of the protocol's list."""

    reason: str
    nodes: tuple[NodeReason, ...] = ()
    others: dict[str, int] = field(default_factory=dict)
    retry_after_ms: int | None = None
    detail: str | None = None
    no_owner: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat's answer for one lease: ok with its new `deadline_ms`, or why it is over:
    revoked, expired, unknown.
    """

    lease_id: str
    word: Literal["ok", "revoked", "expired", "unknown"]
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """What became of a release: ok, duplicate (this call was done before), late (`ended_by` had
    ended the lease), double (another call released it), unknown (no such lease is remembered).
    """

    word: Literal["ok", "duplicate", "late", "double", "unknown"]
    held_ms: int | None = None
    ended_by: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A waiter's standing: queued with its `position`, leased, ended (with `how`), unknown."""

    request_key: str
    word: Literal["queued", "leased", "ended", "unknown"]
    position: int | None = None
    how: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Who a holder is: a process on a host, told apart from its successors."""

    holder: str
    environment: str
    host: str
    boot_id: str
    pid: int
    pid_start: int
