"""What the model keeps: nodes, leases, waiters. Plain mutable values; times in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aibs.lanes import Lane
    from aibs.placement.values import Lease

RANKS = {"high": 0, "normal": 1, "low": 2}


@dataclass
class Resident:
    """An own model that a poll saw, or that a lease may have left behind (`maybe`). `expires_ms`
    None: no baseline to compare with.
    """

    charge: int
    since_ms: int
    expires_ms: int | None
    maybe: bool = False


@dataclass
class Hold:
    """A lease's hold on a node; `ended_ms` and `till_ms` while it drains."""

    key: str
    weight: int
    params: int
    ended_ms: int | None = None
    till_ms: int | None = None


@dataclass
class Trip:
    """A node closed after failures."""

    reopen_ms: int
    backoff_ms: int
    probe: str | None = None


@dataclass
class Reservation:
    """A node kept for a waiter; `since` are the leases that were granted beside it."""

    request_key: str
    key: str
    weight: int
    since: dict[str, tuple[str, int]] = field(default_factory=dict)


@dataclass
class NodeRecord:
    """All that a decision reads of one node."""

    node_id: str
    base_url: str
    budget: int | None = None
    slots: int | None = None
    observed_ms: int = 0
    epoch: int = 0
    of_fleet: bool = False
    foreign: int = 0
    unaccounted: bool = False
    healthy: bool | None = None
    loading: bool = False
    residents_known: bool = False
    own: dict[str, Resident] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    ended: dict[str, int] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    going: dict[str, tuple[str, int]] = field(default_factory=dict)
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    digests: dict[str, tuple[str | None, int | None]] = field(default_factory=dict)
    cordon_until_ms: int | None = None
    trip: Trip | None = None
    reserved: Reservation | None = None
    undeclared: bool = False

    @property
    def used(self) -> int:
        """Slots that leases and drains take."""
        return len(self.holds)

    @property
    def draining(self) -> int:
        """Slots that ended without a release."""
        return sum(hold.ended_ms is not None for hold in self.holds.values())

    @property
    def params(self) -> int:
        """Active parameters of its leases, in millions."""
        return sum(hold.params for hold in self.holds.values())

    def leased(self) -> dict[str, int]:
        """The weight of each leased model."""
        models: dict[str, int] = {}
        for hold in self.holds.values():
            models[hold.key] = max(models.get(hold.key, 0), hold.weight)
        return models

    def foreign_for(self, key: str | None) -> int:
        """What others hold, as charged to that model."""
        leased = self.leased()
        return self.foreign + sum(
            self.own[name].charge for name in self.busy if name != key and name not in leased
        )

    def free(self) -> int:
        """Bytes that no lease and nobody else takes."""
        return (self.budget or 0) - self.foreign_for(None) - sum(self.leased().values())

    def warm(self, key: str) -> bool:
        """Whether the model is there: leased, or resident and not about to go."""
        return key in self.leased() or self.resident(key)

    def resident(self, key: str) -> bool:
        """Whether the model was seen there, or its holder said that it is."""
        return key in self.own and not self.own[key].maybe and key not in self.going


@dataclass
class Waiter:
    """A request that waits, or asks now. `number` counts arrivals; `head_ms` is when it first stood
    first in its class; `tried` is the pool's count of freeings when it was last refused for want
    of room. `avoid` are nodes that it must not get.
    """

    request_key: str
    priority: str
    arrival_ms: int
    number: int
    lane: str
    lanes: tuple[Lane, ...] = ()
    environment: str = ""
    request_hash: str = ""
    wait_deadline_ms: int = 0
    head_ms: int | None = None
    tried: int = -1
    tried_ms: int = 0
    tried_reason: str = ""
    place_until_ms: int = 0
    avoid: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """0 high, 1 normal, 2 low."""
        return RANKS[self.priority]


@dataclass
class Tombstone:
    """What is remembered of a request that ended."""

    request_hash: str
    until_ms: int
    how: str
    lease_id: str = ""
    token: str = ""
    call_id: str = ""


@dataclass
class HeldLease:
    """A living lease."""

    lease: Lease
    request_hash: str
    params: int
    drain_ms: int
    deadline_ms: int
    heartbeat_ms: int | None = None
    revoked: dict[str, Any] | None = None
    loading: bool = False
