"""Leases and waits as the log tells them, and whether each grant's evidence adds up. Pure.

A lease is granted once and ends once; a grant leaves no node over what was declared then, and what
it says of leases and slots before and after it is what the events before it make.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aibs.eventstore.events import Event
    from aibs.projections.coordination import Coordination

UnsoundKind = Literal[
    "token",
    "lease_twice",
    "request_twice",
    "end_without_beginning",
    "ended_twice",
    "evidence",
    "recovering",
]

ENDED_MAX = 200_000
"""Ended leases that are remembered by their ids, to tell a second end from an unknown one."""


@dataclass(frozen=True, slots=True)
class Unsound:
    """Something that a working pool does not write. `detail` is a sentence."""

    kind: UnsoundKind
    detail: str


@dataclass(frozen=True, slots=True)
class _Held:
    node_id: str
    base_url: str
    key: str
    weight: int
    drain_ms: int
    token: str
    request_key: str
    ended_at_ms: int | None = None


class Holdings:
    """Feed it every readable event."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, Any]] | None = None
        self._fingerprint: str | None = None
        self._held: dict[str, _Held] = {}
        self._ended: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        self._waiters: set[str] = set()
        self._token = 0
        self._recovering = False
        self._unsure_nodes: set[str] = set()
        self._whole = True

    @classmethod
    def after(cls, start: Coordination | None) -> Self:
        """As a stored state left them. It knows nothing of slots that drained then."""
        found = cls()
        if start is None:
            return found
        if start.declared.document is not None:
            found._declare(start.declared.document, start.declared.fingerprint)
        for lease_id, lease in start.leases.live_part()["leases"].items():
            found._hold(lease_id, lease)
        found._waiters = set(start.queue.live_part()["waiters"])
        found._recovering = start.identity.state == "suspect"
        found._unsure_nodes = set(found._nodes or ())
        return found

    def late(self) -> None:
        """The log began after its beginning: what began before it may end in it."""
        self._whole = False

    def unsure(self, event: Event) -> None:
        """An event that could not be read may have changed what nodes hold."""
        node_id = event.data.get("node_id")
        lease = event.data.get("lease")
        if isinstance(lease, dict):
            node_id = lease.get("node_id", node_id)
        if isinstance(node_id, str):
            self._unsure_nodes.add(node_id)

    def feed(self, event: Event) -> Iterator[Unsound]:
        """What of this event is wrong."""
        data = event.data
        match event.type:
            case "FleetDeclared":
                self._declare(data["fleet"], data["fingerprint"])
            case "PoolSuspect":
                self._recovering = True
            case "PoolReopened":
                self._recovering = False
            case "LeaseAcquired":
                yield from self._granted(event)
            case "LeaseReleased":
                yield from self._end(event, "released", drains=False)
            case "LeaseExpired":
                yield from self._end(event, "expired", drains=True)
            case "LeaseReaped":
                yield from self._end(event, "reaped", drains=bool(data["drained"]))
            case "LeaseRevoked" | "ModelLoading" | "ModelLoaded" | "ModelUnloaded":
                yield from self._of_living(event)
            case "LateRelease" | "DoubleRelease":
                yield from self._too_late(event)
            case "LeaseQueued":
                yield from self._queued(data["waiter"]["request_key"])
            case "WaitEnded":
                yield from self._wait_ended(data["request_key"])

    # --- leases

    def _declare(self, document: dict[str, Any], fingerprint: str | None) -> None:
        self._nodes = {node["node_id"]: node for node in document["nodes"]}
        self._fingerprint = fingerprint

    def _hold(self, lease_id: str, lease: dict[str, Any]) -> None:
        self._held[lease_id] = _Held(
            lease["node_id"],
            lease["base_url"],
            lease["key"],
            lease["weight_bytes"],
            lease["drain_ms"],
            lease["token"],
            lease["request_key"],
        )
        self._requests[lease["request_key"]] = lease_id

    def _granted(self, event: Event) -> Iterator[Unsound]:
        lease, evidence = event.data["lease"], event.data["evidence"]
        lease_id = lease["lease_id"]
        held = self._held.get(lease_id)
        if (held is not None and held.ended_at_ms is None) or lease_id in self._ended:
            yield Unsound("lease_twice", f"The lease {lease_id} was granted before.")
        other = self._requests.get(lease["request_key"])
        if other is not None and other != lease_id:
            yield Unsound(
                "request_twice",
                f"The request {lease['request_key']} holds the lease {other}, and got {lease_id}.",
            )
        yield from self._token_of(event, lease["token"])
        if self._recovering:
            yield Unsound(
                "recovering", f"The lease {lease_id} was granted while the pool recovers."
            )
        for wrong in self._evidence(event.at_ms, lease, evidence):
            yield Unsound("evidence", f"The grant of {lease_id} does not add up: {wrong}.")
        self._hold(lease_id, lease)

    def _token_of(self, event: Event, token: str) -> Iterator[Unsound]:
        if event.token != token:
            yield Unsound("token", f"The grant has the token {event.token}, and its lease {token}.")
        if not token.isdigit() or int(token) <= self._token:
            yield Unsound(
                "token", f"The token {token} was given after {self._token}: tokens only grow."
            )
        else:
            self._token = int(token)

    def _evidence(
        self, at_ms: int, lease: dict[str, Any], evidence: dict[str, Any]
    ) -> Iterator[str]:
        node_id, weight = lease["node_id"], lease["weight_bytes"]
        yield from self._declared(lease, evidence)
        yield from _differ(
            "its stamp's age", evidence["stamp_age_ms"], at_ms - evidence["observed_at_ms"]
        )
        if evidence["stamp_age_ms"] < 0:
            yield "its stamp is from the future"
        yield from _differ("the weight", evidence["weight_bytes"], weight)
        charged = evidence["foreign_bytes"] + evidence["leased_after_bytes"]
        if charged > evidence["budget_bytes"]:
            yield f"{charged} bytes on {node_id}, whose budget is {evidence['budget_bytes']}"
        yield from _differ(
            "the slots after it", evidence["slots_used_after"], evidence["slots_used_before"] + 1
        )
        if evidence["slots_used_after"] > evidence["slots"]:
            yield f"{evidence['slots_used_after']} of {evidence['slots']} slots are used"
        if not self._whole:
            return
        wrong = list(self._sums(at_ms, lease, evidence))
        if node_id not in self._unsure_nodes:
            yield from wrong
        elif not wrong:
            self._unsure_nodes.discard(node_id)

    def _sums(self, at_ms: int, lease: dict[str, Any], evidence: dict[str, Any]) -> Iterator[str]:
        models: dict[str, int] = {}
        before = self._on(lease, at_ms, evidence["observed_at_ms"])
        for one in before:
            models[one.key] = max(models.get(one.key, 0), one.weight)
        yield from _differ("the slots before it", evidence["slots_used_before"], len(before))
        yield from _differ(
            "the bytes leased before it", evidence["leased_before_bytes"], sum(models.values())
        )
        models[lease["key"]] = max(models.get(lease["key"], 0), lease["weight_bytes"])
        yield from _differ(
            "the bytes leased after it", evidence["leased_after_bytes"], sum(models.values())
        )

    def _declared(self, lease: dict[str, Any], evidence: dict[str, Any]) -> Iterator[str]:
        if self._nodes is None:
            if self._whole:
                yield "no fleet was declared"
            return
        node = self._nodes.get(lease["node_id"])
        if node is None:
            yield f"{lease['node_id']} is no declared node"
            return
        yield from _differ("the node's URL", lease["base_url"], node["base_url"])
        yield from _differ("the budget", evidence["budget_bytes"], node["vram_budget_bytes"])
        yield from _differ("the slots", evidence["slots"], node["max_parallel_requests"])

    def _on(self, lease: dict[str, Any], at_ms: int, observed_at_ms: int) -> list[_Held]:
        """What takes room on the lease's node: living leases, and slots that still drain."""
        kept = []
        for lease_id, one in list(self._held.items()):
            if (one.node_id, one.base_url) != (lease["node_id"], lease["base_url"]):
                continue
            ended = one.ended_at_ms
            if ended is not None and observed_at_ms > ended and at_ms >= ended + one.drain_ms:
                del self._held[lease_id]
                continue
            kept.append(one)
        return kept

    def _end(self, event: Event, how: str, *, drains: bool) -> Iterator[Unsound]:
        lease_id = event.data["lease_id"]
        held = self._held.get(lease_id)
        if held is None or held.ended_at_ms is not None:
            if lease_id in self._ended:
                yield Unsound(
                    "ended_twice",
                    f"The lease {lease_id} is {how}, and was {self._ended[lease_id]}.",
                )
            elif self._whole:
                yield Unsound(
                    "end_without_beginning", f"The lease {lease_id} is {how}, and was not granted."
                )
            return
        yield from _same_token(event, lease_id, held)
        if drains:
            self._held[lease_id] = replace(held, ended_at_ms=event.at_ms)
        else:
            del self._held[lease_id]
        self._requests.pop(held.request_key, None)
        self._ended[lease_id] = how
        if len(self._ended) > ENDED_MAX:
            for old in list(self._ended)[: ENDED_MAX // 2]:
                del self._ended[old]

    def _of_living(self, event: Event) -> Iterator[Unsound]:
        lease_id = event.data["lease_id"]
        held = self._held.get(lease_id)
        if held is not None and held.ended_at_ms is None:
            yield from _same_token(event, lease_id, held)
        elif self._whole:
            yield Unsound(
                "end_without_beginning",
                f"A {event.type} tells of the lease {lease_id}, which is not held.",
            )

    def _too_late(self, event: Event) -> Iterator[Unsound]:
        """A release after the end: of a lease that was granted once."""
        lease_id = event.data["lease_id"]
        if event.token != event.data["token"]:
            yield Unsound(
                "token",
                f"The {event.type} of {lease_id} has the token {event.token}, and tells of "
                f"{event.data['token']}.",
            )
        if self._whole and lease_id not in self._ended and lease_id not in self._held:
            yield Unsound(
                "end_without_beginning",
                f"A {event.type} tells of the lease {lease_id}, which was not granted.",
            )

    # --- waits

    def _queued(self, request_key: str) -> Iterator[Unsound]:
        if request_key in self._waiters:
            yield Unsound("request_twice", f"The request {request_key} waits already.")
        self._waiters.add(request_key)

    def _wait_ended(self, request_key: str) -> Iterator[Unsound]:
        if request_key not in self._waiters and self._whole:
            yield Unsound(
                "end_without_beginning", f"The wait of {request_key} ended, and had not begun."
            )
        self._waiters.discard(request_key)


def _same_token(event: Event, lease_id: str, held: _Held) -> Iterator[Unsound]:
    if event.token != held.token:
        yield Unsound(
            "token",
            f"The {event.type} of {lease_id} has the token {event.token}, and the lease "
            f"{held.token}.",
        )


def _differ(what: str, told: object, found: object) -> Iterator[str]:
    if told != found:
        yield f"{what} is told as {told}, and the log makes it {found}"
