"""What a monitor costs: its share of a core, its memory and the oldest stamp of a large fleet, and
the idle cost of a small one. Real processes; figures of one run on one machine, for comparison.

    python benchmarks/monitor.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from aibs.codec import dumps_pretty, loads
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.embedded import EmbeddedValkey
from aibs.eventstore.keys import Keys
from aibs.eventstore.state import LiveState

POLL_INTERVAL_S = 3.0
FIRST_ROUND_S = 60.0
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Cost:
    """One fleet under one monitor."""

    nodes: int
    watched_s: float
    cpu_share_percent: float
    peak_rss_mb: float
    oldest_stamp_ms: int
    polls_per_second: float


def _cpu_s_and_rss_mb(pid: int) -> tuple[float, float]:
    """A process's CPU time, and its resident memory."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        fields = stat.read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        pages_mb = int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        return (int(fields[11]) + int(fields[12])) / ticks, pages_mb
    shown = subprocess.check_output(["ps", "-o", "time=,rss=", "-p", str(pid)], text=True)  # noqa: S607
    clock, rss_kb = shown.split()
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds, int(rss_kb) / 1000


def _simulated(count: int) -> tuple[subprocess.Popen[bytes], list[str]]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "aibs", "node", "sim", "--port", "0", "--vram-gb", "90"),
            *("--model", "llama3:8b=7GB", "--loaded", "llama3:8b"),
            *("--count", str(count), "--json"),
        ],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    return process, loads(process.stdout.readline())["urls"]


async def measure(count: int, watched_s: float) -> Cost:
    """Watch a fleet of `count` nodes for a while, once all were seen."""
    with tempfile.TemporaryDirectory(prefix="aibs-bench-") as directory:
        data_dir = Path(directory)
        nodes, urls = _simulated(count)
        embedded = await EmbeddedValkey.ensure(data_dir)
        monitor = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this loop yet
            [sys.executable, "-m", "aibs", "monitor"],
            env={
                **{n: v for n, v in os.environ.items() if not n.startswith("AIBS_")},
                "AIBS_DATA_DIR": directory,
                "AIBS_MODEL_CLUSTER_NODE_IDS": ",".join(f"box-{n:04}" for n in range(count)),
                "AIBS_MODEL_CLUSTER_NODE_URLS": ",".join(urls),
                "AIBS_LOG_LEVEL": "error",
            },
            cwd=directory,
        )
        try:
            client = commands(await open_client("embedded", data_dir=data_dir, purpose="read"))
            cost = await _watch(LiveState(client, Keys("fleet")), monitor.pid, count, watched_s)
            await client.aclose()
        finally:
            monitor.send_signal(signal.SIGTERM)
            monitor.wait()
            nodes.kill()
            nodes.communicate()
            await embedded.close()
        return cost


async def _watch(live: LiveState, pid: int, count: int, watched_s: float) -> Cost:
    async with asyncio.timeout(FIRST_ROUND_S):
        while (await _look(live, count))[0] is None:  # noqa: ASYNC110 - it is in Valkey
            await asyncio.sleep(LOOK_EVERY_S)
    _, polls_before = await _look(live, count)
    (cpu_before, _), began = _cpu_s_and_rss_mb(pid), time.monotonic()
    oldest_ms, peak_rss_mb = 0, 0.0
    while time.monotonic() - began < watched_s:
        age_ms, polls = await _look(live, count)
        oldest_ms = max(oldest_ms, age_ms or 0)
        cpu_after, rss_mb = _cpu_s_and_rss_mb(pid)
        peak_rss_mb = max(peak_rss_mb, rss_mb)
        await asyncio.sleep(LOOK_EVERY_S)
    took_s = time.monotonic() - began
    return Cost(
        nodes=count,
        watched_s=round(took_s, 1),
        cpu_share_percent=round((cpu_after - cpu_before) / took_s * 100, 2),
        peak_rss_mb=round(peak_rss_mb, 1),
        oldest_stamp_ms=oldest_ms,
        polls_per_second=round((polls - polls_before) / took_s, 1),
    )


async def _look(live: LiveState, count: int) -> tuple[int | None, int]:
    """The oldest stamp's age once every node has one, and the polls recorded so far."""
    stamps, now_ms = await live.stamps(), await live.server_now_ms()
    ages = [age for stamp in stamps.values() if (age := stamp.age_ms(now_ms)) is not None]
    polls = sum(stamp.seq for stamp in stamps.values())
    return (max(ages) if len(ages) == count else None), polls


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200 nodes for 10 s, not 1,000 for 60")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    fleet = (200, 10.0) if options.quick else (1000, 60.0)
    idle_s = 10.0 if options.quick else 30.0
    large, idle = asyncio.run(measure(*fleet)), asyncio.run(measure(2, idle_s))
    if options.json:
        print(dumps_pretty({"fleet": asdict(large), "idle": asdict(idle)}))
        return
    for name, cost in (("fleet", large), ("idle", idle)):
        print(
            f"{name}: {cost.nodes} nodes, {cost.polls_per_second} polls/s for {cost.watched_s} s: "
            f"{cost.cpu_share_percent} % of a core, {cost.peak_rss_mb} MB, "
            f"oldest stamp {cost.oldest_stamp_ms} ms"
        )


if __name__ == "__main__":
    main()
