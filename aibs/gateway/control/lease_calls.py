"""What the holder of an application's lease asks for by the lease's id: go on, end, cancel.

Whose lease it is, the pool says: the holder that stands in the stored lease is compared with the
caller's before anything is asked for in its name.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from aibs.errors import CoordinationUnavailable, OutcomeUnknown, PoolMissing, PoolVersionMismatch
from aibs.gateway.control.answering import Refused, refused, unavailable
from aibs.gateway.control.placement_bodies import request_id_of
from aibs.placement.values import Lease
from aibs.placement.values import Request as Asked

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aibs.placement import Placer
    from aibs.placement.values import Outcome

ANSWER_S: Final = 1.5
"""A client behind this call is told before it gives up."""

Identity = tuple[str, str]
"""Environment and requester."""

T = TypeVar("T")

_HOW: Final = (
    ("expired", "expired"),
    ("reaped", "reaped"),
    ("revoked", "revoked"),
    ("completed", "released"),
    ("cancelled", "released"),
    ("failed", "released"),
)
"""By the beginning of how the pool says that a request ended."""

_SENTENCES: Final = {
    "expired": "The lease's deadline passed before it was renewed: its work must end.",
    "reaped": "The lease was taken back: its work must end.",
    "revoked": "An operator took the lease back: its work must end.",
    "released": "The lease was given back already.",
    "unknown": "There is no such lease of this key, or the token is not its own.",
}


class StoredLeases(Protocol):
    """Where living leases are looked up."""

    async def lease(self, lease_id: str) -> Lease | None:
        """A living lease. Raises CoordinationUnavailable."""
        ...


class LeaseCalls:
    """The calls. All raise Refused: 410 with how the lease ended, 503 while the pool is away."""

    def __init__(self, placer: Placer, stored: StoredLeases) -> None:
        self._placer = placer
        self._stored = stored

    async def renew(self, identity: Identity, lease_id: str, token: str) -> int:
        """Prolong it: for how many milliseconds."""
        lease = await self._own(identity, lease_id)
        holder = holder_of(identity)
        if lease is not None:
            asked = _bare(lease_id, token, lease.request_key, holder)
            (beat,) = await self._answered(self._placer.backend.heartbeat(holder, [asked]))
            if beat.word == "ok":
                return lease.ttl_ms
            if beat.word != "unknown":
                raise _gone(beat.word)
        raise _gone(await self._how_ended(identity, lease_id))

    async def release(
        self, identity: Identity, lease_id: str, token: str, outcome: Outcome, call_id: str
    ) -> Lease | None:
        """Give it back: what it was, None where it was given back before."""
        lease = await self._own(identity, lease_id)
        asked = _bare(lease_id, token, _request_key(identity, lease_id), holder_of(identity))
        released = await self._answered(
            self._placer.backend.release(asked, outcome, call_id=call_id)
        )
        match released.word:
            case "ok":
                return lease
            case "late":
                raise _gone(released.ended_by or "unknown")
            case "double":
                raise _gone("released")
        how = await self._how_ended(identity, lease_id)
        # The same call again: it was a release then, or it came too late then already.
        if released.word != "duplicate" or how != "released":
            raise _gone("unknown" if how == "released" else how)
        return None

    async def cancel(self, identity: Identity, request_id: str) -> str:
        """End a request whatever became of it: what that was."""
        environment, requester = identity
        asked = Asked(
            request_id=request_id,
            environment=environment,
            holder=holder_of(identity),
            requester=requester,
            lane="",
            role=None,
            model=None,
            priority="normal",
            ttl_ms=0,
            wait_ms=0,
            # Whatever is known under that name.
            request_hash="",
        )
        return await self._answered(self._placer.backend.cancel(asked))

    async def _own(self, identity: Identity, lease_id: str) -> Lease | None:
        """The living lease; None where it lives no more. Another's is unknown."""
        if request_id_of(lease_id) is None:
            raise _gone("unknown")
        lease = await self._answered(self._stored.lease(lease_id))
        if lease is not None and lease.holder != holder_of(identity):
            raise _gone("unknown")
        return lease

    async def _how_ended(self, identity: Identity, lease_id: str) -> str:
        key = _request_key(identity, lease_id)
        (place,) = await self._answered(self._placer.backend.refresh(holder_of(identity), [key]))
        how = place.how or ""
        return next((word for start, word in _HOW if how.startswith(start)), "unknown")

    async def _answered(self, call: Awaitable[T]) -> T:
        """The answer in time; at once a refusal while the server is known to be away."""
        outage = self._placer.outage
        away = await outage.error()
        if away is not None:
            if asyncio.iscoroutine(call):
                call.close()
            raise unavailable(away)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await call
        except (OutcomeUnknown, CoordinationUnavailable, PoolMissing) as error:
            outage.suspect()
            raise unavailable(error) from error
        except TimeoutError as error:
            outage.suspect()
            sentence = f"The coordination server did not answer within {ANSWER_S:g} s."
            raise unavailable(CoordinationUnavailable(sentence)) from error
        except PoolVersionMismatch as error:
            raise refused(error) from error
        outage.answered()
        return answer


def holder_of(identity: Identity) -> str:
    """Who holds an application's lease: its key, in no process and on no host."""
    environment, requester = identity
    return f"api:{environment}:{requester}"


def _request_key(identity: Identity, lease_id: str) -> str:
    environment, requester = identity
    return f"{environment}|{requester}|{request_id_of(lease_id)}"


def _gone(reason: str) -> Refused:
    return Refused(410, reason, _SENTENCES.get(reason, _SENTENCES["unknown"]))


def _bare(lease_id: str, token: str, request_key: str, holder: str) -> Lease:
    """What the scripts compare of a lease; the rest they have stored."""
    return Lease(
        lease_id=lease_id,
        token=token,
        request_key=request_key,
        request_id="",
        environment="",
        holder=holder,
        model="",
        key="",
        worker_id="",
        role=None,
        node_id="",
        base_url="",
        weight_bytes=0,
        ttl_ms=0,
        acquired_at_ms=0,
        deadline_ms=0,
        warm=False,
        probe=False,
        unload_first=(),
        queue_ms=0,
    )
