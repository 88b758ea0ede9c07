"""What the demo does, step by step. Each step waits for what the log says, never for a time."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from aibs.audit.service import AuditOptions, audit
from aibs.clock import SystemClock
from aibs.demo.children import Told
from aibs.demo.fleet import NODES, environment
from aibs.demo.report import Takeover, event_line
from aibs.demo.requests import CROWD, at_once, one_by_one
from aibs.errors import AibsError
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.embedded import EmbeddedValkey
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.state import LiveState
from aibs.ollama.sim.server import SimServer
from aibs.settings import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from aibs.audit.document import AuditDocument
    from aibs.demo.requests import Answered
    from aibs.eventstore.events.envelope import Event
    from aibs.eventstore.state import TermState
    from aibs.settings import Settings

STEP_TIMEOUT_S = 30.0
"""Longer than any step takes on a slow machine; a step that takes longer has failed."""

LOOK_EVERY_S = 0.05
LAST_EVENTS = 60
FOLLOW_BLOCK_MS = 1000


class DemoFailed(AibsError):
    """A step of the demo did not come about."""


class Demo:
    """The running demo: enter it, take the steps, leave it; nothing remains."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._stack = AsyncExitStack()
        self._clock = SystemClock()
        self._children: list[Told] = []
        self.directory = Path()
        self.url = ""
        self.environment: dict[str, str] = {}

    async def __aenter__(self) -> Demo:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="aibs-demo-"))
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        nodes = await self._stack.enter_async_context(SimServer(NODES))
        data_dir = self.directory / "data"
        self.environment = environment(data_dir, nodes.urls)
        self.settings: Settings = load(self.environment, env_file=None)
        embedded = await EmbeddedValkey.ensure(data_dir)
        self._stack.push_async_callback(embedded.close)
        self._keys = Keys(self.settings.model_cluster_namespace)
        client = commands(await open_client("embedded", data_dir=data_dir, purpose="read"))
        self._stack.push_async_callback(client.aclose)
        self._live, self.log = LiveState(client, self._keys), Log(client, self._keys)
        follower = commands(await open_client("embedded", data_dir=data_dir, purpose="follow"))
        self._stack.push_async_callback(follower.aclose)
        self._follower = Log(follower, self._keys)
        self._tell(f"A Valkey and {len(nodes.urls)} simulated nodes run on this machine:")
        for spec, url in zip(NODES, nodes.urls, strict=True):
            self._tell(f"  {spec.name}  {url}")

    async def elect(self) -> TermState:
        """Start two monitors; the first is elected, the second stands by."""
        await self._start_child("monitor A", "monitor")
        await self._fresh_under(0)
        second = await self._start_child("monitor B", "monitor")
        term = await self._live.term()
        assert term is not None
        self._tell(f"Monitor A owns the term with fence {term.fence}; monitor B stands by.")
        await self._until(lambda: _is(second.said("standing_by")), "the standby stands by")
        return term

    async def audit(self) -> AuditDocument:
        """The audit of this fleet, as `aibs audit` makes it."""
        return await audit(
            self.settings,
            AuditOptions(),
            self._clock,
            stop=asyncio.Event(),
            tell=self._tell,
        )

    async def take_over(self, old: TermState) -> Takeover:
        """Kill the owner, start the gateway, and wait until the standby has seen every node."""
        killed_ms = self._clock.boottime_ms()
        owner = self._children.pop(0)
        owner.kill()
        await owner.wait()
        self._tell(f"Monitor A killed (kill -9). Its term runs for up to {self._ttl()} s more ...")
        await self._start_child("the gateway", "serve --port 0")
        new = await self._elected_after(old)
        elected_ms = self._clock.boottime_ms()
        await self._fresh_under(old.fence)
        fresh_ms = self._clock.boottime_ms()
        return Takeover(old, new, elected_ms - killed_ms, fresh_ms - killed_ms)

    async def ask(self) -> AsyncIterator[Answered]:
        """Requests through the gateway: of each kind one, then more at once than there are slots.

        Raises RequestFailed.
        """
        gateway = self._children[-1]
        await self._until(lambda: _is(gateway.said("gateway_started")), "the gateway listens")
        started = gateway.said("gateway_started")
        assert started is not None
        self.url = f"http://{started['host']}:{started['port']}"
        self._tell(f"The gateway serves Ollama's and OpenAI's APIs at {self.url}; by plain HTTP:")
        for answered in await one_by_one(self.url):
            yield answered
        slots = sum(node.max_parallel_requests or 0 for node in self.settings.fleet().nodes)
        self._tell(f"{CROWD} requests at once for the role answer, on {slots} slots:")
        for answered in await at_once(self.url):
            yield answered

    async def last_events(self) -> Sequence[Event]:
        """The end of the log."""
        return await self.log.newest(LAST_EVENTS)

    async def follow(self) -> None:
        """Nothing more to do: wait, and notice a monitor that ends by itself."""
        async with aclosing(
            self._follower.follow(await self.log.last_id(), block_ms=FOLLOW_BLOCK_MS)
        ) as events:
            async for event in events:
                self._tell(event_line(event))

    def _ttl(self) -> str:
        return f"{self.settings.monitor_lease_ttl_ms / 1000:.12g}"

    async def _fresh_under(self, fence: int) -> None:
        """Every node has a fresh, healthy stamp of a fence above this one."""
        fingerprint = self.settings.fleet().fingerprint

        async def seen() -> bool:
            stamps, now_ms = await self._live.stamps(), await self._live.server_now_ms()
            return all(
                (stamp := stamps.get(spec.name)) is not None
                and stamp.observed_fence > fence
                and stamp.healthy
                and stamp.fresh(
                    now_ms,
                    staleness_ms=self.settings.max_residency_staleness_ms,
                    fingerprint=fingerprint,
                )
                for spec in NODES
            )

        await self._until(seen, "every node is observed")

    async def _elected_after(self, old: TermState) -> TermState:
        async def elected() -> bool:
            term = await self._live.term()
            return term is not None and term.owner is not None and term.fence > old.fence

        await self._until(elected, "the standby is elected")
        term = await self._live.term()
        assert term is not None
        return term

    async def _start_child(self, name: str, command: str) -> Told:
        child = Told(name, command, self.environment, self.directory)
        self._children.append(await self._stack.enter_async_context(child))
        return child

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                while not await condition():
                    for child in self._children:
                        if failure := child.failure():
                            raise DemoFailed(f"Waiting until {what}: {failure}.")
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError as error:
            raise DemoFailed(f"Waited {STEP_TIMEOUT_S:.0f} s until {what}, in vain.") from error


async def _is(found: object) -> bool:
    return found is not None
