"""A placer out of the settings: which back end, with which limits."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aibs.clock import SystemClock
from aibs.placement.asking import PlacerTiming
from aibs.placement.placer import Placer
from aibs.placement.session import open_identity
from aibs.placement.values import Limits
from aibs.settings.rules import ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aibs.clock import Clock
    from aibs.eventstore.commands import Commands
    from aibs.placement.backend import Backend
    from aibs.placement.values import Session
    from aibs.settings import Settings

ANSWER_TIMEOUT_S = 5.0
"""How long one call may take, and at most half of a heartbeat interval."""

OPENING_WAIT_S = 5.0
"""How long opening waits for the server: wrong settings are told at the start where it answers."""


@asynccontextmanager
async def open_placer(
    settings: Settings, *, role: str = "app", clock: Clock | None = None
) -> AsyncIterator[Placer]:
    """An open placer: on the shared fleet where cluster scheduling is enabled, else within this
    process. `role` says in events what the process is.

    Opens also while the coordination server is away: requests are then denied with
    `coordination_unavailable`, each after its own timeout, and served when the server is back.
    Raises what waiting does not mend: ConfigurationError and its kinds, PoolVersionMismatch; and
    CoordinationUnavailable where an embedded server does not start.
    """
    clock = clock or SystemClock()
    session = open_identity(settings.namespace, role)
    async with AsyncExitStack() as stack:
        backend = await _backend(settings, session, clock, stack)
        yield await stack.enter_async_context(
            Placer(backend, settings.fleet(), session, timing_of(settings), clock=clock)
        )


def timing_of(settings: Settings) -> PlacerTiming:
    """The placer's times."""
    return PlacerTiming(
        ttl_ms=settings.active_lease_ttl_ms,
        heartbeat_ms=settings.heartbeat_interval_ms,
        poll_ms=ms(settings.model_cluster_poll_interval_seconds),
        wait_ms=ms(settings.model_cluster_queue_max_wait_seconds),
        load_ms=settings.load_timeout_ms,
        grace_ms=settings.queue_grace_ms,
    )


def limits_of(settings: Settings) -> Limits:
    """What decisions take from their caller."""
    return Limits(
        staleness_ms=settings.max_residency_staleness_ms,
        grace_ms=settings.queue_grace_ms,
        drain_ms=settings.drain_ms,
        swap_min_ms=settings.swap_min_residency_ms,
        swap_max_ms=settings.swap_max_wait_ms,
        queue_max=settings.model_cluster_queue_max_waiters,
        heartbeat_ms=settings.heartbeat_interval_ms,
    )


async def _backend(
    settings: Settings, session: Session, clock: Clock, stack: AsyncExitStack
) -> Backend:
    """Imported where needed: a process without a cluster loads no client of a server."""
    if settings.model_cluster_enabled:
        return await _valkey(settings, session, clock, stack)
    from aibs.placement.memory import MemoryBackend

    return MemoryBackend(settings.fleet(), limits_of(settings), clock)


async def _valkey(
    settings: Settings, session: Session, clock: Clock, stack: AsyncExitStack
) -> Backend:
    from aibs.eventstore.embedded import EmbeddedValkey
    from aibs.placement.reaching import ReachedBackend

    if settings.model_pool_url == "embedded":
        embedded = await EmbeddedValkey.ensure(Path(settings.data_dir))
        stack.push_async_callback(embedded.close)
    backend = ReachedBackend(lambda: _reach(settings, session, clock), clock)
    stack.push_async_callback(backend.aclose)
    await backend.open(OPENING_WAIT_S)
    return backend


async def _reach(settings: Settings, session: Session, clock: Clock) -> Backend:
    """Connect, and open the pool. Raises what `open_client` and CoordinationPool.open raise."""
    from aibs.eventstore.batching import batched
    from aibs.eventstore.commands import commands
    from aibs.eventstore.connection import open_client
    from aibs.eventstore.keys import Keys
    from aibs.eventstore.log import Log
    from aibs.eventstore.pool import CoordinationPool
    from aibs.placement.valkey import ValkeyBackend

    url, data_dir = settings.model_pool_url, Path(settings.data_dir)
    timeout_s = min(ANSWER_TIMEOUT_S, settings.heartbeat_interval_ms / 2000)
    keys = Keys(settings.model_cluster_namespace)
    async with AsyncExitStack() as attempt:

        async def connect(purpose: Literal["write", "follow"]) -> Commands:
            opened = await open_client(url, data_dir=data_dir, purpose=purpose, timeout_s=timeout_s)
            client = batched(opened) if purpose == "write" else commands(opened)
            attempt.push_async_callback(client.aclose)
            return client

        writer, follower = await connect("write"), await connect("follow")
        pool = CoordinationPool(writer, keys, session.holder, recovery_ms=settings.recovery_ms)
        await pool.open()
        # Theirs from here on.
        attempt.pop_all()
        return ValkeyBackend(
            pool, Log(follower, keys), limits_of(settings), clock, clients=(writer, follower)
        )
