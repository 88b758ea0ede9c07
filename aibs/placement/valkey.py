"""The Valkey back end: each call is one script, decided by the server under its own clock.

Most requests find nobody waiting and a node that takes them: `admit` and `leave` are the short
scripts for those. Whenever it is not that simple they answer `ask`, having changed nothing, and the
full script decides.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, cast

from aibs.codec import dumps, loads
from aibs.errors import AibsError, UnexpectedReply
from aibs.eventstore.placement_state import PlacementState
from aibs.placement.session import dead_among
from aibs.placement.values import (
    Beat,
    Denied,
    Granted,
    Lease,
    NodeReason,
    Place,
    Queued,
    Released,
    Session,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aibs.clock import Clock
    from aibs.eventstore.commands import Commands
    from aibs.eventstore.log import Log
    from aibs.eventstore.pool import CoordinationPool
    from aibs.eventstore.replies import Answer
    from aibs.placement.values import Limits, Outcome, ReportKind, Request

FOLLOW_BLOCK_MS = 1000
PAUSE_AFTER_ERROR_S = 0.2

REAPED_A_CALL = 64
"""So many leases of the dead a call ends at most: a call that ended as many may have left some."""


class ValkeyBackend:
    """A placer's hands on a pool. `follower` reads the log for wake-ups, on a client of its own.

    `clients` are closed with it.
    """

    def __init__(
        self,
        pool: CoordinationPool,
        follower: Log,
        limits: Limits,
        clock: Clock,
        *,
        clients: Sequence[Commands] = (),
    ) -> None:
        self._pool = pool
        self._follower = follower
        self._limits = limits
        self._clock = clock
        self._clients = clients
        self._waiting: set[str] = set()
        self._introduced: tuple[Session, str] | None = None
        self._order = {
            "staleness_ms": limits.staleness_ms,
            "swap_min_ms": limits.swap_min_ms,
            "swap_max_ms": max(1, limits.swap_max_ms),
        }

    async def acquire(
        self, request: Request, *, lease_id: str, call_id: str
    ) -> Granted | Queued | Denied:
        """Place the request, queue it, or say why not."""
        common: dict[str, str | int | bytes] = {
            "request_key": request.request_key,
            "request_hash": request.request_hash,
            "identity": _identity(request, call_id),
            "lease_id": lease_id,
            "lane": request.lane,
            "avoid": dumps(list(request.avoid)),
            "ttl_ms": request.ttl_ms,
            "drain_ms": self._limits.drain_ms,
            "known_fence": self._pool.known_fence,
            **self._order,
        }
        if request.request_key not in self._waiting:
            answer = await self._pool.call("admit", common)
            if answer.word == "granted":
                return _granted(answer)
        answer = await self._pool.call(
            "acquire",
            {
                **common,
                "environment": request.environment,
                "requester": request.requester,
                "request_id": request.request_id,
                "class": request.priority,
                "wait_ms": request.wait_ms,
                "grace_ms": self._limits.grace_ms,
                "queue_max": self._limits.queue_max,
            },
        )
        result = _placed(answer)
        if isinstance(result, Queued):
            self._waiting.add(request.request_key)
        else:
            self._waiting.discard(request.request_key)
        return result

    async def heartbeat(self, holder: str, leases: Sequence[Lease]) -> list[Beat]:
        """Renew leases of one holder, one answer each, in their order."""
        answer = await self._pool.call(
            "heartbeat",
            {"holder": holder, "known_fence": self._pool.known_fence},
            [text for lease in leases for text in (lease.lease_id, lease.token)],
        )
        self._pool.heard_of(int(answer.texts[1]))
        await self._introduce_again()
        return [_beat(lease, word) for lease, word in zip(leases, answer.words, strict=True)]

    async def release(self, lease: Lease, outcome: Outcome, *, call_id: str) -> Released:
        """End a lease."""
        common: dict[str, str | int | bytes] = {
            "request_key": lease.request_key,
            "lease_id": lease.lease_id,
            "token": lease.token,
            "outcome": outcome,
            "call_id": call_id,
        }
        if not self._waiting:
            answer = await self._pool.call("leave", common)
            if answer.word == "ok":
                return Released("ok", held_ms=int(answer.texts[1]))
        answer = await self._pool.call("release", {**common, "holder": lease.holder, **self._order})
        match answer.word:
            case "ok":
                return Released("ok", held_ms=int(answer.texts[1]))
            case "late":
                return Released("late", ended_by=answer.texts[1])
        return Released(cast("Any", answer.word))

    async def cancel(self, request: Request) -> str:
        """End a request whatever became of it."""
        answer = await self._pool.call(
            "cancel",
            {
                "request_key": request.request_key,
                "request_hash": request.request_hash,
                **self._order,
            },
        )
        self._waiting.discard(request.request_key)
        return answer.texts[1]

    async def refresh(self, holder: str, request_keys: Sequence[str]) -> list[Place]:
        """Keep waiters of one holder in the queue, one answer each, in their order."""
        answer = await self._pool.call(
            "refresh",
            {"holder": holder, "grace_ms": self._limits.grace_ms, **self._order},
            request_keys,
        )
        return [_place(key, word) for key, word in zip(request_keys, answer.words, strict=True)]

    async def report(
        self, lease: Lease, kind: ReportKind, model: str, *, ms: int, outcome: str
    ) -> None:
        """Log what the holder does with a model. A lease that is over reports nothing."""
        await self._pool.call(
            "model",
            {
                "lease_id": lease.lease_id,
                "token": lease.token,
                "kind": kind,
                "model": model,
                "ms": ms,
                "outcome": outcome,
            },
        )

    async def trip(self, node_id: str, why: str) -> bool:
        """Close a node whose answers failed; False where it was so already, or is undeclared."""
        args: dict[str, str | int | bytes] = {
            "node_id": node_id,
            "why": why,
            "by": self._pool.actor,
        }
        return (await self._pool.call("trip", args)).word == "ok"

    async def open_session(self, session: Session) -> None:
        """Make the holder known, and end what dead holders of its host left behind."""
        state = PlacementState(self._pool.client, self._pool.keys)
        known = await state.sessions()
        dead = dead_among((_session(holder, one) for holder, one in known.items()), session)
        own: dict[str, str | int | bytes] = {
            "holder": session.holder,
            "environment": session.environment,
            "host": session.host,
            "boot_id": session.boot_id,
            "pid": session.pid,
            "pid_start": session.pid_start,
        }
        while True:
            answer = await self._pool.call("session", own, dead)
            if int(answer.texts[1]) < REAPED_A_CALL:
                self._introduced = (session, self._pool.known_pool_id)
                return

    async def _introduce_again(self) -> None:
        """A pool that was made anew does not know the holder. Tried again at the next heartbeat."""
        if self._introduced is None or self._introduced[1] == self._pool.known_pool_id:
            return
        with suppress(AibsError):
            await self.open_session(self._introduced[0])

    async def ping(self) -> None:
        """The smallest call that shows whether the server is there."""
        await self._pool.ping()

    async def wakes(self) -> AsyncIterator[frozenset[str]]:
        """Request keys that the log names; one whose reading fails goes on from the log's end."""
        while True:
            try:
                cursor = await self._follower.last_id()
                following = self._follower.follow(cursor, block_ms=FOLLOW_BLOCK_MS)
                async with aclosing(following) as events:
                    async for event in events:
                        names = event.data.get("next")
                        if names:
                            yield frozenset(names)
            except AibsError:
                # Waiters ask by themselves meanwhile.
                await self._clock.sleep(PAUSE_AFTER_ERROR_S)

    async def aclose(self) -> None:
        """Give back connections. Leases are not touched."""
        for client in self._clients:
            await client.aclose()


def _identity(request: Request, call_id: str) -> bytes:
    """What a lease's document says of its request: the inside of a JSON object."""
    return dumps(
        {
            "request_key": request.request_key,
            "request_id": request.request_id,
            "request_hash": request.request_hash,
            "call_id": call_id,
            "environment": request.environment,
            "holder": request.holder,
            "requester": request.requester,
            "role": request.role,
            "class": request.priority,
        }
    )[1:-1]


def lease_of(document: dict[str, Any], deadline_ms: int) -> Lease:
    """A stored lease as the value that its holder keeps."""
    return Lease(
        lease_id=document["lease_id"],
        token=document["token"],
        request_key=document["request_key"],
        request_id=document["request_id"],
        environment=document["environment"],
        holder=document["holder"],
        model=document["model"],
        key=document["key"],
        worker_id=document["worker_id"],
        role=document["role"],
        node_id=document["node_id"],
        base_url=document["base_url"],
        weight_bytes=document["weight_bytes"],
        ttl_ms=document["ttl_ms"],
        acquired_at_ms=document["acquired_at_ms"],
        deadline_ms=deadline_ms,
        warm=document["warm"],
        probe=document["probe"],
        unload_first=tuple(document["unload_first"]),
        queue_ms=document["queue_ms"],
        document=document,
    )


def _session(holder: str, document: dict[str, Any]) -> Session:
    return Session(
        holder,
        document["environment"],
        document["host"],
        document["boot_id"],
        document["pid"],
        document["pid_start"],
    )


def _granted(answer: Answer) -> Granted:
    now_ms, deadline_ms, text = int(answer.texts[0]), int(answer.texts[1]), answer.texts[2]
    return Granted(lease_of(loads(text), deadline_ms), now_ms, deadline_ms - now_ms)


def _placed(answer: Answer) -> Granted | Queued | Denied:
    match answer.word:
        case "granted":
            return _granted(answer)
        case "queued":
            now, position, reason, nodes, others, deadline, no_owner = answer.texts
            return Queued(
                now_ms=int(now),
                position=int(position),
                reason=reason,
                nodes=_reasons(nodes),
                others=loads(others),
                wait_deadline_ms=int(deadline),
                no_owner=no_owner == "1",
            )
        case "denied":
            _, reason, nodes, others, retry_after, no_owner = answer.texts
            return Denied(
                reason=reason,
                nodes=_reasons(nodes),
                others=loads(others),
                retry_after_ms=int(retry_after) if retry_after else None,
                no_owner=no_owner == "1",
            )
        case "conflict":
            return Denied("request_conflict")
        case "ended":
            return Denied("request_ended", detail=answer.texts[0])
    raise UnexpectedReply(f"acquire answered {answer.word!r}, which this release does not know.")


def _reasons(text: str) -> tuple[NodeReason, ...]:
    return tuple(
        NodeReason(
            node_id=item["node_id"],
            reason=item["reason"],
            missing_bytes=item["missing_bytes"],
            wait_ms=item["wait_ms"],
            why=item["why"],
        )
        for item in loads(text)
    )


def _beat(lease: Lease, word: str) -> Beat:
    name, _, deadline = word.partition(" ")
    return Beat(lease.lease_id, cast("Any", name), int(deadline) if deadline else None)


def _place(request_key: str, word: str) -> Place:
    name, _, rest = word.partition(" ")
    return Place(
        request_key,
        cast("Any", name),
        position=int(rest) if name == "queued" else None,
        how=rest if name == "ended" else None,
    )
