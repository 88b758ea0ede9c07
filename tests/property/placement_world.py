"""Placement on a real server under a clock that the test sets, and what must hold of it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import Redis

from aibs.codec import dumps, loads
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log, after
from aibs.eventstore.placement_state import PlacementState
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.eventstore.replies import Elected
from aibs.eventstore.state import LiveState
from aibs.fleet import Fleet, Node, Worker
from aibs.history.agreement import differences_of_drains
from aibs.lanes import lane_arguments
from aibs.placement.valkey import ValkeyBackend
from aibs.placement.values import Limits, Request
from aibs.projections.coordination import Coordination, fold
from tests.server_clock import ServerClock

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aibs.eventstore.events import Event

GB = 10**9
EPOCH_MS = 1_800_000_000_000
LIMITS = Limits(
    staleness_ms=20_000,
    grace_ms=10_000,
    drain_ms=10_000,
    swap_min_ms=30_000,
    swap_max_ms=60_000,
    queue_max=16,
    heartbeat_ms=3_000,
)
ORDER = {
    "staleness_ms": LIMITS.staleness_ms,
    "swap_min_ms": LIMITS.swap_min_ms,
    "swap_max_ms": LIMITS.swap_max_ms,
}
OBSERVE = ObserveLimits(2, LIMITS.staleness_ms, 30_000, 1_000, 600_000)
TTL_MS = 15_000


def worker(name: str, model: str, gb: int | None, params: int, roles: tuple[str, ...]) -> Worker:
    """A worker of the roster; without a weight it is unmeasured."""
    return Worker(
        name,
        model,
        roles,
        resident_weight_bytes=None if gb is None else gb * GB,
        active_parameter_billions=Decimal(params),
    )


WORKERS = (
    worker("small", "small:7b", 10, 7, ("answer",)),
    worker("medium", "medium:30b", 30, 30, ("answer", "deep")),
    worker("large", "large:70b", 80, 70, ("deep",)),
    worker("raw", "raw:1b", None, 1, ("raw",)),
    worker("huge", "huge:400b", 400, 400, ()),
)


def fleet(revision: int = 0, *, boxes: tuple[tuple[str, int, int], ...] | None = None) -> Fleet:
    """Two boxes, or those given as (id, budget in GB, slots). The role `deep` is box-c's alone."""
    listed = boxes or (("box-c", 90, 2), ("box-e", 104, 3))
    return Fleet(
        revision,
        tuple(Node(name, f"http://{name}:11434", gb * GB, slots) for name, gb, slots in listed),
        WORKERS,
        {"deep": ("box-c",)},
    )


class World:
    """One namespace on a real server: the scripts, the clock, and every event so far."""

    def __init__(self, url: str) -> None:
        self.namespace = f"test-{secrets.token_hex(6)}"
        self.loop = asyncio.new_event_loop()
        self.plain = Redis.from_url(url)
        self.clock = ServerClock(self.plain, self.namespace, EPOCH_MS)
        self.client = commands(self.run(open_client(url, data_dir=Path(), purpose="write")))
        self.keys = Keys(self.namespace)
        self.pool = CoordinationPool(
            self.client, self.keys, "owner", recovery_ms=1_000, overrides=self.clock.overrides
        )
        self.log = Log(self.client, self.keys)
        self.live = LiveState(self.client, self.keys)
        self.placement = PlacementState(self.client, self.keys)
        self.backend = ValkeyBackend(self.pool, self.log, LIMITS, _NoClock())
        self.events: list[Event] = []
        self.folded = Coordination()
        self.fence = 0
        self.seq = 0
        self.fleet = fleet()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Run one call."""
        return self.loop.run_until_complete(call)

    def close(self) -> None:
        """Leave nothing on the server."""
        self.run(self.client.aclose())
        self.loop.close()
        with contextlib.closing(self.plain) as plain:
            for key in plain.scan_iter(match=self.keys.pattern, count=1000):
                plain.unlink(key)

    # --- the owner

    def elect(self) -> None:
        """A new term."""
        found = self.run(
            self.pool.elect(secrets.token_hex(4), "owner", ttl_ms=10**9, mono_ms=self.clock.now_ms)
        )
        assert isinstance(found, Elected)
        self.fence = found.fence

    def declare(self, declared: Fleet) -> None:
        """The fleet from now on."""
        answer = self.run(
            self.pool.declare(
                "owner",
                self.fence,
                revision=declared.revision,
                fingerprint=declared.fingerprint,
                document=dumps(declared.document()),
                changes=b"[]",
                lanes=lane_arguments(declared),
            )
        )
        assert answer.word in ("ok", "unchanged")
        self.fleet = declared

    def observe(
        self,
        node_id: str,
        models: tuple[dict[str, Any], ...] = (),
        *,
        good: bool = True,
        reason: str = "timeout",
        elapsed_ms: int = 5,
        unaccounted: bool = False,
    ) -> str:
        """One poll of a node."""
        self.seq += 1
        node = self.fleet.node(node_id)
        assert node is not None
        poll = PollRecord(
            node_id,
            self.fence,
            self.seq,
            node.base_url,
            elapsed_ms,
            good,
            "" if good else reason,
            3,
            unaccounted,
            dumps(sorted(models, key=lambda model: str(model["key"]))) if good else b"[]",
            b"",
        )
        observed = self.run(
            self.pool.observe("owner", self.fence, self.fleet.fingerprint, [poll], OBSERVE)
        )
        word: str = observed.words[0]
        return word

    def observe_all(self) -> None:
        """Every node, holding what it was last seen to hold of ours: nothing."""
        for node in self.fleet.nodes:
            self.observe(node.node_id)

    def call(self, script: str, args: dict[str, Any], more: tuple[Any, ...] = ()) -> Any:
        """A script by name."""
        return self.run(self.pool.call(script, args, more))

    async def refused_since_room_came(self) -> set[str]:
        """Waiters that no decision looks at again before something comes free, or time passes."""
        frees = await self.client.hget(self.keys.key("pool"), "frees")
        tried = await self.client.hgetall(self.keys.key("tried"))
        return {key.decode() for key, text in tried.items() if text.split()[0] == (frees or b"0")}

    def forget_the_log(self) -> None:
        """The log was lost with the state: what follows is folded from its new beginning."""
        self.events, self.folded = [], Coordination()

    # --- what must hold

    def check(self) -> None:
        """The log is whole, its fold is the live state, and the indexes are what a scan says."""
        new = self.run(self._catch_up())
        self.events += new
        self.folded = fold(new, self.folded)
        assert self.folded.unread == 0, self.folded.last_unread
        assert self.folded.holes == 0
        assert self.folded.leases.granted_twice == 0
        assert self.folded.leases.ended_unknown == 0
        self.run(self._compare())
        answer = self.call("reindex", {"apply": "0"})
        assert answer.words == (), answer

    async def _catch_up(self) -> list[Event]:
        return [event async for event in self.log.read(after(self.folded.last_id))]

    async def _compare(self) -> None:
        state, folded = self.placement, self.folded
        leases = folded.leases.live_part()
        assert await state.leases() == leases["leases"]
        assert await state.deadlines() == leases["deadlines"]
        marks = await state.marks()
        revoked = {
            key.partition("|")[2]: loads(text)
            for key, text in marks.items()
            if key.startswith("revoked|")
        }
        assert revoked == leases["revoked"]
        assert {k: v for k, v in marks.items() if not k.startswith("revoked|")} == leases["marks"]
        assert await state.acknowledged() == leases["acks"]
        queue = folded.queue.live_part()
        assert await state.waiters() == queue["waiters"]
        assert await state.heads() == queue["heads"]
        assert await state.reservations() == queue["reservations"]
        queued = await state.queued()
        assert {key for keys in queued.values() for key in keys} == set(queue["waiters"])
        known = folded.marks.live_part()
        assert await state.cordons() == known["cordons"]
        assert await state.trips() == known["trips"]
        assert await state.weights() == known["weights"]
        assert await state.sessions() == known["sessions"]
        assert await self.live.nodes() == folded.residency.live_part()
        live = replace(await state.read_all(), now_ms=self.clock.now_ms)
        assert differences_of_drains(live, folded) == []


class _NoClock:
    """The wake-up reader's clock, which these tests do not run."""

    def boottime_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def resident(
    key: str, gb: int, *, own: bool = True, expires_at_ms: int | None = None
) -> dict[str, Any]:
    """A resident model as a poll records it."""
    return {
        "name": key,
        "key": key,
        "digest": key[:8],
        "size_bytes": gb * GB,
        "size_vram_bytes": gb * GB,
        "context_length": 4096,
        "placement": "gpu",
        "ownership": "own" if own else "foreign",
        "worker_ids": [],
        "keeps_forever": False,
        "expires_at_ms": expires_at_ms,
        "charge_bytes": gb * GB,
        "roster_keys": [key] if own else [],
    }


def key_of(model: str) -> str:
    """The comparison key of a library model."""
    return f"registry.ollama.ai/library/{model}"


def request(
    number: int,
    lane: str,
    *,
    priority: str = "normal",
    wait_ms: int = 0,
    environment: str = "env-a",
    holder: str = "holder-a",
    hashed: str = "h",
    avoid: tuple[str, ...] = (),
) -> Request:
    """A request of a small universe, so that they collide."""
    return Request(
        request_id=f"r{number}",
        environment=environment,
        holder=holder,
        requester=holder,
        lane=lane,
        role=None,
        model=None,
        priority=priority,  # type: ignore[arg-type]
        ttl_ms=TTL_MS,
        wait_ms=wait_ms,
        request_hash=hashed,
        avoid=avoid,
    )
