"""The writer's side of a pool: each method is one script, repeated until it is answered.

Decides: when a call is repeated (its answer was lost, and the script tells repeats apart) and what
this client remembers of the pool, so that a flushed or restored server is recognised.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aibs.errors import CoordinationUnavailable, OutcomeUnknown, PoolMissing, UnexpectedReply
from aibs.eventstore import replies
from aibs.eventstore.scripts import ScriptRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aibs.errors import AibsError
    from aibs.eventstore.commands import Commands
    from aibs.eventstore.keys import Keys


# Error replies of a server that cannot serve now. The script did not run.
_UNAVAILABLE = (
    "LOADING",
    "READONLY",
    "OOM",
    "MISCONF",
    "BUSY",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "NOREPLICAS",
    "NOAUTH",
    "NOPERM",
    "TRYAGAIN",
    "UNBLOCKED",
)


@dataclass(frozen=True, slots=True)
class PollRecord:
    """One node's poll as `observe` takes it.

    `models_json` is a JSON list in canonical order; `elapsed_ms` counts from the poll's beginning
    to the sending; `begun_fence` is the term under which it began.
    """

    node_id: str
    begun_fence: int
    seq: int
    base_url: str
    elapsed_ms: int
    good: bool
    reason: str
    latency_ms: int
    unaccounted: bool
    models_json: bytes
    telemetry_json: bytes

    def arguments(self) -> tuple[str | int | bytes, ...]:
        """The script's arguments, in the order its header names."""
        return (
            self.node_id,
            self.begun_fence,
            self.seq,
            self.base_url,
            self.elapsed_ms,
            "ok" if self.good else "failed",
            self.reason,
            self.latency_ms,
            "1" if self.unaccounted else "0",
            self.models_json,
            self.telemetry_json,
        )


@dataclass(frozen=True, slots=True)
class ObserveLimits:
    """What `observe` is told of the settings. Times in milliseconds, `samples_max` in entries."""

    failure_threshold: int
    staleness_ms: int
    telemetry_ttl_ms: int
    samples_max: int
    samples_age_ms: int
    load_timeout_ms: int = 600_000


class CoordinationPool:
    """One process's hands on a pool. `actor` is who it says it is in events."""

    def __init__(
        self,
        client: Commands,
        keys: Keys,
        actor: str,
        *,
        recovery_ms: int,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.client = client
        self.keys = keys
        self.actor = actor
        self._recovery_ms = recovery_ms
        self._runner = ScriptRunner(client, keys, overrides)
        self.known_pool_id = ""
        self.known_fence = 0

    async def open(self) -> replies.Opened:
        """Open the pool, creating it where it is missing; tell the server what we remember.

        Raises PoolVersionMismatch, CoordinationUnavailable, OutcomeUnknown.
        """
        opened: replies.Opened = await self._run_once(
            "open",
            {
                "actor": self.actor,
                "new_pool_id": secrets.token_hex(8),
                "known_pool_id": self.known_pool_id,
                "known_fence": self.known_fence,
                "recovery_ms": self._recovery_ms,
            },
        )
        self.known_pool_id = opened.pool_id
        self.known_fence = max(self.known_fence, opened.fence)
        return opened

    def heard_of(self, fence: int) -> None:
        """Remember a fence that the server told of: one that knows a lower one lost writes."""
        self.known_fence = max(self.known_fence, fence)

    async def close_cleanly(self) -> bool:
        """Record that the server stops with nothing in flight; False when something is."""
        closed: bool = await self._run("close", {"actor": self.actor})
        return closed

    async def elect(
        self, attempt: str, owner: str, *, ttl_ms: int, mono_ms: int
    ) -> replies.Elected | replies.Held | replies.TermEnded:
        """Stand for election. The same attempt again gets the same answer."""
        answer: replies.Elected | replies.Held | replies.TermEnded = await self._run(
            "elect",
            {
                "actor": self.actor,
                "attempt": attempt,
                "owner": owner,
                "ttl_ms": ttl_ms,
                "mono_ms": mono_ms,
                "known_fence": self.known_fence,
            },
        )
        self.known_fence = max(self.known_fence, answer.fence)
        return answer

    async def renew(
        self, owner: str, fence: int, *, ttl_ms: int, mono_ms: int, confirmed_step_ms: int = 0
    ) -> replies.Renewed | replies.ClockDiffers:
        """Prolong the term. Raises Fenced when it is not this owner's any more."""
        answer: replies.Renewed | replies.ClockDiffers = await self._run(
            "renew",
            {
                "actor": self.actor,
                "owner": owner,
                "fence": fence,
                "ttl_ms": ttl_ms,
                "mono_ms": mono_ms,
                "confirmed_step_ms": confirmed_step_ms,
            },
        )
        return answer

    async def resign(self, owner: str, fence: int) -> None:
        """Give the term back. Raises Fenced when it is over already."""
        await self._run("resign", {"actor": self.actor, "owner": owner, "fence": fence})

    async def declare(
        self,
        owner: str,
        fence: int,
        *,
        revision: int,
        fingerprint: str,
        document: bytes,
        changes: bytes,
        lanes: Sequence[bytes] = (),
    ) -> replies.Declared:
        """Declare the fleet as the owner. `document` and `changes` are JSON; `lanes` are names and
        documents in turn.
        """
        declared: replies.Declared = await self._run(
            "declare",
            {
                "actor": self.actor,
                "owner": owner,
                "fence": fence,
                "revision": revision,
                "fingerprint": fingerprint,
                "document": document.decode(),
                "changes": changes.decode(),
            },
            more_args=lanes,
        )
        return declared

    async def observe(
        self,
        owner: str,
        fence: int,
        fingerprint: str,
        polls: Sequence[PollRecord],
        limits: ObserveLimits,
    ) -> replies.Observed:
        """Record polls as the owner. Raises Fenced, FleetMismatch."""
        observed: replies.Observed = await self._run(
            "observe",
            {
                "actor": self.actor,
                "owner": owner,
                "fence": fence,
                "fingerprint": fingerprint,
                "failure_threshold": limits.failure_threshold,
                "staleness_ms": limits.staleness_ms,
                "telemetry_ttl_ms": limits.telemetry_ttl_ms,
                "samples_max": limits.samples_max,
                "samples_age_ms": limits.samples_age_ms,
                "load_timeout_ms": limits.load_timeout_ms,
            },
            more_keys=[self.keys.telemetry(poll.node_id) for poll in polls],
            more_args=[argument for poll in polls for argument in poll.arguments()],
        )
        return observed

    async def call(
        self,
        script: str,
        args: Mapping[str, str | int | bytes],
        more_args: Sequence[str | int | bytes] = (),
    ) -> replies.Answer:
        """Run a placement script as this actor: its word and what follows it.

        Raises OutcomeUnknown, CoordinationUnavailable, PoolVersionMismatch.
        """
        answer: replies.Answer = await self._run(
            script, {"actor": self.actor, **args}, more_args=more_args
        )
        return answer

    async def ping(self) -> None:
        """Whether the server that has the pool answers. Raises as calls do; writes nothing."""
        try:
            await self.client.hget(self.keys.key("pool"), "pool_id")
        except (RedisError, OSError) as error:
            raise _typed("ping", error) from error

    async def _run(
        self,
        script: str,
        args: Mapping[str, str | int | bytes],
        *,
        more_keys: Sequence[str] = (),
        more_args: Sequence[str | int | bytes] = (),
    ) -> Any:
        try:
            return await self._run_once(script, args, more_keys=more_keys, more_args=more_args)
        except PoolMissing:
            # Flushed under us, or never made: open says what we remember, then the call goes on.
            await self.open()
            return await self._run_once(script, args, more_keys=more_keys, more_args=more_args)

    async def _run_once(
        self,
        script: str,
        args: Mapping[str, str | int | bytes],
        *,
        more_keys: Sequence[str] = (),
        more_args: Sequence[str | int | bytes] = (),
    ) -> Any:
        try:
            reply = await self._runner.run(script, args, more_keys=more_keys, more_args=more_args)
        except (RedisError, OSError) as error:
            raise _typed(script, error) from error
        return replies.parse(script, reply)


def _typed(script: str, error: RedisError | OSError) -> AibsError:
    """What an error of a call means: not done, perhaps done, or a fault of programming."""
    code = _code(error)
    if code in _UNAVAILABLE:
        text = str(error).removeprefix(f"{code} ").rstrip(".")
        return CoordinationUnavailable(
            f"{script}: the coordination server does not take the call ({code}: {text})."
        )
    if isinstance(error, ResponseError):
        return UnexpectedReply(f"{script}: {error}.")
    if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError):
        return OutcomeUnknown(f"{script}: the coordination server did not answer ({error}).")
    return OutcomeUnknown(f"{script}: {type(error).__name__}: {error}.")


def _code(error: RedisError | OSError) -> str:
    """The server's word for the error: the library takes it off the messages of those it knows."""
    known = getattr(error, "status_code", None)
    return str(known) if known else str(error).split(" ", 1)[0]
