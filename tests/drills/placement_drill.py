"""Many holders on few nodes, killed, paused and cut off at random: the nodes count the harm."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aibs.codec import loads
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from tests.monitor_process import MonitorProcess, environment
from tests.property.grant_audit import GrantAudit
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from aibs.eventstore.events import Event
    from tests.valkey_server import ValkeyServer

GB = 10**9
NAMESPACE = "drill"
NODES = 4
SLOTS = 2
BUDGET = 30 * GB
"""Half of what the node has: Ollama itself puts models out long before its memory is full."""

MODELS = {"small:7b": 8, "medium:13b": 12, "large:30b": 20}
TENANT = "theirs/model:4b"
TENANT_BYTES = 4 * GB
TTL_S = 3.0
HEARTBEAT_S = 0.5
PAUSE_S = TTL_S - HEARTBEAT_S - 1.0
"""A pause that no heartbeat misses its deadline by."""

ROSTER = (
    "["
    + ",".join(
        f'{{"worker_id":"{name.partition(":")[0]}","model":"{name}","roles":["any"],'
        f'"kind":"chat","resident_weight_gb":{size},"active_parameter_billions":{size}}}'
        for name, size in MODELS.items()
    )
    + "]"
)


def specs() -> tuple[SimSpec, ...]:
    """Four nodes; a tenant's model lives on the first for good."""
    installed = tuple(SimModel(name, size * GB) for name, size in MODELS.items())
    tenant = SimModel(TENANT, TENANT_BYTES, loaded=True)
    return tuple(
        SimSpec(
            f"box-{number}",
            2 * BUDGET,
            (*installed, tenant) if number == 0 else installed,
            # More than its slots: the node counts what exceeds them, and does not queue it.
            num_parallel=4 * SLOTS,
            max_loaded=8,
            load_seconds=0.05,
            unload_seconds=0.02,
            token_seconds=0.005,
        )
        for number in range(NODES)
    )


@dataclass
class Outcome:
    """What the drill saw: outcomes by word, the log, and each node's counts."""

    outcomes: dict[str, int] = field(default_factory=dict)
    slowest_ms: int = 0
    events: list[Event] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    kills: int = 0
    pauses: int = 0
    cuts: int = 0


class Holder:
    """One process of tasks, behind a proxy of its own."""

    def __init__(self, settings: dict[str, str], directory: Path, name: str, tasks: int) -> None:
        self._settings = settings
        self._directory = directory
        self._out = directory / f"{name}.out"
        self._err = directory / f"{name}.err"
        self._tasks = tasks
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """A new process; what an earlier one printed stays."""
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.drills.holder", str(self._tasks), *MODELS],
                env={
                    **os.environ,
                    **self._settings,
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                },
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send it one."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> None:
        """Wait until it is gone."""
        assert self._process is not None
        await asyncio.to_thread(self._process.wait, 30)

    def kill(self) -> None:
        """Leave nothing behind."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self._process.wait()

    def said(self) -> list[dict[str, Any]]:
        """Its lines; one that a kill cut short is no line."""
        lines = []
        for line in self._out.read_bytes().splitlines():
            try:
                lines.append(loads(line))
            except ValueError:
                continue
        return lines

    def complaints(self) -> str:
        """What it printed to its standard error."""
        return self._err.read_text("utf-8", "replace")


async def drill(
    server: ValkeyServer, directory: Path, *, processes: int, tasks: int, seconds: float, seed: int
) -> Outcome:
    """Run it. The seed decides what happens to whom."""
    rng = random.Random(seed)
    result = Outcome()
    async with AsyncExitStack() as stack:
        sim = await stack.enter_async_context(SimServer(specs()))
        nodes = {f"box-{number}": sim.url(number) for number in range(NODES)}
        settings = {
            **environment(server.url, NAMESPACE, nodes),
            "AIBS_MODEL_ADMISSION_WORKER_ROSTER": ROSTER,
            "AIBS_MODEL_CLUSTER_ENABLED": "true",
            "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": ",".join([str(BUDGET // GB)] * NODES),
            "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": ",".join([str(SLOTS)] * NODES),
            "AIBS_MODEL_CLUSTER_ACTIVE_LEASE_TTL_SECONDS": str(TTL_S),
            "AIBS_MODEL_CLUSTER_HEARTBEAT_INTERVAL_SECONDS": str(HEARTBEAT_S),
            "AIBS_MODEL_CLUSTER_DRAIN_SECONDS": "0.5",
            "AIBS_MODEL_CLUSTER_QUEUE_GRACE_SECONDS": "3",
            "AIBS_MODEL_CLUSTER_SWAP_MIN_RESIDENCY_SECONDS": "0.5",
            "AIBS_MODEL_CLUSTER_SWAP_MAX_WAIT_SECONDS": "2",
            "AIBS_DATA_DIR": str(directory),
        }
        stack.enter_context(MonitorProcess(settings, directory, "monitor"))
        client = commands(await open_client(server.url, data_dir=directory, purpose="read"))
        stack.push_async_callback(client.aclose)
        log = Log(client, Keys(NAMESPACE))
        await _until_seen(log, NODES)
        holders = []
        for number in range(processes):
            proxy = await stack.enter_async_context(TcpProxy(server.port))
            own = {**settings, "AIBS_VALKEY_URL": proxy.url, "AIBS_NAMESPACE": f"env-{number % 4}"}
            holder = Holder(own, directory, f"holder-{number}", tasks)
            stack.callback(holder.kill)
            holder.start()
            holders.append((holder, proxy))
        await _trouble(holders, rng, seconds, result)
        for holder, proxy in holders:
            proxy.mode = "pass"
            holder.signal(signal.SIGTERM)
        for holder, _ in holders:
            await holder.ended()
        await asyncio.sleep(TTL_S + 1.5)
        result.events = [event async for event in log.read()]
        result.nodes = [sim.node(number).stats.document() for number in range(NODES)]
        for holder, _ in holders:
            assert "Traceback" not in holder.complaints(), holder.complaints()[-4000:]
            for line in holder.said():
                word = str(line["outcome"])
                result.outcomes[word] = result.outcomes.get(word, 0) + 1
                result.slowest_ms = max(result.slowest_ms, int(line["took_ms"]))
    return result


async def _until_seen(log: Log, nodes: int) -> None:
    async with asyncio.timeout(25):
        while True:
            seen = {e.data["node_id"] async for e in log.read() if e.type == "ResidencyObserved"}
            if len(seen) == nodes:
                return
            await asyncio.sleep(0.1)


async def _trouble(
    holders: list[tuple[Holder, TcpProxy]], rng: random.Random, seconds: float, result: Outcome
) -> None:
    """Kill, pause and cut off, one after the other."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    # Processes begin by importing: trouble before that hits nothing.
    await asyncio.sleep(min(3.0, seconds / 3))
    while loop.time() < until:
        holder, proxy = rng.choice(holders)
        match rng.choice(("kill", "pause", "cut")):
            case "kill":
                holder.signal(signal.SIGKILL)
                await holder.ended()
                holder.start()
                result.kills += 1
            case "pause":
                holder.signal(signal.SIGSTOP)
                await asyncio.sleep(rng.uniform(0.2, PAUSE_S))
                holder.signal(signal.SIGCONT)
                result.pauses += 1
            case "cut":
                proxy.mode = rng.choice(("cut", "drop_replies"))
                await asyncio.sleep(rng.uniform(0.1, 1.0))
                proxy.mode = "pass"
                result.cuts += 1
        await asyncio.sleep(rng.uniform(0.1, 0.6))


def judge(result: Outcome) -> None:
    """What must hold whatever happened. Raises AssertionError."""
    audit = GrantAudit()
    waits: dict[str, int] = {}
    for event in result.events:
        audit.feed(event)
        if event.type == "LeaseQueued":
            waits[event.data["waiter"]["request_key"]] = event.data["waiter"]["wait_deadline_ms"]
        elif event.type == "WaitEnded":
            deadline = waits.pop(event.data["request_key"])
            assert event.at_ms <= deadline + 3_500, "served or refused long after its deadline"
    assert audit.grants > 0, "nothing was granted: the drill shows nothing"
    assert not waits, f"waits that never ended: {waits}"
    granted = {e.data["lease"]["lease_id"] for e in result.events if e.type == "LeaseAcquired"}
    assert set(audit.ended) == granted, "a grant without an end"
    for number, node in enumerate(result.nodes):
        assert node["peak_generations_on_node"] <= SLOTS, f"box-{number} ran more than its slots"
        assert node["peak_resident_bytes"] <= BUDGET, f"box-{number} held more than its budget"
        assert TENANT not in node["evicted"], "a tenant's model was evicted"
        assert node["evicted"] == [], f"Ollama had to choose on box-{number}: {node['evicted']}"
    assert result.kills + result.pauses + result.cuts > 0
