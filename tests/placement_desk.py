"""A declared fleet without a monitor's process: seen once, and for long enough. For placers."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from aibs.clock import SystemClock
from aibs.codec import dumps
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.placement_state import PlacementState
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.eventstore.replies import Elected
from aibs.fleet import Fleet, Node, Worker
from aibs.lanes import lane_arguments
from aibs.placement import Placer, PlacerTiming
from aibs.placement.session import open_identity
from aibs.placement.valkey import ValkeyBackend
from aibs.placement.values import Limits
from tests.property.grant_audit import GrantAudit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from aibs.eventstore.events import Event
    from aibs.placement import Backend

GB = 10**9
MODEL = "llama3:8b"
FRESH_MS = 600_000
LIMITS = Limits(
    staleness_ms=FRESH_MS,
    grace_ms=10_000,
    drain_ms=1_000,
    swap_min_ms=1_000,
    swap_max_ms=60_000,
    queue_max=400,
    heartbeat_ms=200,
)
TIMING = PlacerTiming(ttl_ms=4_000, heartbeat_ms=200, poll_ms=100, wait_ms=30_000, load_ms=20_000)
ANSWER_S = 0.5
WORKER = Worker(
    "answer",
    MODEL,
    ("answer",),
    resident_weight_bytes=7 * GB,
    active_parameter_billions=Decimal(8),
)


@dataclass
class Desk:
    """The pool, and placers on it by whichever way."""

    url: str
    keys: Keys
    fleet: Fleet
    log: Log
    state: PlacementState
    directory: Path
    overrides: Mapping[str, str] | None
    stack: AsyncExitStack

    async def backend(self, url: str = "", holder: str = "holder") -> ValkeyBackend:
        """A back end on clients of its own, closed with the desk."""
        clients = [
            commands(
                await open_client(
                    url or self.url, data_dir=self.directory, purpose=purpose, timeout_s=ANSWER_S
                )
            )
            for purpose in ("write", "follow")
        ]
        pool = CoordinationPool(
            clients[0], self.keys, holder, recovery_ms=1_000, overrides=self.overrides
        )
        await pool.open()
        backend = ValkeyBackend(
            pool, Log(clients[1], self.keys), LIMITS, SystemClock(), clients=clients
        )
        self.stack.push_async_callback(backend.aclose)
        return backend

    async def placer(
        self,
        url: str = "",
        *,
        timing: PlacerTiming = TIMING,
        around: Callable[[Backend], Backend] = lambda backend: backend,
    ) -> Placer:
        """A placer, not yet opened. `around` may put something between it and its back end."""
        session = open_identity("env", "test")
        backend = await self.backend(url, session.holder)
        return Placer(around(backend), self.fleet, session, timing)

    async def events(self, *types: str) -> list[Event]:
        """The log, or what of it is of these types."""
        return [event async for event in self.log.read() if not types or event.type in types]

    async def counts(self) -> dict[str, int]:
        """How many events of each type."""
        found: dict[str, int] = {}
        for event in await self.events():
            found[event.type] = found.get(event.type, 0) + 1
        return found

    async def nothing_left(self) -> None:
        """No lease, no waiter; every grant adds up and has exactly one end."""
        parts = await self.state.read_all()
        assert not parts.leases, "an orphan lease"
        assert not parts.waiters, "an orphan waiter"
        audit = GrantAudit()
        events = await self.events()
        for event in events:
            audit.feed(event)
        granted = {e.data["lease"]["lease_id"] for e in events if e.type == "LeaseAcquired"}
        assert set(audit.ended) == granted, "a grant without an end"


@asynccontextmanager
async def visit(table: Desk) -> AsyncIterator[Desk]:
    """The same pool from another event loop: for its placers."""
    async with AsyncExitStack() as stack:
        yield replace(table, stack=stack)


@asynccontextmanager
async def desk(
    url: str,
    namespace: str,
    directory: Path,
    *,
    node_url: str = "http://box-c:11434",
    slots: int = 2,
    overrides: Mapping[str, str] | None = None,
) -> AsyncIterator[Desk]:
    """One node with some slots, open for ten minutes."""
    fleet = Fleet(nodes=(Node("box-c", node_url, 80 * GB, slots),), workers=(WORKER,))
    keys = Keys(namespace)
    async with AsyncExitStack() as stack:
        client = commands(await open_client(url, data_dir=directory, purpose="write"))
        stack.push_async_callback(client.aclose)
        owner = CoordinationPool(client, keys, "owner", recovery_ms=1_000, overrides=overrides)
        await owner.open()
        term = await owner.elect("first", "owner", ttl_ms=FRESH_MS, mono_ms=1)
        assert isinstance(term, Elected)
        await owner.declare(
            "owner",
            term.fence,
            revision=0,
            fingerprint=fleet.fingerprint,
            document=dumps(fleet.document()),
            changes=b"[]",
            lanes=lane_arguments(fleet),
        )
        poll = PollRecord("box-c", term.fence, 1, node_url, 1, True, "", 1, False, dumps([]), b"")
        limits = ObserveLimits(2, FRESH_MS, 30_000, 1_000, 600_000)
        await owner.observe("owner", term.fence, fleet.fingerprint, [poll], limits)
        state, log = PlacementState(client, keys), Log(client, keys)
        inner = await stack.enter_async_context(AsyncExitStack())
        yield Desk(url, keys, fleet, log, state, directory, overrides, inner)
