"""One monitor keeps a large fleet fresh."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aibs.codec import loads
from tests.integration.in_loop import in_loop
from tests.monitor_process import MonitorProcess, Pool, assert_safe, environment, watch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.valkey_server import ValkeyServer

STALENESS_MS = 20_000
FIRST_ROUND_S = 40.0


def _nodes(count: int) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """A process that simulates so many nodes, and their URLs."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "aibs", "node", "sim", "--port", "0", "--vram-gb", "90"),
            *("--model", "llama3:8b=7GB", "--loaded", "llama3:8b"),
            *("--count", str(count), "--json"),
        ],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    urls = loads(process.stdout.readline())["urls"]
    return process, {f"box-{number:04}": url for number, url in enumerate(urls)}


async def _oldest_ms(pool: Pool, count: int) -> int:
    """The age of the oldest stamp; beyond any bound while a node has none."""
    stamps, now_ms = await pool.live.stamps(), await pool.live.server_now_ms()
    ages = [stamp.age_ms(now_ms) for stamp in stamps.values()]
    known = [age for age in ages if age is not None]
    return max(known) if len(known) == count else STALENESS_MS * 1000


@pytest.mark.parametrize(
    ("count", "watched_s"),
    [pytest.param(200, 10.0), pytest.param(1000, 60.0, marks=pytest.mark.soak)],
)
def test_a_large_fleet_stays_fresh_under_one_monitor(
    own_valkey: ValkeyServer, tmp_path: Path, count: int, watched_s: float
) -> None:
    @in_loop
    async def drill() -> None:
        process, nodes = _nodes(count)
        try:
            settings = environment(own_valkey.url, "scale", nodes)
            for name in [n for n in settings if "RESIDENCY" in n]:
                del settings[name]  # the defaults: polled every 3 s
            pool, close = await watch(own_valkey.url, "scale", tmp_path)
            with MonitorProcess(settings, tmp_path, "a"):
                async with asyncio.timeout(FIRST_ROUND_S):
                    while await _oldest_ms(pool, count) > STALENESS_MS:  # noqa: ASYNC110 - in Valkey
                        await asyncio.sleep(0.1)
                loop = asyncio.get_running_loop()
                until = loop.time() + watched_s
                while loop.time() < until:
                    assert await _oldest_ms(pool, count) <= STALENESS_MS
                    await asyncio.sleep(0.25)
                events = await pool.events()
                assert len([e for e in events if e.type == "OwnerElected"]) == 1
                assert not [e for e in events if e.type == "NodeHealthChanged"]
                assert_safe(events)
            await close()
        finally:
            process.kill()
            process.communicate()

    drill()
