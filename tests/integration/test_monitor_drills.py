"""Monitors killed, paused, cut off and misled: the term stays one, fences only grow."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

import pytest

from aibs.ollama.sim import SimModel, SimServer, SimSpec
from tests.integration.in_loop import in_loop
from tests.monitor_process import (
    TTL_S,
    MonitorProcess,
    Pool,
    assert_safe,
    environment,
    watch,
)
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.valkey_server import ValkeyServer

GB = 10**9
SPECS = tuple(
    SimSpec(name, 90 * GB, (SimModel("llama3:8b", 7 * GB, loaded=True),))
    for name in ("box-c", "box-e")
)
NODES = ("box-c", "box-e")
JUMP = 1000


@contextlib.asynccontextmanager
async def scene(
    url: str, namespace: str, tmp_path: Path, *, through: str | None = None
) -> AsyncIterator[tuple[Pool, Callable[[str], MonitorProcess], SimServer]]:
    """Two nodes, a watched pool, and a way to make monitors (which go `through` another URL)."""
    async with SimServer(SPECS) as nodes:
        settings = environment(through or url, namespace, dict(zip(NODES, nodes.urls, strict=True)))
        pool, close = await watch(url, namespace, tmp_path)
        try:
            yield pool, lambda name: MonitorProcess(settings, tmp_path, name), nodes
        finally:
            await close()


@in_loop
async def test_a_killed_owner_is_followed_under_a_higher_fence(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as (pool, monitor, _):
        with monitor("a") as first:
            old = await pool.owner_of(first)
            await pool.observed_under(old.fence or 0, NODES)
            with monitor("b") as second:
                first.signal(signal.SIGKILL)
                new = await pool.owner_of(second)
                events = await pool.observed_under(new.fence or 0, NODES)
                assert new.data["because"] == "expired"
                assert new.data["follows_fence"] == old.fence
                assert_safe(events)


@in_loop
async def test_a_resigned_term_is_taken_over_at_once_and_not_by_expiry(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as (pool, monitor, _):
        with monitor("a") as first, monitor("b") as second:
            await pool.until(lambda es: any(e.type == "OwnerElected" for e in es), "an owner")
            elected = next(e for e in await pool.events() if e.type == "OwnerElected")
            owner, standby = (first, second) if first.owns(elected) else (second, first)
            await pool.observed_under(elected.fence or 0, NODES)
            owner.signal(signal.SIGTERM)
            assert await owner.ended() == 0
            new = await pool.owner_of(standby)
            resigned = next(e for e in await pool.events() if e.type == "OwnerResigned")
            assert new.data["because"] == "resigned"
            assert new.at_ms - resigned.at_ms < TTL_S * 1000
            assert_safe(await pool.events())


@in_loop
async def test_a_paused_owner_writes_nothing_after_it_was_deposed_and_stands_by_again(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as (pool, monitor, _):
        with monitor("a") as first:
            old = await pool.owner_of(first)
            with monitor("b") as second:
                first.signal(signal.SIGSTOP)
                new = await pool.owner_of(second)
                await pool.observed_under(new.fence or 0, NODES)
                first.signal(signal.SIGCONT)
                # It stands by again: when the second goes, it is elected, with a new fence.
                await _until(lambda: first.output().count("standing_by") > 0)
                second.signal(signal.SIGKILL)
                again = await pool.owner_of(first, above=new.fence or 0)
                events = await pool.observed_under(again.fence or 0, NODES)
                between = [e.type for e in events if new.seq < e.seq < again.seq and first.owns(e)]
                assert set(between) <= {"FencedWriteRejected", "OwnerExpired"}
                assert old.fence != again.fence
                assert_safe(events)


@in_loop
async def test_a_restarted_server_makes_the_pool_suspect_and_the_fence_jump(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey.url, "drill", tmp_path) as (pool, monitor, _):
        with monitor("a") as owner:
            old = await pool.owner_of(owner)
            await pool.observed_under(old.fence or 0, NODES)
            await asyncio.to_thread(own_valkey.restart)
            new = await pool.owner_of(owner, above=old.fence or 0)
            events = await pool.observed_under(new.fence or 0, NODES)
            assert (new.fence or 0) >= (old.fence or 0) + JUMP
            assert "PoolSuspect" in {e.type for e in events}
            assert_safe(events)


@in_loop
async def test_a_flushed_server_gets_a_new_pool_and_no_fence_again(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey.url, "drill", tmp_path) as (pool, monitor, _):
        with monitor("a") as owner:
            old = await pool.owner_of(owner)
            await pool.observed_under(old.fence or 0, NODES)
            with contextlib.closing(own_valkey.client()) as client:
                client.flushall()
            new = await pool.owner_of(owner, above=old.fence or 0)
            events = await pool.observed_under(new.fence or 0, NODES)
            assert events[0].type == "PoolCreated"
            assert_safe(events)


@in_loop
async def test_a_restored_older_file_never_lets_a_fence_out_twice(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey.url, "drill", tmp_path) as (pool, monitor, _):
        with monitor("a") as first:
            old = await pool.owner_of(first)
            await pool.observed_under(old.fence or 0, NODES)
            kept = await asyncio.to_thread(own_valkey.save_files)
            with monitor("b") as second:
                first.signal(signal.SIGKILL)
                new = await pool.owner_of(second)
                await pool.observed_under(new.fence or 0, NODES)
                # The file knows nothing of the second term.
                await asyncio.to_thread(own_valkey.restore_files, kept)
                again = await pool.owner_of(second, above=new.fence or 0)
                events = await pool.observed_under(again.fence or 0, NODES)
                assert_safe(events)


@pytest.mark.parametrize("away_s", [pytest.param(3.0), pytest.param(30.0, marks=pytest.mark.soak)])
def test_a_server_away_is_waited_for_and_the_monitor_goes_on(
    own_valkey: ValkeyServer, tmp_path: Path, away_s: float
) -> None:
    @in_loop
    async def drill() -> None:
        async with scene(own_valkey.url, "drill", tmp_path) as (pool, monitor, _):
            with monitor("a") as owner:
                old = await pool.owner_of(owner)
                own_valkey.pause()
                await asyncio.sleep(away_s)
                assert owner.running
                own_valkey.resume()
                new = await pool.owner_of(owner, above=old.fence or 0)
                assert_safe(await pool.observed_under(new.fence or 0, NODES))

    drill()


@in_loop
async def test_replies_alone_lost_never_make_two_owners(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with (
        TcpProxy(own_valkey.port) as proxy,
        scene(own_valkey.url, "drill", tmp_path, through=proxy.url) as (pool, monitor, _),
    ):
        with monitor("a") as first, monitor("b"):
            await pool.until(lambda es: any(e.type == "OwnerElected" for e in es), "an owner")
            for _ in range(6):
                proxy.mode = "drop_replies"
                await asyncio.sleep(0.4)
                proxy.mode = "pass"
                await asyncio.sleep(0.4)
            assert proxy.replies_dropped > 0
            newest = max(e.fence or 0 for e in await pool.events() if e.type == "OwnerElected")
            events = await pool.until(
                lambda es: any(
                    e.type == "ResidencyObserved" and (e.fence or 0) >= newest for e in es
                ),
                "observations after the losses",
            )
            assert_safe(events)
            assert first.running


@in_loop
async def test_an_owner_cut_off_from_the_server_loses_the_term_to_one_that_is_not(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with (
        TcpProxy(own_valkey.port) as proxy,
        scene(own_valkey.url, "drill", tmp_path, through=proxy.url) as (pool, cut_off, nodes),
    ):
        direct = environment(own_valkey.url, "drill", dict(zip(NODES, nodes.urls, strict=True)))
        with cut_off("a") as first:
            old = await pool.owner_of(first)
            with MonitorProcess(direct, tmp_path, "b") as second:
                proxy.mode = "hold"
                new = await pool.owner_of(second, above=old.fence or 0)
                await pool.observed_under(new.fence or 0, NODES)
                proxy.mode = "pass"
                await _until(lambda: "standing_by" in first.output())
                await asyncio.sleep(1.0)
                events = await pool.events()
                late = [e.type for e in events if e.seq > new.seq and first.owns(e)]
                assert set(late) <= {"FencedWriteRejected"}
                assert_safe(events)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a file's content has no event
        await asyncio.sleep(0.02)
