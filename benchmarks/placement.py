"""What a placement costs: an acquire and its release against two scripts that do nothing, the same
on a fleet of 1,000 nodes, and how soon a waiter starts after the release that frees its slot.

Ratios within one run, taken in turns so that a busy machine slows both sides alike.

    python benchmarks/placement.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import Redis

from aibs.clock import SystemClock
from aibs.codec import dumps, dumps_pretty
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.embedded import EmbeddedValkey
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.eventstore.replies import Elected
from aibs.eventstore.scripts import packaged
from aibs.fleet import Fleet, Node, Worker
from aibs.lanes import lane_arguments, lane_name
from aibs.placement import Placer, PlacerTiming
from aibs.placement.session import open_identity
from aibs.placement.valkey import ValkeyBackend
from aibs.placement.values import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GB = 10**9
PAIRS_A_TURN = 50
NOOP = "#!lua\nreturn 1"
LIMITS = Limits(
    staleness_ms=600_000,
    grace_ms=10_000,
    drain_ms=10_000,
    swap_min_ms=30_000,
    swap_max_ms=60_000,
    queue_max=1_000,
    heartbeat_ms=30_000,
)
MODEL = Worker(
    "answer",
    "llama3:8b",
    ("answer",),
    resident_weight_bytes=7 * GB,
    active_parameter_billions=Decimal(8),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The three ratios, and what they were made of."""

    pair_over_two_noops_2_nodes: float
    pair_1000_nodes_over_2_nodes: float
    wake_median_ms: float
    pair_2_nodes_us: float
    two_noops_us: float
    wake_p90_ms: float
    waiters: int


def _fleet(nodes: int, slots: int) -> Fleet:
    return Fleet(
        nodes=tuple(
            Node(f"box-{i:04}", f"http://10.4.{i // 250}.{i % 250}:11434", 90 * GB, slots)
            for i in range(nodes)
        ),
        workers=(MODEL,),
    )


async def _prepare(socket_url: str, namespace: str, fleet: Fleet) -> None:
    """A declared fleet whose every node was seen empty a moment ago."""
    client = commands(await open_client(socket_url, data_dir=Path(), purpose="write"))
    pool = CoordinationPool(client, Keys(namespace), "bench", recovery_ms=1)
    await pool.open()
    term = await pool.elect("first", "bench", ttl_ms=600_000, mono_ms=1)
    assert isinstance(term, Elected)
    await pool.declare(
        "bench",
        term.fence,
        revision=0,
        fingerprint=fleet.fingerprint,
        document=dumps(fleet.document()),
        changes=b"[]",
        lanes=lane_arguments(fleet),
    )
    polls = [
        PollRecord(node.node_id, term.fence, 1, node.base_url, 1, True, "", 1, False, b"[]", b"")
        for node in fleet.nodes
    ]
    limits = ObserveLimits(2, 600_000, 30_000, 10_000, 600_000)
    for start in range(0, len(polls), 50):
        await pool.observe(
            "bench", term.fence, fleet.fingerprint, polls[start : start + 50], limits
        )
    await client.aclose()


class Pairs:
    """Acquires and releases on one namespace, pipelined."""

    def __init__(self, client: Redis, namespace: str) -> None:
        self._client = client
        self._keys = Keys(namespace)
        run_id = client.info("server")["run_id"]
        self._scripts = {name: packaged(name, run_id) for name in ("admit", "leave")}
        for script in self._scripts.values():
            client.script_load(script.text)
        self._number = 0
        self._seq = int(client.hget(self._keys.key("pool"), "seq") or 0)

    def _call(self, name: str, args: dict[str, str | int | bytes]) -> tuple[Any, ...]:
        script = self._scripts[name]
        keys = [self._keys.key(key) for key in script.header.keys]
        names = [arg.partition(":")[0] for arg in script.header.args]
        return script.sha, len(keys), *keys, "", *(args[arg] for arg in names)

    def _pair(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        self._number += 1
        # Nobody else writes here: the token is the number that the grant's event will get.
        self._seq += 1
        token, self._seq = self._seq, self._seq + 1
        request_id, lease_id = f"request-{self._number}", f"{self._number:016x}"
        request_key = f"bench|bench|{request_id}"
        identity = dumps(
            {
                "request_key": request_key,
                "request_id": request_id,
                "request_hash": "f" * 16,
                "call_id": lease_id,
                "environment": "bench",
                "holder": "bench",
                "requester": "bench",
                "role": None,
                "class": "normal",
            }
        )[1:-1]
        admit = self._call(
            "admit",
            {
                "actor": "bench",
                "request_key": request_key,
                "request_hash": "f" * 16,
                "identity": identity,
                "lease_id": lease_id,
                "lane": lane_name(MODEL.key, None),
                "avoid": "[]",
                "ttl_ms": 900_000,
                "staleness_ms": LIMITS.staleness_ms,
                "drain_ms": LIMITS.drain_ms,
                "swap_min_ms": LIMITS.swap_min_ms,
                "swap_max_ms": LIMITS.swap_max_ms,
                "known_fence": 0,
            },
        )
        leave = self._call(
            "leave",
            {
                "actor": "bench",
                "request_key": request_key,
                "lease_id": lease_id,
                "token": token,
                "outcome": "completed",
                "call_id": lease_id,
            },
        )
        return admit, leave

    def turn(self) -> float:
        """Microseconds a pair, over one pipeline of pairs."""
        pipeline = self._client.pipeline(transaction=False)
        for _ in range(PAIRS_A_TURN):
            for call in self._pair():
                pipeline.evalsha(*call)
        begun = time.perf_counter()
        answers = pipeline.execute()
        took = time.perf_counter() - begun
        words = [answer[0] for answer in answers]
        if words != [b"granted", b"ok"] * PAIRS_A_TURN:
            raise SystemExit(f"a pair was not granted and released: {set(words)}")
        return took / PAIRS_A_TURN * 1e6


def _two_noops(client: Redis) -> Callable[[], float]:
    sha = client.script_load(NOOP)

    def turn() -> float:
        pipeline = client.pipeline(transaction=False)
        for _ in range(2 * PAIRS_A_TURN):
            pipeline.evalsha(sha, 0)
        begun = time.perf_counter()
        pipeline.execute()
        return (time.perf_counter() - begun) / PAIRS_A_TURN * 1e6

    return turn


def _ratio(left: Callable[[], float], right: Callable[[], float], turns: int) -> list[float]:
    """Left over right, each left turn between two of the right."""
    for _ in range(5):
        left()
        right()
    ratios = []
    for _ in range(turns):
        before, taken, after = right(), left(), right()
        ratios.append(taken / ((before + after) / 2))
    return ratios


async def _wakes(socket_url: str, namespace: str, fleet: Fleet, waiters: int) -> list[float]:
    """Milliseconds from each release to the start of the waiter that it lets go."""
    client = commands(await open_client(socket_url, data_dir=Path(), purpose="write"))
    follower = commands(await open_client(socket_url, data_dir=Path(), purpose="follow"))
    keys = Keys(namespace)
    pool = CoordinationPool(client, keys, "bench", recovery_ms=1)
    backend = ValkeyBackend(
        pool, Log(follower, keys), LIMITS, SystemClock(), clients=(client, follower)
    )
    delays: list[float] = []
    freed_at = 0.0

    async def wait_and_go(placer: Placer) -> None:
        nonlocal freed_at
        async with placer.lease(model=MODEL.model, timeout=120):
            if freed_at:
                delays.append((time.perf_counter() - freed_at) * 1000)
            await asyncio.sleep(0.005)
            freed_at = time.perf_counter()

    timing = PlacerTiming(
        ttl_ms=900_000, heartbeat_ms=30_000, poll_ms=100, wait_ms=300_000, load_ms=600_000
    )
    async with (
        contextlib.aclosing(backend),
        Placer(backend, fleet, open_identity("bench", "bench"), timing) as placer,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(waiters):
            group.create_task(wait_and_go(placer))
    return delays


@contextlib.contextmanager
def _server() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="aibs-bench-") as directory:
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(EmbeddedValkey.ensure(Path(directory)))
        try:
            yield f"unix://{server.socket_path}"
        finally:
            loop.run_until_complete(server.close())
            loop.close()


def measure(*, quick: bool) -> Figures:
    """All figures in one run on one server."""
    turns = 60 if quick else 300
    waiters = 100
    with _server() as url, contextlib.closing(Redis.from_url(url)) as client:
        asyncio.run(_prepare(url, "two", _fleet(2, 4)))
        asyncio.run(_prepare(url, "thousand", _fleet(1000, 4)))
        asyncio.run(_prepare(url, "one-slot", _fleet(1, 1)))
        two, thousand, noops = Pairs(client, "two"), Pairs(client, "thousand"), _two_noops(client)
        over_noops = _ratio(two.turn, noops, turns)
        over_two = _ratio(thousand.turn, two.turn, turns)
        delays = asyncio.run(_wakes(url, "one-slot", _fleet(1, 1), waiters))
        return Figures(
            pair_over_two_noops_2_nodes=round(statistics.median(over_noops), 2),
            pair_1000_nodes_over_2_nodes=round(statistics.median(over_two), 2),
            wake_median_ms=round(statistics.median(delays), 2),
            pair_2_nodes_us=round(statistics.median(two.turn() for _ in range(5)), 1),
            two_noops_us=round(statistics.median(noops() for _ in range(5)), 1),
            wake_p90_ms=round(statistics.quantiles(delays, n=10)[-1], 2),
            waiters=waiters,
        )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    figures = measure(quick=options.quick)
    if options.json:
        sys.stdout.write(dumps_pretty(asdict(figures)) + "\n")
        return
    for name, value in asdict(figures).items():
        sys.stdout.write(f"{name:32} {value}\n")


if __name__ == "__main__":
    main()
