"""The incident of docs/incident.md, played with real processes on simulated nodes, and recorded.

    python -m tests.drills.incident tests/data/incident.ndjson.gz

A night job is killed while it holds the only big slot; a tenant fills the other box; an urgent
request waits for the dead job's lease to expire; the monitor is killed on the way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from aibs.errors import PlacementDenied
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from aibs.placement import open_placer
from aibs.settings import load
from tests.monitor_process import MonitorProcess, environment
from tests.valkey_server import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.eventstore.events import Event
    from aibs.placement import Placer

GB = 10**9
NAMESPACE = "fleet"
BIG, SMALL, TENANT = "llama3.3:70b", "qwen3:8b", "lab/vision:32b"
ROSTER = (
    f'[{{"worker_id":"answer","model":"{BIG}","roles":["answer"],"kind":"chat",'
    '"resident_weight_gb":47.2,"active_parameter_billions":70.6},'
    f'{{"worker_id":"triage","model":"{SMALL}","roles":["triage"],"kind":"chat",'
    '"resident_weight_gb":6.6,"active_parameter_billions":8.2}]'
)
TTL_S, HEARTBEAT_S = 6.0, 1.0
PATIENCE_S = 40.0


def _spec(name: str) -> SimSpec:
    models = (
        SimModel(BIG, 47_200_000_000),
        SimModel(SMALL, 6_600_000_000),
        SimModel(TENANT, 31 * GB),
    )
    return SimSpec(name, 110 * GB, models, num_parallel=1, max_loaded=4, load_seconds=0.6)


class Incident:
    """The stage: a server, two boxes, the settings of every process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = AsyncExitStack()
        self.settings: dict[str, str] = {}

    async def __aenter__(self) -> Incident:
        server = self._stack.enter_context(ValkeyServer())
        self._sim = await self._stack.enter_async_context(
            SimServer((_spec("box-c"), _spec("box-e")))
        )
        nodes = {"box-c": self._sim.url(0), "box-e": self._sim.url(1)}
        self.settings = {
            **environment(server.url, NAMESPACE, nodes),
            "AIBS_MODEL_ADMISSION_WORKER_ROSTER": ROSTER,
            "AIBS_MODEL_CLUSTER_ENABLED": "true",
            "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": "60,60",
            "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": "1,1",
            "AIBS_MODEL_CLUSTER_ACTIVE_LEASE_TTL_SECONDS": str(TTL_S),
            "AIBS_MODEL_CLUSTER_HEARTBEAT_INTERVAL_SECONDS": str(HEARTBEAT_S),
            "AIBS_MODEL_CLUSTER_DRAIN_SECONDS": "1",
            "AIBS_DATA_DIR": str(self._directory),
        }
        client = commands(await open_client(server.url, data_dir=self._directory, purpose="read"))
        self._stack.push_async_callback(client.aclose)
        self._log = Log(client, Keys(NAMESPACE))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def until(self, what: str, condition: Callable[[list[Event]], bool]) -> None:
        """Wait for what the log says."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                # The log is another process's: there is nothing to be woken by.
                while not condition([event async for event in self._log.read()]):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"never: {what}") from None

    def monitor(self, name: str) -> MonitorProcess:
        """A monitor, running."""
        return self._stack.enter_context(MonitorProcess(self.settings, self._directory, name))

    def night_job(self) -> subprocess.Popen[bytes]:
        """A process that holds a lease until it is killed."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.drills.incident", "--night-job"],
            env={
                **os.environ,
                **self.settings,
                "AIBS_NAMESPACE": "batch",
                "PYTHONPATH": str(Path(__file__).parents[2]),
            },
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
        )
        self._stack.callback(_end, process)
        return process

    async def tenant_loads(self) -> None:
        """Somebody who does not ask us, on the box that the night job left free."""
        grants = [e async for e in self._log.read() if e.type == "LeaseAcquired"]
        free = 1 if grants[-1].data["lease"]["node_id"] == "box-c" else 0
        async with httpx.AsyncClient(timeout=30) as client:
            await client.post(
                f"{self._sim.url(free)}/api/generate",
                json={"model": TENANT, "prompt": "", "keep_alive": "1h"},
            )

    async def play(self) -> None:
        """From the first election to the urgent request's end."""
        first = self.monitor("monitor-a")
        await self.until("both boxes seen", lambda events: _seen(events) == {"box-c", "box-e"})
        settings = load({**self.settings, "AIBS_NAMESPACE": "prod"}, None)
        async with open_placer(settings) as placer:
            async with placer.lease(model=SMALL, request_id="triage-1", timeout=10) as lease:
                await lease.prepare()
            job = self.night_job()
            await self.until("the night job has its model", _has("ModelLoaded", 2))
            await self.tenant_loads()
            await self.until("the tenant is seen", _sees(TENANT))
            await self.until("the night job renewed", _has("LeasesRenewed", 2))
            job.send_signal(signal.SIGKILL)
            job.wait()
            await self._denied(placer)
            urgent = asyncio.create_task(self._urgent(placer))
            await self.until("the urgent request waits", _has("LeaseQueued", 1))
            first.signal(signal.SIGKILL)
            self.monitor("monitor-b")
            await self.until("another monitor", _has("OwnerElected", 2))
            await urgent

    async def _denied(self, placer: Placer) -> None:
        try:
            async with placer.lease(model=BIG, request_id="chat-7", timeout=0):
                raise AssertionError("placed")
        except PlacementDenied:
            pass

    async def _urgent(self, placer: Placer) -> None:
        async with placer.lease(
            model=BIG, request_id="urgent-1", priority="high", timeout=PATIENCE_S
        ) as lease:
            await lease.prepare()
            await asyncio.sleep(2 * HEARTBEAT_S)

    async def record(self, path: Path) -> None:
        """Export the log with the command."""
        command = [sys.executable, "-m", "aibs", "replay", "--export", str(path)]
        done = await asyncio.to_thread(
            subprocess.run, command, env={**os.environ, **self.settings}, cwd=self._directory
        )
        assert done.returncode == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _seen(events: list[Event]) -> set[str]:
    return {event.data["node_id"] for event in events if event.type == "ResidencyObserved"}


def _has(type_: str, count: int) -> Callable[[list[Event]], bool]:
    return lambda events: sum(event.type == type_ for event in events) >= count


def _sees(model: str) -> Callable[[list[Event]], bool]:
    return lambda events: any(
        one["name"] == model
        for event in events
        if event.type == "ResidencyObserved"
        for one in event.data["models"]
    )


async def _night_job() -> None:
    async with (
        open_placer(load()) as placer,
        placer.lease(model=BIG, request_id="nightly-42", timeout=10) as lease,
    ):
        await lease.prepare()
        await asyncio.sleep(PATIENCE_S)


async def _main(path: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Incident(Path(directory)) as incident:
            await incident.play()
            await incident.record(path)


if __name__ == "__main__":
    asyncio.run(
        _night_job() if sys.argv[1] == "--night-job" else _main(Path(sys.argv[1]).absolute())
    )
