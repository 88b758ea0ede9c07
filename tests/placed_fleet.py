"""A declared fleet that was just seen, in a pool of a test, with leases taken by its scripts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from aibs.codec import dumps, loads
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.eventstore.replies import Answer, Elected
from aibs.fleet import Fleet, Node, Worker
from aibs.lanes import lane_arguments, lane_name
from aibs.placement.values import Limits

GB = 10**9
LIMITS = Limits(
    staleness_ms=60_000,
    grace_ms=10_000,
    drain_ms=10_000,
    swap_min_ms=30_000,
    swap_max_ms=60_000,
    queue_max=100,
    heartbeat_ms=3_000,
)
ORDER = {
    "staleness_ms": LIMITS.staleness_ms,
    "swap_min_ms": LIMITS.swap_min_ms,
    "swap_max_ms": LIMITS.swap_max_ms,
}
SMALL = Worker(
    "small",
    "small:7b",
    ("answer",),
    resident_weight_bytes=10 * GB,
    active_parameter_billions=Decimal(7),
)
FLEET = Fleet(
    nodes=(
        Node("box-c", "http://box-c:11434", 90 * GB, 2),
        Node("box-e", "http://box-e:11434", 104 * GB, 2),
    ),
    workers=(SMALL,),
)


def identity(number: int) -> bytes:
    """What a lease says of its request."""
    return dumps(
        {
            "call_id": "call",
            "class": "normal",
            "environment": "env",
            "holder": "holder",
            "request_hash": "h",
            "request_id": f"r{number}",
            "request_key": f"env|holder|r{number}",
            "requester": "holder",
            "role": None,
        }
    )[1:-1]


class PlacedFleet:
    """Two nodes; box-e is cordoned; one lease is held on box-c, or both of its slots."""

    lane = lane_name(SMALL.key, None)

    def __init__(self, pool: CoordinationPool) -> None:
        self.pool = pool
        self.leases: list[dict[str, Any]] = []

    async def open(self, *, full: bool = False) -> None:
        """Make it so."""
        await self.pool.open()
        term = await self.pool.elect("first", "owner", ttl_ms=600_000, mono_ms=1)
        assert isinstance(term, Elected)
        await self.pool.declare(
            "owner",
            term.fence,
            revision=0,
            fingerprint=FLEET.fingerprint,
            document=dumps(FLEET.document()),
            changes=b"[]",
            lanes=lane_arguments(FLEET),
        )
        seen = dumps([_resident()])
        polls = [
            PollRecord(node.node_id, term.fence, 1, node.base_url, 1, True, "", 1, False, seen, b"")
            for node in FLEET.nodes
        ]
        limits = ObserveLimits(2, 60_000, 30_000, 1_000, 600_000)
        await self.pool.observe("owner", term.fence, FLEET.fingerprint, polls, limits)
        cordon: dict[str, Any] = {"node_id": "box-e", "why": "work", "by": "op", "until_ms": 0}
        await self.pool.call("cordon", cordon)
        await self.pool.call(
            "session",
            {
                "holder": "holder",
                "environment": "env",
                "host": "here",
                "boot_id": "b",
                "pid": 1,
                "pid_start": 1,
            },
        )
        for number in range(2 if full else 1):
            answer = await self.pool.call("admit", self.admit_arguments(number))
            assert answer.word == "granted", answer
            self.leases.append(loads(answer.texts[2]))

    def admit_arguments(self, number: int) -> dict[str, Any]:
        """A request by its number."""
        return {
            "request_key": f"env|holder|r{number}",
            "request_hash": "h",
            "identity": identity(number),
            "lease_id": f"{number:016x}",
            "lane": self.lane,
            "avoid": "[]",
            "ttl_ms": 60_000,
            "drain_ms": LIMITS.drain_ms,
            "known_fence": 0,
            **ORDER,
        }

    def acquire_arguments(self, number: int, *, wait_ms: int) -> dict[str, Any]:
        """The same, with what waiting needs."""
        return {
            **self.admit_arguments(number),
            "environment": "env",
            "requester": "holder",
            "request_id": f"r{number}",
            "class": "normal",
            "wait_ms": wait_ms,
            "grace_ms": LIMITS.grace_ms,
            "queue_max": LIMITS.queue_max,
        }

    async def acquire(self, number: int, *, wait_ms: int = 0) -> Answer:
        """Ask for a lease."""
        return await self.pool.call("acquire", self.acquire_arguments(number, wait_ms=wait_ms))


def _resident() -> dict[str, Any]:
    return {
        "name": "small:7b",
        "key": SMALL.key,
        "digest": "d" * 64,
        "size_bytes": 11 * GB,
        "size_vram_bytes": 11 * GB,
        "context_length": 4096,
        "placement": "gpu",
        "ownership": "own",
        "worker_ids": ["small"],
        "keeps_forever": False,
        "expires_at_ms": None,
        "charge_bytes": 11 * GB,
        "roster_keys": [SMALL.key],
    }
