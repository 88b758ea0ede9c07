"""What the log has of the test's requests: their grants, and how each ended. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aibs.eventstore.events import Event

How = Literal["completed", "cancelled", "failed", "expired", "reaped"]

_AGAIN = re.compile(r"-[0-9]{1,2}$")
"""A request that goes to another node gets a number behind its id."""


def base_of(request_id: str) -> str:
    """The id that all attempts of a request share."""
    return _AGAIN.sub("", request_id)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a lease, by the server's clock."""

    how: How
    at_ms: int
    held_ms: int


@dataclass(slots=True)
class Grant:
    """One lease of a request. `ends` has exactly one once it is over; `mishaps` are releases that
    came late or twice.
    """

    lease_id: str
    request_id: str
    node_id: str
    base_url: str
    model: str
    role: str | None
    at_ms: int
    queue_ms: int
    ends: list[End] = field(default_factory=list)
    mishaps: list[str] = field(default_factory=list)

    @property
    def how(self) -> How | Literal["active"]:
        """How it ended first, or that it has not."""
        return self.ends[0].how if self.ends else "active"


class Evidence:
    """The grants of the requests that `ours` accepts, in the order of the log.

    Feed it every event since before the first request was sent, in order and once each.
    """

    def __init__(self, ours: Callable[[Grant], bool]) -> None:
        self._ours = ours
        self._grants: dict[str, Grant] = {}
        self._handlers: dict[str, Callable[[Event, Grant], None]] = {
            "LeaseReleased": _released,
            "LeaseExpired": _expired,
            "LeaseReaped": _reaped,
            "LateRelease": _late,
            "DoubleRelease": _double,
        }

    def take(self, event: Event) -> None:
        """One event more."""
        if event.type == "LeaseAcquired":
            grant = _grant_of(event.data["lease"])
            if self._ours(grant):
                self._grants[grant.lease_id] = grant
            return
        handler = self._handlers.get(event.type)
        if handler is not None:
            grant_or_none = self._grants.get(event.data["lease_id"])
            if grant_or_none is not None:
                handler(event, grant_or_none)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Every grant."""
        return tuple(self._grants.values())

    def of(self, request_id: str) -> tuple[Grant, ...]:
        """The grants of one request and its further attempts."""
        base = base_of(request_id)
        return tuple(one for one in self.grants if base_of(one.request_id) == base)

    @property
    def settled(self) -> bool:
        """Whether every grant has an end."""
        return all(one.ends for one in self.grants)


def with_ids(request_ids: Iterable[str]) -> Callable[[Grant], bool]:
    """Accepts the grants of these requests."""
    bases = frozenset(map(base_of, request_ids))
    return lambda grant: base_of(grant.request_id) in bases


def wrong_with(grant: Grant) -> Iterator[str]:
    """What no lease may show, whatever became of its request."""
    name = f"lease {grant.lease_id}"
    if not grant.node_id or not grant.base_url:
        yield f"{name} does not tell its node and URL"
    if not grant.ends:
        yield f"{name} on {grant.node_id} has not ended"
    if len(grant.ends) > 1:
        yield f"{name} ended {len(grant.ends)} times: {', '.join(end.how for end in grant.ends)}"
    if grant.how in ("expired", "reaped"):
        yield f"{name} on {grant.node_id} was not given back: it was {grant.how}"
    yield from grant.mishaps


def _grant_of(lease: dict[str, Any]) -> Grant:
    return Grant(
        lease_id=lease["lease_id"],
        request_id=lease["request_id"],
        # Absent fields are what is to be judged, not a reason to give up.
        node_id=lease.get("node_id") or "",
        base_url=lease.get("base_url") or "",
        model=lease["model"],
        role=lease.get("role"),
        at_ms=lease["acquired_at_ms"],
        queue_ms=lease["queue_ms"],
    )


def _released(event: Event, grant: Grant) -> None:
    grant.ends.append(End(event.data["outcome"], event.at_ms, event.data["held_ms"]))


def _expired(event: Event, grant: Grant) -> None:
    grant.ends.append(End("expired", event.at_ms, event.data["held_ms"]))


def _reaped(event: Event, grant: Grant) -> None:
    grant.ends.append(End("reaped", event.at_ms, event.data["held_ms"]))


def _late(event: Event, grant: Grant) -> None:
    grant.mishaps.append(
        f"lease {grant.lease_id} was given back after it had {event.data['ended_by']}"
    )


def _double(_event: Event, grant: Grant) -> None:
    grant.mishaps.append(f"lease {grant.lease_id} was given back twice")
