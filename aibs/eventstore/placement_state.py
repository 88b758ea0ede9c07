"""The live state of placement, read part by part with plain commands. Never writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.codec import loads
from aibs.eventstore.reading import answered
from aibs.eventstore.state import (
    FleetState,
    PoolState,
    Stamp,
    TermState,
    fleet_of,
    pool_of,
    stamp_of,
    term_of,
    text_of,
)

if TYPE_CHECKING:
    from aibs.eventstore.commands import Commands
    from aibs.eventstore.keys import Keys

QUEUE_KEYS = ("queue_high", "queue_normal", "queue_low")


@dataclass(frozen=True, slots=True)
class Drain:
    """A slot that ended without a release: free again once a poll begun later than `ended_at_ms`
    answered and `until_ms` passed.
    """

    lease_id: str
    node_id: str
    key: str
    weight_bytes: int
    ended_at_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class LiveParts:
    """Every part of the live state, read in one step: as of the event `pool.last_id`."""

    now_ms: int
    pool: PoolState | None
    term: TermState | None
    fleet: FleetState | None
    nodes: dict[str, dict[str, Any]]
    stamps: dict[str, Stamp]
    leases: dict[str, dict[str, Any]]
    deadlines: dict[str, int]
    marks: dict[str, str]
    waiters: dict[str, dict[str, Any]]
    heads: dict[str, int]
    reservations: dict[str, str]
    cordons: dict[str, dict[str, Any]]
    trips: dict[str, dict[str, Any]]
    weights: dict[str, dict[str, Any]]
    sessions: dict[str, dict[str, Any]]
    acks: dict[str, int]
    drains: tuple[Drain, ...]
    standbys: dict[str, int]

    def heartbeat_ms(self, lease_id: str) -> int | None:
        """When a living lease was last renewed."""
        text = self.marks.get(f"beat|{lease_id}")
        return None if text is None else int(text)

    def revocations(self) -> dict[str, dict[str, Any]]:
        """The living leases that an operator took back."""
        return {
            name.partition("|")[2]: loads(text)
            for name, text in self.marks.items()
            if name.startswith("revoked|")
        }


HASHES = (
    "pool",
    "owner",
    "fleet",
    "nodes",
    "stamps",
    "leases",
    "marks",
    "waiters",
    "heads",
    "reservations",
    "cordons",
    "trips",
    "weights",
    "sessions",
    "drains",
)
SCORES = ("deadlines", "acks", "standbys")


class PlacementState:
    """Reads a pool's placement state."""

    def __init__(self, client: Commands, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def read_all(self) -> LiveParts:
        """All parts in one transaction of reads."""
        pipeline = self._client.pipeline(transaction=True)
        for name in HASHES:
            pipeline.hgetall(self._keys.key(name))
        for name in SCORES:
            pipeline.zrange(self._keys.key(name), 0, -1, withscores=True)
        pipeline.time()
        with answered("the pool"):
            answers = await pipeline.execute()
        hashes = dict(zip(HASHES, map(text_of, answers), strict=False))
        scores = {
            name: {member.decode(): int(score) for member, score in answer}
            for name, answer in zip(SCORES, answers[len(HASHES) :], strict=False)
        }
        seconds, micros = answers[-1]
        documents = {
            name: {key: loads(text) for key, text in hashes[name].items()}
            for name in ("nodes", "leases", "waiters", "cordons", "trips", "weights", "sessions")
        }
        return LiveParts(
            now_ms=int(seconds) * 1000 + int(micros) // 1000,
            pool=pool_of(hashes["pool"]),
            term=term_of(hashes["owner"]),
            fleet=fleet_of(hashes["fleet"]),
            nodes=documents["nodes"],
            stamps={node: stamp_of(loads(text)) for node, text in hashes["stamps"].items()},
            leases=documents["leases"],
            deadlines=scores["deadlines"],
            marks=hashes["marks"],
            waiters=documents["waiters"],
            heads={key: int(text) for key, text in hashes["heads"].items()},
            reservations=hashes["reservations"],
            cordons=documents["cordons"],
            trips=documents["trips"],
            weights=documents["weights"],
            sessions=documents["sessions"],
            acks=scores["acks"],
            drains=_drains({key: loads(text) for key, text in hashes["drains"].items()}),
            standbys=scores["standbys"],
        )

    async def _hash(self, name: str) -> dict[str, str]:
        with answered(f"the pool's {name}"):
            raw = await self._client.hgetall(self._keys.key(name))
        return text_of(raw)

    async def _scores(self, name: str) -> dict[str, int]:
        with answered(f"the pool's {name}"):
            raw = await self._client.zrange(self._keys.key(name), 0, -1, withscores=True)
        return {member.decode(): int(score) for member, score in raw}

    async def _documents(self, name: str) -> dict[str, dict[str, Any]]:
        return {key: loads(text) for key, text in (await self._hash(name)).items()}

    async def leases(self) -> dict[str, dict[str, Any]]:
        """Every living lease's document, by lease id."""
        return await self._documents("leases")

    async def lease(self, lease_id: str) -> dict[str, Any] | None:
        """One living lease's document; None where there is none."""
        with answered("a lease"):
            text = await self._client.hget(self._keys.key("leases"), lease_id)
        return None if text is None else loads(text)

    async def deadlines(self) -> dict[str, int]:
        """Every living lease's deadline; of a revoked one, when it is reaped."""
        return await self._scores("deadlines")

    async def marks(self) -> dict[str, str]:
        """Heartbeats, loads and revocations, as stored: `beat|…`, `loading|…`, `revoked|…`."""
        return await self._hash("marks")

    async def waiters(self) -> dict[str, dict[str, Any]]:
        """Every waiter's document, by request key."""
        return await self._documents("waiters")

    async def heads(self) -> dict[str, int]:
        """When each waiter first stood first in its class's list."""
        return {key: int(text) for key, text in (await self._hash("heads")).items()}

    async def queued(self) -> dict[str, tuple[str, ...]]:
        """The request keys in each class's list, first come first."""
        found = {}
        for name in QUEUE_KEYS:
            with answered(f"the pool's {name}"):
                members = await self._client.zrange(self._keys.key(name), 0, -1)
            found[name.removeprefix("queue_")] = tuple(
                member.decode().partition("\x01")[2] for member in members
            )
        return found

    async def reservations(self) -> dict[str, str]:
        """Which waiter each reserved node is kept for."""
        return await self._hash("reservations")

    async def cordons(self) -> dict[str, dict[str, Any]]:
        """Nodes that operators closed."""
        return await self._documents("cordons")

    async def trips(self) -> dict[str, dict[str, Any]]:
        """Nodes whose answers failed."""
        return await self._documents("trips")

    async def weights(self) -> dict[str, dict[str, Any]]:
        """What models were seen to weigh, by `node|key`."""
        return await self._documents("weights")

    async def sessions(self) -> dict[str, dict[str, Any]]:
        """The processes that made themselves known as holders."""
        return await self._documents("sessions")

    async def acknowledged(self) -> dict[str, int]:
        """Leaked leases that an operator knows of, and since when."""
        return await self._scores("acks")

    async def drains(self) -> tuple[Drain, ...]:
        """Slots that ended without a release and were not seen free since."""
        return _drains(await self._documents("drains"))


def _drains(documents: dict[str, dict[str, Any]]) -> tuple[Drain, ...]:
    return tuple(
        Drain(
            lease_id,
            item["node_id"],
            item["key"],
            item["weight"],
            item["ended_at_ms"],
            item["until_ms"],
        )
        for lease_id, item in documents.items()
    )
