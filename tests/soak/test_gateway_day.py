"""A day of the gateway in ten minutes: many requests, failing nodes, clients that leave.

Afterwards nothing is left: no lease, no task, no open file, no memory; and the log tells it all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest

from aibs.codec import dumps, loads
from aibs.ollama.sim import SimModel
from tests.gateway_world import GB, Box, World, until
from tests.valkey_server import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.gateway_world import ServeProcess

REQUESTS: Final = int(os.environ.get("AIBS_TEST_GATEWAY_DAY_REQUESTS", "50000"))
AT_ONCE: Final = 32
SETTLED_NS: Final = 2 * 10**9
SLOTS: Final = 8
SHARE_BEFORE: Final = 0.2
"""After so much of it, what a gateway needs is there; the rest of the day must add nothing."""

GROWTH_MAX_BYTES: Final = 12_000_000
LIMIT_S: Final = 600.0
CHAT: Final = "chat:8b"
OTHER: Final = "other:20b"
EMBED: Final = "embed"
FAULTY: Final = ("box-a", "box-b")
FAULTS: Final[tuple[dict[str, Any], ...]] = (
    {"answer": "hang", "paths": ["/api/generate", "/api/chat"]},
    {"answer": "error_500", "paths": ["/api/generate", "/v1/chat/completions"]},
    {"answer": "reset", "paths": ["/api/chat", "/v1/chat/completions"]},
    {"stream_error_after": 2},
    {"load_error": "no memory"},
    {"ps_delay_s": 0.5},
)
TOLD: Final = {200, 400, 404, 429, 500, 502, 503, 504}


def worker(model: str, size: float, kind: str = "chat") -> dict[str, Any]:
    return {
        "worker_id": model.partition(":")[0],
        "model": model,
        "roles": [model.partition(":")[0]],
        "kind": kind,
        "resident_weight_gb": size,
        "active_parameter_billions": size,
    }


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def world(tmp_path: Path, server: ValkeyServer) -> Iterator[World]:
    models = (
        SimModel(CHAT, 8 * GB, loaded=True),
        SimModel(OTHER, 20 * GB, load_seconds=0.05),
        SimModel(EMBED, GB, kind="embedding", loaded=True, max_context=2048),
    )
    sim = {"reply_tokens": 4, "token_seconds": 0.002, "unload_seconds": 0.01}
    boxes = tuple(
        # Chat and the other one do not fit together: each makes room for the other.
        Box(name, models, slots=SLOTS, budget_gb=25, sim=sim)
        for name in ("box-a", "box-b", "box-c")
    )
    roster = (worker(CHAT, 8), worker(OTHER, 20), worker(EMBED, 1, "embedding"))
    settings = {
        "API_FIRST_BYTE_TIMEOUT_SECONDS": "1",
        "API_SILENCE_TIMEOUT_SECONDS": "1",
        "API_CONNECT_TIMEOUT_SECONDS": "0.5",
        "MODEL_CLUSTER_QUEUE_MAX_WAIT_SECONDS": "20",
        # A node that hangs answers a load no more than anything else.
        "MODEL_CLUSTER_LOAD_TIMEOUT_SECONDS": "3",
        "MODEL_CLUSTER_SWAP_MIN_RESIDENCY_SECONDS": "0.5",
        "MODEL_CLUSTER_SWAP_MAX_WAIT_SECONDS": "1",
    }
    with World(tmp_path, server.url, boxes, roster, settings=settings) as world:
        yield world


class Day:
    """The load, and how each request ended as its client saw it."""

    def __init__(self, url: str, rng: random.Random) -> None:
        self.outcomes: Counter[str] = Counter()
        self.unanswered: list[Any] = []
        self._url = url
        self._rng = rng

    async def run(self, count: int) -> None:
        """So many requests, some at once."""
        left = iter(range(count))
        # No connection outlives its part of the day: what is open afterwards is a leak.
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=60),
        ) as session:

            async def one_by_one() -> None:
                for _ in left:
                    await self._one(session)

            await asyncio.gather(*(one_by_one() for _ in range(AT_ONCE)))

    async def _one(self, session: aiohttp.ClientSession) -> None:
        path, body = self._request()
        stay = self._rng.random() > 0.1
        lease = None
        try:
            async with session.post(f"{self._url}{path}", data=dumps(body)) as answer:
                lease = answer.headers.get("x-aibs-lease")
                if not stay:
                    await answer.content.readany()
                    answer.close()
                    self.outcomes["left"] += 1
                    return
                text = await answer.read()
        except aiohttp.ClientPayloadError:
            self.outcomes["broken off"] += 1
            return
        except TimeoutError:
            self.unanswered.append((time.time(), path, body, lease))
            return
        assert answer.status in TOLD, (answer.status, text)
        self.outcomes[self._ended(path, answer.status, text)] += 1

    def _request(self) -> tuple[str, dict[str, Any]]:
        rng = self._rng
        model = OTHER if rng.random() < 0.02 else CHAT
        kind = rng.random()
        if kind < 0.55:
            return "/api/generate", {"model": model, "prompt": "x", "stream": rng.random() < 0.7}
        if kind < 0.7:
            return "/api/chat", {"model": model, "messages": [{"role": "user", "content": "x"}]}
        if kind < 0.8:
            messages = [{"role": "user", "content": "x"}]
            body = {"model": "aibs/chat", "messages": messages, "stream": rng.random() < 0.5}
            return "/v1/chat/completions", body
        if kind < 0.95:
            return "/api/embed", {"model": EMBED, "input": "x"}
        if kind < 0.98:
            return "/api/generate", {"model": "nobody"}
        return "/api/generate", {"model": CHAT, "options": {"seed": "x"}}

    @staticmethod
    def _ended(path: str, status: int, text: bytes) -> str:
        if status != 200:
            return str(status)
        if path.startswith("/api/"):
            last = loads(text.splitlines()[-1])
            return "told in the stream" if "error" in last else "served"
        return "told in the stream" if b'"error"' in text else "served"


async def spoil(world: World, server: ValkeyServer, rng: random.Random) -> None:
    """Faults, one after the other, until cancelled; healed then."""
    try:
        while True:
            node_id, fault = rng.choice(FAULTY), rng.choice(FAULTS)
            await asyncio.to_thread(world.inject, node_id, **fault)
            await asyncio.sleep(rng.uniform(0.2, 1.5))
            await asyncio.to_thread(world.inject, node_id)
            if rng.random() < 0.1:
                server.pause()
                await asyncio.sleep(0.3)
                server.resume()
            await asyncio.sleep(rng.uniform(0.1, 1.0))
    finally:
        server.resume()
        for node_id in FAULTY:
            world.inject(node_id)


@contextlib.asynccontextmanager
async def spoiled(world: World, server: ValkeyServer, rng: random.Random) -> AsyncIterator[None]:
    task = asyncio.create_task(spoil(world, server, rng))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def at_rest(world: World, gateway: ServeProcess) -> tuple[int, int, list[str]]:
    """Memory, open files and tasks of a gateway with nothing to do."""
    world.wait_idle()
    told, names, began_ns = world.directory / "tasks", [""], time.time_ns()

    def quiet() -> bool:
        nonlocal names
        # On a busy machine what is told may be of before the last request ended.
        fresh, before = told.stat().st_mtime_ns > began_ns + SETTLED_NS, names
        names = told.read_text().splitlines()
        return fresh and names == before and not any("load " in name for name in names)

    until(quiet, lambda: f"no request's task: {names}")
    # Idle connections to nodes are given up after a while.
    files = gateway.files()
    until(lambda: gateway.files() <= files, "files")
    time.sleep(1)
    return gateway.rss_bytes(), gateway.files(), names


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_day_of_requests_and_faults_leaves_nothing_behind(
    world: World, server: ValkeyServer
) -> None:
    seed = random.randrange(2**32)
    say(f"seed {seed}")
    began_s = time.monotonic()
    with world.serve(module="tests.drills.counted_gateway") as gateway:
        world.wait_seen()
        day = Day(gateway.url, random.Random(seed))
        faults = random.Random(seed + 1)

        async def part(count: int) -> None:
            async with spoiled(world, server, faults):
                await day.run(count)

        first = int(REQUESTS * SHARE_BEFORE)
        asyncio.run(part(first))
        rss_before, files_before, tasks_before = at_rest(world, gateway)
        asyncio.run(part(REQUESTS - first))
        rss, files, tasks = at_rest(world, gateway)
        took_s = time.monotonic() - began_s
        say(f"{REQUESTS} requests in {took_s:.0f} s: {dict(day.outcomes)}")
        say(f"RSS {rss_before / 1e6:.1f} then {rss / 1e6:.1f} MB, files {files_before} {files}")
        say(f"tasks {len(tasks_before)} {len(tasks)}, trips {len(trips(world))}")
        assert not day.unanswered
        assert day.outcomes.total() == REQUESTS
        assert day.outcomes["served"] > REQUESTS * 0.7
        assert rss - rss_before < GROWTH_MAX_BYTES
        # A connection to a node here or there may be kept for its next request.
        assert files - files_before <= AT_ONCE // 2
        assert len(tasks) - len(tasks_before) <= 2, (tasks_before, tasks)
        world.evidence.assert_one_end_a_grant()
        most = world.evidence.most_at_once()
        assert all(count <= SLOTS for count in most.values()), most
        assert trips(world)
        assert_verified(world)
    assert took_s < LIMIT_S


def say(line: str) -> None:
    """What is measured, and what a failure is repeated with."""
    sys.stdout.write(f"{line}\n")


def trips(world: World) -> list[str]:
    return [event.data["node_id"] for event in world.evidence.events("NodeTripped")]


def assert_verified(world: World) -> None:
    """The whole log, as `aibs replay` reads it."""
    done = subprocess.run(
        [sys.executable, "-m", "aibs", "replay", "--verify", "--json"],
        env={**world.clean_environment(), **world.settings()},
        cwd=world.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    document = loads(done.stdout)
    assert (done.returncode, document["ok"], document["problems"]) == (0, True, [])
