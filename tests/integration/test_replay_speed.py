"""A log played back at a pace: each line when its time has come, and no later together."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tests.incident_log import PATH as INCIDENT
from tests.integration.in_loop import in_loop
from tests.recorded_pool import RecordedPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SPEED = 10
PATIENCE_S = 60.0


@asynccontextmanager
async def played(*arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aibs", "replay", *arguments,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def lines_of(process: asyncio.subprocess.Process) -> list[tuple[float, Any]]:
    """Each line with the moment at which it could be read."""
    assert process.stdout is not None
    return [(time.monotonic(), json.loads(line)) async for line in process.stdout]


def ms_of(event: Any) -> float:
    return datetime.fromisoformat(event["at"]).timestamp() * 1000


@in_loop
async def test_ten_times_as_fast_each_event_comes_no_sooner_than_its_time() -> None:
    whole = ("--from", str(INCIDENT), "--json")
    async with played(*whole) as at_once:
        expected = [event for _, event in await lines_of(at_once)]
    async with played(*whole, "--speed", f"{SPEED}x") as process:
        shown = await lines_of(process)
        assert await process.wait() == 0
    assert [event for _, event in shown] == expected
    began, first = shown[0]
    for moment, event in shown:
        due_s = (ms_of(event) - ms_of(first)) / SPEED / 1000
        # The first line was read a little after it was written: so much sooner may others seem.
        assert moment - began >= due_s - 0.25, event["id"]
    # Lines are shown when they are due, and not together at the end: 1.3 s of 12.6.
    assert 0.9 <= shown[-1][0] - shown[0][0] < 8


@in_loop
async def test_filters_and_ranges_hold_at_a_pace_on_the_server_too(
    valkey_url: str, namespace: str
) -> None:
    pool = await RecordedPool.open(valkey_url, namespace)
    try:
        await pool.begin()
        await pool.queue(5)
        settings = pool.settings(valkey_url)
        async with played(
            "--type", "LeaseAcquired", "--speed", "1000x", "--json", **settings
        ) as it:
            shown = [event for _, event in await lines_of(it)]
            assert await it.wait() == 0
        assert [event["type"] for event in shown] == ["LeaseAcquired"] * 2
    finally:
        await pool.close()


@in_loop
async def test_a_playback_that_would_last_for_hours_is_ended_by_ctrl_c_and_no_traceback() -> None:
    async with played("--from", str(INCIDENT), "--speed", "0.001x") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"PoolCreated" in await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        assert b"Traceback" not in await process.stderr.read()
