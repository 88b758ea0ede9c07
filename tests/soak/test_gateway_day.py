"""A day of a gateway in minutes: many requests with faults of nodes and of clients."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest

from aibs.ollama.sim import SimModel
from tests.gateway_world import GB, Box, World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway_world import ServeProcess
    from tests.valkey_server import ValkeyServer

REQUESTS: Final = int(os.environ.get("AIBS_SOAK_REQUESTS", "50000"))
AT_ONCE: Final = 24
SETTLED: Final = 0.2
"""Of the requests: by then caches are filled and connections made."""

GROWTH_MAX: Final = 1.25
"""Resident memory at the end over that when it had settled."""

FILES_SLACK: Final = 2 * AT_ONCE
CHAT: Final = "alpha:8b"
OTHER: Final = "beta:8b"
FAULTS: Final[tuple[dict[str, Any], ...]] = (
    {"answer": "error_500", "paths": ["/api/chat", "/api/generate"]},
    {"stream_error_after": 3},
    {"answer": "reset", "paths": ["/api/chat", "/api/generate"]},
    {"answer": "cut", "paths": ["/api/chat", "/api/generate"]},
    {},
)
MODELS: Final = (SimModel(CHAT, 8 * GB, loaded=True), SimModel(OTHER, 8 * GB))
ROSTER: Final = [
    {
        "worker_id": name.partition(":")[0],
        "model": name,
        "roles": ["answer"],
        "kind": "chat",
        "resident_weight_gb": 8,
        "active_parameter_billions": 8,
    }
    for name in (CHAT, OTHER)
]


class Day:
    """Clients of every kind against one gateway; `seed` reproduces what they ask."""

    def __init__(self, url: str, seed: int) -> None:
        self.statuses: dict[int, int] = {}
        self._url = url
        self._random = random.Random(seed)

    async def run(self, requests: int) -> None:
        """So many requests, AT_ONCE at a time."""
        left = iter(range(requests))
        # Connections of its own for each part of the day: what they leave behind is looked at.
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def client() -> None:
                for _ in left:
                    await self._one(session)

            await asyncio.gather(*(client() for _ in range(AT_ONCE)))

    async def _one(self, session: aiohttp.ClientSession) -> None:
        kind = self._random.random()
        model = CHAT if self._random.random() < 0.9 else OTHER
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        if kind < 0.7:
            body["stream"] = False
        elif kind > 0.97:
            body = {"model": "nobody:has"} if kind > 0.985 else {"model": 5}
        with suppress(aiohttp.ClientError, TimeoutError):
            async with (
                asyncio.timeout(60),
                session.post(f"{self._url}/api/chat", json=body) as answer,
            ):
                self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
                if 0.7 <= kind < 0.78:
                    # Gone in the middle: the connection goes with it.
                    await answer.content.readany()
                    answer.close()
                else:
                    await answer.read()


async def _with_faults(world: World, day: Day, requests: int) -> None:
    """Faults of one node in turns, while the other one serves."""

    async def faults() -> None:
        turn = 0
        while True:
            for fault in FAULTS:
                bad = "box-a" if turn % 2 else "box-b"
                await asyncio.to_thread(world.inject, bad, **fault)
                await asyncio.sleep(2.0)
                await asyncio.to_thread(world.inject, bad)
            turn += 1

    faulty = asyncio.create_task(faults())
    try:
        await day.run(requests)
    finally:
        faulty.cancel()
        await asyncio.gather(faulty, return_exceptions=True)
        for name in ("box-a", "box-b"):
            world.inject(name)


def _in_flight(gateway: ServeProcess) -> float:
    import httpx

    text = httpx.get(f"{gateway.url}/metrics", timeout=10).text
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("aibs_gateway_requests_in_flight{") and "/metrics" not in line
    )


@pytest.mark.soak
def test_a_day_of_requests_and_faults_leaves_no_lease_no_file_and_no_memory_behind(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    boxes = [
        Box(name, MODELS, slots=8, budget_gb=40, sim={"reply_tokens": 4})
        for name in ("box-a", "box-b")
    ]
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it where the test fails
    settings = {"API_TRIP_AFTER_FAILURES": "3", "LOG_LEVEL": "error"}
    with World(tmp_path, own_valkey.url, boxes, ROSTER, settings=settings) as world:
        # Its starting line is looked for.
        with world.serve(LOG_LEVEL="info") as gateway:
            world.wait_seen()
            day = Day(gateway.url, seed)
            first = int(REQUESTS * SETTLED)
            asyncio.run(_with_faults(world, day, first))
            world.wait_idle(60)
            settled_bytes, settled_files = gateway.rss_bytes(), gateway.files()
            asyncio.run(_with_faults(world, day, REQUESTS - first))
            world.wait_idle(60)
            assert day.statuses.get(200, 0) > REQUESTS / 2, day.statuses
            assert gateway.rss_bytes() <= settled_bytes * GROWTH_MAX
            assert gateway.files() <= settled_files + FILES_SLACK
            assert _in_flight(gateway) == 0
            world.evidence.assert_one_end_a_grant()
            print(  # noqa: T201 - the figures of the run
                f"{REQUESTS} requests, {day.statuses}, memory {settled_bytes / 1e6:.0f} MB then "
                f"{gateway.rss_bytes() / 1e6:.0f} MB"
            )
        verified = subprocess.run(
            [sys.executable, "-m", "aibs", "replay", "--verify", "--json"],
            env={**world.clean_environment(), **world.settings()},
            cwd=tmp_path,
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert verified.returncode == 0, verified.stdout.decode()[-2000:]
