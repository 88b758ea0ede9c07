"""A placed history in a pool of a test, by the real scripts under the server's own clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from aibs.codec import dumps, loads
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.eventstore.snapshots import Snapshots, SnapshotWriter, pack
from aibs.history import catch_up_all
from tests.placed_fleet import FLEET, GB, ORDER, SMALL, PlacedFleet

if TYPE_CHECKING:
    from aibs.eventstore.commands import Commands
    from aibs.eventstore.snapshots import SnapshotInfo

TENANT = "registry.ollama.ai/theirs/model:4b"


class RecordedPool:
    """A fleet of two nodes with leases granted, queued, renewed, loaded, ended and denied."""

    def __init__(self, client: Commands, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.pool = CoordinationPool(client, Keys(namespace), "here:1:test:0", recovery_ms=1_000)
        self.placed = PlacedFleet(self.pool)
        self._seq = 1

    @classmethod
    async def open(cls, url: str, namespace: str) -> RecordedPool:
        """A pool with nothing in it yet."""
        return cls(commands(await open_client(url, data_dir=Path(), purpose="write")), namespace)

    async def close(self) -> None:
        """Close the client."""
        await self.client.aclose()

    def settings(self, url: str) -> dict[str, str]:
        """The environment of a command that reads this pool."""
        return {"AIBS_VALKEY_URL": url, "AIBS_MODEL_CLUSTER_NAMESPACE": self.namespace}

    async def begin(self) -> None:
        """Both slots of box-c are leased; box-e is cordoned."""
        await self.placed.open(full=True)

    async def queue(self, number: int) -> None:
        """A request that waits."""
        answer = await self.placed.acquire(number, wait_ms=600_000)
        assert answer.word == "queued", answer

    async def deny(self, number: int) -> None:
        """A request that does not wait."""
        answer = await self.placed.acquire(number)
        assert answer.word == "denied", answer

    async def take(self, number: int) -> dict[str, Any]:
        """A waiter asks again and gets a lease: its document."""
        answer = await self.placed.acquire(number, wait_ms=600_000)
        assert answer.word == "granted", answer
        lease: dict[str, Any] = loads(answer.texts[2])
        return lease

    async def report(self, lease: dict[str, Any], kind: str, ms: int = 0) -> None:
        """A holder loads its model."""
        await self.pool.call(
            "model",
            {
                "lease_id": lease["lease_id"],
                "token": lease["token"],
                "kind": kind,
                "model": SMALL.key,
                "ms": ms,
                "outcome": "ok",
            },
        )

    async def renew(self, *leases: dict[str, Any]) -> None:
        """A heartbeat."""
        pairs = [text for lease in leases for text in (lease["lease_id"], lease["token"])]
        await self.pool.call("heartbeat", {"holder": "holder", "known_fence": 0}, pairs)

    async def release(self, lease: dict[str, Any], outcome: str = "completed") -> None:
        """A lease is given back."""
        answer = await self.pool.call(
            "release",
            {
                "holder": "holder",
                "lease_id": lease["lease_id"],
                "token": lease["token"],
                "request_key": lease["request_key"],
                "outcome": outcome,
                "call_id": f"release-{lease['lease_id']}",
                "swap_min_ms": 0,
                "swap_max_ms": 60_000,
                "staleness_ms": 60_000,
            },
        )
        assert answer.word == "ok", answer

    async def expire(self, number: int, *, drain_ms: int) -> str:
        """A holder that is gone at once: its lease ends at its deadline, and its slot drains."""
        arguments = self.placed.acquire_arguments(number, wait_ms=0)
        answer = await self.pool.call("acquire", {**arguments, "ttl_ms": 1, "drain_ms": drain_ms})
        assert answer.word == "granted", answer
        while True:
            reaped = await self.pool.call("reap", ORDER)
            if reaped.texts[1] == "1":
                return str(loads(answer.texts[2])["lease_id"])

    async def keep(self, snapshot_id: str) -> SnapshotInfo:
        """The owner keeps every fold's state as it is now."""
        log, snapshots = Log(self.client, self.pool.keys), Snapshots(self.client, self.pool.keys)
        reading = await catch_up_all(log, snapshots)
        await SnapshotWriter(self.pool, "owner", 1).take(
            snapshot_id,
            reading.anchor,
            reading.engine.position.at_ms,
            [pack(fold.document()) for fold in reading.folds],
        )
        return (await snapshots.list())[0]

    async def let_go(self, info: SnapshotInfo) -> int:
        """Everything before a snapshot leaves the log, but for what living leases need."""
        digest = await Snapshots(self.client, self.pool.keys).read_back(info)
        done = await SnapshotWriter(self.pool, "owner", 1).trim(
            info, digest, retention_ms=-(10**12), max_bytes=2**50, batch_max=1000
        )
        return done.removed

    async def observe(self, *models: dict[str, Any], node_id: str = "box-c") -> None:
        """A poll that sees these models."""
        self._seq += 1
        node = FLEET.node(node_id)
        assert node is not None
        poll = PollRecord(
            node_id, 1, self._seq, node.base_url, 1, True, "", 1, False, dumps(list(models)), b""
        )
        limits = ObserveLimits(2, 60_000, 30_000, 1_000, 600_000)
        observed = await self.pool.observe("owner", 1, FLEET.fingerprint, [poll], limits)
        assert observed.words == ("ok",), observed


def tenant(size: int = 4 * GB) -> dict[str, Any]:
    """Another's model."""
    return {
        "name": "theirs/model:4b",
        "key": TENANT,
        "digest": "t" * 64,
        "size_bytes": size,
        "size_vram_bytes": size,
        "context_length": 4096,
        "placement": "gpu",
        "ownership": "foreign",
        "worker_ids": [],
        "keeps_forever": False,
        "expires_at_ms": None,
        "charge_bytes": size,
        "roster_keys": [],
    }
