"""The live state, read part by part. Each part names the event that last changed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.codec import loads
from aibs.eventstore.reading import answered

if TYPE_CHECKING:
    from aibs.eventstore.commands import Commands
    from aibs.eventstore.keys import Keys


@dataclass(frozen=True, slots=True)
class PoolState:
    """Identity and condition of the pool. Times by the server's clock, in milliseconds."""

    pool_id: str
    state_version: str
    run_id: str
    state: str
    epoch: int
    seq: int
    last_id: str
    recover_at_ms: int | None


@dataclass(frozen=True, slots=True)
class TermState:
    """The term. `owner` is None while nobody holds it; `deadline_ms` is outside the fold."""

    owner: str | None
    fence: int
    deadline_ms: int
    ttl_ms: int
    elected_at_ms: int | None
    ended: str | None
    last_owner: str | None
    event_id: str | None

    def alive(self, server_now_ms: int) -> bool:
        """Whether the term holds at that time of the server."""
        return self.owner is not None and self.deadline_ms > server_now_ms


@dataclass(frozen=True, slots=True)
class FleetState:
    """The declared fleet."""

    revision: int
    fingerprint: str
    document: dict[str, Any]
    event_id: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """A node's placement health record. `observed_at_ms` 0: never observed."""

    observed_at_ms: int
    observed_fence: int
    fence: int
    seq: int
    fingerprint: str
    base_url: str
    healthy: bool | None
    reason: str
    own_bytes: int | None
    foreign_bytes: int | None
    unaccounted: bool
    failed_in_row: int
    epoch: int
    loading: bool = False

    def age_ms(self, server_now_ms: int) -> int | None:
        """How old the observation is; None where there is none."""
        return server_now_ms - self.observed_at_ms if self.observed_at_ms else None

    def fresh(self, server_now_ms: int, *, staleness_ms: int, fingerprint: str) -> bool:
        """Whether placement may rely on it. A stamp from the future is stale: the clock stepped."""
        age_ms = self.age_ms(server_now_ms)
        return (
            age_ms is not None and 0 <= age_ms <= staleness_ms and self.fingerprint == fingerprint
        )


def text_of(raw: dict[bytes, bytes]) -> dict[str, str]:
    """A hash as text."""
    return {key.decode(): value.decode("utf-8", "replace") for key, value in raw.items()}


class LiveState:
    """Reads a pool's state with plain read commands; never runs a script, never writes."""

    def __init__(self, client: Commands, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def _hgetall(self, name: str) -> dict[str, str]:
        with answered(f"the pool's {name}"):
            return text_of(await self._client.hgetall(self._keys.key(name)))

    async def server_now_ms(self) -> int:
        """The server's clock."""
        with answered("its time"):
            seconds, micros = await self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    async def pool(self) -> PoolState | None:
        """The pool, None where it was never opened."""
        return pool_of(await self._hgetall("pool"))

    async def term(self) -> TermState | None:
        """The term, None where there was never one."""
        return term_of(await self._hgetall("owner"))

    async def fleet(self) -> FleetState | None:
        """The declared fleet, None before the first declaration."""
        return fleet_of(await self._hgetall("fleet"))

    async def nodes(self) -> dict[str, dict[str, Any]]:
        """What the log last said of each node: the part that a fold must equal."""
        return {node: loads(text) for node, text in (await self._hgetall("nodes")).items()}

    async def stamps(self) -> dict[str, Stamp]:
        """The stamp of each node that was ever polled."""
        return {
            node: stamp_of(loads(text)) for node, text in (await self._hgetall("stamps")).items()
        }

    async def telemetry(self, node_id: str) -> dict[str, Any] | None:
        """The last poll in full, None once its time to live passed."""
        with answered(f"the telemetry of {node_id}"):
            text = await self._client.get(self._keys.telemetry(node_id))
        return loads(text) if text is not None else None


def pool_of(held: dict[str, str]) -> PoolState | None:
    """The pool, None where it was never opened."""
    if "pool_id" not in held:
        return None
    return PoolState(
        pool_id=held["pool_id"],
        state_version=held["state_version"],
        run_id=held["run_id"],
        state=held["state"],
        epoch=int(held["epoch"]),
        seq=int(held["seq"]),
        last_id=held["last_id"],
        recover_at_ms=int(held["recover_at_ms"]) if "recover_at_ms" in held else None,
    )


def term_of(held: dict[str, str]) -> TermState | None:
    """The term, None where there was never one."""
    if "fence" not in held:
        return None
    elected = held.get("elected_at_ms")
    return TermState(
        owner=held["owner"] or None,
        fence=int(held["fence"]),
        deadline_ms=int(held["deadline_ms"]),
        ttl_ms=int(held["ttl_ms"]),
        elected_at_ms=int(elected) if elected else None,
        ended=held.get("ended") or None,
        last_owner=held.get("last_owner") or None,
        event_id=held.get("event_id"),
    )


def fleet_of(held: dict[str, str]) -> FleetState | None:
    """The declared fleet, None before the first declaration."""
    if "document" not in held:
        return None
    return FleetState(
        revision=int(held["revision"]),
        fingerprint=held["fingerprint"],
        document=loads(held["document"]),
        event_id=held["event_id"],
    )


def stamp_of(document: dict[str, Any]) -> Stamp:
    """A stamp as stored."""
    return Stamp(
        observed_at_ms=document["observed_at_ms"],
        observed_fence=document["observed_fence"],
        fence=document["fence"],
        seq=document["seq"],
        fingerprint=document["fingerprint"],
        base_url=document["base_url"],
        healthy=document["healthy"],
        reason=document["reason"],
        own_bytes=document["own"],
        foreign_bytes=document["foreign"],
        unaccounted=document["unaccounted"],
        failed_in_row=document["failed_in_row"],
        epoch=document["epoch"],
        loading=document.get("loading", False),
    )
