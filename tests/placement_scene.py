"""A fleet that serves: a monitor's process, nodes that count, placers, and work that never stops.

The nodes run more at a time than they are declared to: what overcommits them is seen, not queued.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

from aibs import settings
from aibs.errors import LeaseLost, PlacementDenied
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.placement_state import PlacementState
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from aibs.placement import Placer, open_placer
from tests.monitor_process import LOOK_EVERY_S, PATIENCE_S, MonitorProcess, Pool, environment, watch
from tests.property.grant_audit import GrantAudit
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from aibs.placement import HeldLease
    from tests.valkey_server import ValkeyServer

GB = 10**9
NAMESPACE = "drill"
MODEL = "llama3:8b"
NODES = ("box-c", "box-e")
SLOTS = 1
TTL_S = 4.0
HEARTBEAT_S = 0.5
DRAIN_S = 0.5
TOKENS = 8
"""A short answer; one that is not limited takes a minute."""

SPECS = tuple(
    SimSpec(
        name,
        90 * GB,
        (SimModel(MODEL, 7 * GB, loaded=True),),
        num_parallel=16,
        reply_tokens=6_000,
        token_seconds=0.01,
    )
    for name in NODES
)


def settings_of(url: str, nodes: dict[str, str], directory: Path) -> dict[str, str]:
    """What the monitor, the placers and the holders' processes are set to."""
    return {
        **environment(url, NAMESPACE, nodes),
        "AIBS_MODEL_CLUSTER_ENABLED": "true",
        "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": ",".join(["80"] * len(nodes)),
        "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": ",".join([str(SLOTS)] * len(nodes)),
        "AIBS_MODEL_CLUSTER_ACTIVE_LEASE_TTL_SECONDS": str(TTL_S),
        "AIBS_MODEL_CLUSTER_HEARTBEAT_INTERVAL_SECONDS": str(HEARTBEAT_S),
        "AIBS_MODEL_CLUSTER_DRAIN_SECONDS": str(DRAIN_S),
        "AIBS_MODEL_CLUSTER_QUEUE_GRACE_SECONDS": "4",
        "AIBS_MODEL_CLUSTER_SWAP_MIN_RESIDENCY_SECONDS": "0.5",
        "AIBS_MODEL_CLUSTER_SWAP_MAX_WAIT_SECONDS": "2",
        "AIBS_DATA_DIR": str(directory),
    }


def _question(options: dict[str, int]) -> dict[str, object]:
    return {"model": MODEL, "prompt": "hello", "stream": False, "options": options}


async def generate_short(client: httpx.AsyncClient, base_url: str) -> None:
    """Work of a moment."""
    answer = await client.post(f"{base_url}/api/generate", json=_question({"num_predict": TOKENS}))
    answer.raise_for_status()


async def generate_long(base_url: str) -> None:
    """Work that ends in time only by being cancelled."""
    async with httpx.AsyncClient(timeout=120) as client:
        await client.post(f"{base_url}/api/generate", json=_question({}))


async def until_true(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for what has no event; AssertionError after a patience that only a fault reaches."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():  # noqa: ASYNC110 - servers and logs have no event here
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


async def renewed(lease: HeldLease) -> None:
    """Wait for the answer to a heartbeat of now."""
    before = lease.trusted_until_ms

    async def longer() -> bool:
        return lease.trusted_until_ms > before

    await until_true(longer, "the lease renewed")


@dataclass
class Traffic:
    """Tasks that ask, generate and give back, one request after the other. Counts what happened."""

    placers: list[Placer]
    served: int = 0
    entered: int = 0
    inside: int = 0
    refusals: list[PlacementDenied] = field(default_factory=list)
    losses: list[LeaseLost] = field(default_factory=list)
    ending: bool = False

    async def work(self, placer: Placer, timeout: float) -> None:
        """One task."""
        async with httpx.AsyncClient(timeout=20) as client:
            while not self.ending:
                try:
                    async with placer.lease(model=MODEL, timeout=timeout) as lease:
                        await self._generate(client, lease.node_base_url)
                except PlacementDenied as denied:
                    self.refusals.append(denied)
                    await asyncio.sleep(0.02)
                except LeaseLost as lost:
                    self.losses.append(lost)

    async def _generate(self, client: httpx.AsyncClient, base_url: str) -> None:
        self.entered += 1
        self.inside += 1
        try:
            await generate_short(client, base_url)
            self.served += 1
        finally:
            self.inside -= 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Three tasks a placer: one that does not wait, and two that do."""
        async with asyncio.TaskGroup() as group:
            for placer in self.placers:
                for timeout in (0.0, 0.3, 1.0):
                    group.create_task(self.work(placer, timeout))
            try:
                yield
            finally:
                self.ending = True

    async def serves(self, more: int = 6) -> None:
        """Wait until so many more requests were served."""
        wanted = self.served + more

        async def enough() -> bool:
            return self.served >= wanted

        await until_true(enough, f"{more} more requests served; {self.reasons(-8)}")

    async def refuses(self, reason: str, more: int = 1) -> PlacementDenied:
        """Wait for that many more denials of that reason: the newest."""
        before = len(self.refusals)

        def found() -> list[PlacementDenied]:
            return [one for one in self.refusals[before:] if one.reason == reason]

        async def enough() -> bool:
            return len(found()) >= more

        await until_true(enough, f"denied as {reason}; {self.reasons(before)}")
        return found()[-1]

    async def rests(self) -> None:
        """Wait until nobody is at a node."""

        async def nobody() -> bool:
            return self.inside == 0

        await until_true(nobody, "all work ended")

    def reasons(self, start: int = 0) -> str:
        """The reasons of the denials from the given one on, for a failure's message."""
        counts: dict[str, int] = {}
        for one in self.refusals[start:]:
            counts[one.reason] = counts.get(one.reason, 0) + 1
        return f"denials: {counts}, losses: {[one.why for one in self.losses]}"


@dataclass
class Scene:
    """All of it. `proxy` is between the placers and the server; the monitor goes straight, unless
    the scene was made otherwise.
    """

    server: ValkeyServer
    proxy: TcpProxy
    nodes: SimServer
    pool: Pool
    state: PlacementState
    environ: dict[str, str]
    directory: Path
    stack: AsyncExitStack
    owner: MonitorProcess

    async def placer(self, **changes: str) -> Placer:
        """An open placer, closed with the scene."""
        values = {**self.environ, "AIBS_VALKEY_URL": self.proxy.url, **changes}
        return await self.stack.enter_async_context(open_placer(settings.load(values, None)))

    def monitor(self, name: str) -> MonitorProcess:
        """One more monitor, ended with the scene."""
        return self.stack.enter_context(MonitorProcess(self.environ, self.directory, name))

    async def move_to(self, server: ValkeyServer) -> None:
        """Another server stands at the address from now on."""
        self.proxy.upstream = server.port
        self.proxy.mode = "cut"
        self.proxy.mode = "pass"
        self.server = server
        self.pool, close = await watch(server.url, NAMESPACE, self.directory)
        self.stack.push_async_callback(close)
        client = commands(await open_client(server.url, data_dir=self.directory, purpose="read"))
        self.stack.push_async_callback(client.aclose)
        self.state = PlacementState(client, Keys(NAMESPACE))

    async def traffic(self, placers: int = 2) -> Traffic:
        """Work of so many placers, each a holder of its own."""
        return Traffic([await self.placer() for _ in range(placers)])

    def permitted(self) -> None:
        """What reached the nodes never was more than they are declared to do at a time."""
        for number, name in enumerate(NODES):
            peak = self.nodes.node(number).stats.peak_generations_on_node
            assert peak <= SLOTS, f"{name} ran {peak} at a time"

    async def free(self) -> None:
        """Wait until no lease and no waiter is left."""

        async def nothing() -> bool:
            parts = await self.state.read_all()
            return not parts.leases and not parts.waiters

        await until_true(nothing, "no lease and no waiter left")

    async def audited(self) -> GrantAudit:
        """The log, every grant of it recomputed: each one has exactly one end."""
        audit = GrantAudit()
        granted = set()
        for event in await self.pool.events():
            audit.feed(event)
            if event.type == "LeaseAcquired":
                granted.add(event.data["lease"]["lease_id"])
        assert set(audit.ended) == granted, "a grant without an end"
        return audit


@asynccontextmanager
async def scene(
    server: ValkeyServer, directory: Path, *, monitor_by_proxy: bool = False
) -> AsyncIterator[Scene]:
    """Open for business: every node was seen under a living owner."""
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(SimServer(SPECS))
        proxy = await stack.enter_async_context(TcpProxy(server.port))
        url = proxy.url if monitor_by_proxy else server.url
        environ = settings_of(url, dict(zip(NODES, nodes.urls, strict=True)), directory)
        pool, close = await watch(server.url, NAMESPACE, directory)
        stack.push_async_callback(close)
        client = commands(await open_client(server.url, data_dir=directory, purpose="read"))
        stack.push_async_callback(client.aclose)
        monitor = stack.enter_context(MonitorProcess(environ, directory, "monitor"))
        elected = await pool.owner_of(monitor)
        await pool.observed_under(elected.fence or 0, NODES)
        placers = await stack.enter_async_context(AsyncExitStack())
        state = PlacementState(client, Keys(NAMESPACE))
        yield Scene(server, proxy, nodes, pool, state, environ, directory, placers, monitor)
