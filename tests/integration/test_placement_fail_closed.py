"""The coordination server fails in each way it can: no node gets what it did not grant."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis.exceptions import OutOfMemoryError

from aibs.errors import LeaseLost
from tests.integration.in_loop import in_loop
from tests.placement_scene import MODEL, NODES, generate_long, scene

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.placement_scene import Scene, Traffic
    from tests.valkey_server import ValkeyServer

Hand = tuple[str, "Callable[[Scene], object]", "Callable[[Scene], object]"]


def _configure(drill: Scene, **options: str) -> None:
    with contextlib.closing(drill.server.client()) as client:
        for name, value in options.items():
            client.config_set(name.replace("_", "-"), value)


def _mode(mode: str) -> Callable[[Scene], object]:
    def turn(drill: Scene) -> None:
        drill.proxy.mode = cast("Any", mode)

    return turn


FAULTS: dict[str, Hand] = {
    "refuses connections": ("", _mode("cut"), _mode("pass")),
    "swallows calls": ("", _mode("hold"), _mode("pass")),
    "answers to nobody": ("", _mode("drop_replies"), _mode("pass")),
    "hangs": ("", lambda drill: drill.server.pause(), lambda drill: drill.server.resume()),
    "lacks its replicas": (
        "NOREPLICAS",
        lambda drill: _configure(drill, min_replicas_to_write="1"),
        lambda drill: _configure(drill, min_replicas_to_write="0"),
    ),
    "is out of memory": (
        "OOM",
        lambda drill: _configure(drill, maxmemory="1", maxmemory_policy="noeviction"),
        lambda drill: _configure(drill, maxmemory="0"),
    ),
}
"""What it says of itself in the refusal, how it begins, how it is healed."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_does_not_serve_grants_nothing_and_placement_resumes(
    fault: str, own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    words, begin, heal = FAULTS[fault]

    @in_loop
    async def run() -> None:
        async with scene(own_valkey, tmp_path) as drill:
            traffic = await drill.traffic()
            async with traffic.running():
                await traffic.serves()
                begin(drill)
                refusal = await traffic.refuses("coordination_unavailable")
                assert "the coordination server does not serve" in refusal.sentence
                assert words in refusal.sentence
                assert refusal.mend == (
                    "Look at the coordination server; nothing is placed without it."
                )
                await traffic.rests()
                entered = traffic.entered
                await traffic.refuses("coordination_unavailable", more=12)
                assert traffic.entered == entered, "placed without the coordination server"
                heal(drill)
                await traffic.serves()
            await drill.free()
            drill.permitted()
            await drill.audited()

    run()


@in_loop
async def test_a_server_out_of_memory_still_renews_and_ends_leases(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey, tmp_path) as drill:
        placer = await drill.placer()
        async with placer.lease(model=MODEL, timeout=0) as lease:
            _configure(drill, maxmemory="1", maxmemory_policy="noeviction")
            with (
                contextlib.closing(own_valkey.client()) as client,
                pytest.raises(OutOfMemoryError),
            ):
                client.set("x", "1")
            before = lease.trusted_until_ms
            renewed = asyncio.Event()
            while not renewed.is_set():
                await asyncio.sleep(0.02)
                if lease.trusted_until_ms > before:
                    renewed.set()
            assert list(await drill.state.leases()) == [lease.lease_id]
        assert not await drill.state.leases(), "a full server kept a lease that was given back"
        ends = [event for event in await drill.pool.events() if event.type == "LeaseReleased"]
        assert [event.data["lease_id"] for event in ends] == [lease.lease_id]


@in_loop
async def test_scripts_that_are_flushed_stop_nothing(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey, tmp_path) as drill:
        traffic = await drill.traffic()
        async with traffic.running():
            await traffic.serves()
            with contextlib.closing(own_valkey.client()) as client:
                for _ in range(5):
                    client.script_flush()
                    await traffic.serves(2)
        assert not [one for one in traffic.refusals if one.reason == "coordination_unavailable"]
        assert not traffic.losses
        await drill.free()
        drill.permitted()
        await drill.audited()


@in_loop
async def test_a_server_restarted_with_its_data_keeps_living_leases_and_grants_nothing_meanwhile(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey, tmp_path) as drill:
        holder = await drill.placer()
        traffic = await drill.traffic()
        async with holder.lease(model=MODEL, timeout=0) as held:
            async with traffic.running():
                await traffic.serves()
                await asyncio.to_thread(own_valkey.restart)
                refusal = await traffic.refuses("pool_recovering", more=4)
                assert "cannot be placed yet" in refusal.sentence
                assert "coordination server restarted" in refusal.sentence
                await traffic.rests()
                entered = traffic.entered
                await traffic.refuses("pool_recovering", more=12)
                assert traffic.entered == entered, "placed while leases were being confirmed"
                assert list(await drill.state.leases()) == [held.lease_id]
                await traffic.serves()
            held.raise_if_lost()
        await drill.free()
        drill.permitted()
        await drill.audited()
        assert await _suspected(drill) == ["server_restarted"]


@in_loop
async def test_flushed_data_ends_the_work_of_unknown_leases_before_anything_is_granted(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey, tmp_path) as drill:
        holders = [await drill.placer() for _ in NODES]
        traffic = await drill.traffic()
        cancelled_at_ms: list[int] = []

        losses: list[LeaseLost] = []

        async def work(number: int) -> None:
            try:
                async with holders[number].lease(model=MODEL, timeout=5) as lease:
                    begun.release()
                    try:
                        await generate_long(lease.node_base_url)
                    finally:
                        cancelled_at_ms.append(await _server_ms(drill))
            except LeaseLost as lost:
                losses.append(lost)

        begun = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as group:
            for number in range(len(NODES)):
                group.create_task(work(number))
            for _ in NODES:
                await begun.acquire()
            group.create_task(_traffic_over(traffic, own_valkey))
        assert [lost.why for lost in losses] == ["unknown"] * len(NODES)
        assert "does not know it" in losses[0].sentence
        await drill.free()
        drill.permitted()
        await drill.audited()
        events = await drill.pool.events()
        assert events[0].type == "PoolCreated", "the flush did not hit"
        assert "pool_missing" in await _suspected(drill)
        first = next(event.at_ms for event in events if event.type == "LeaseAcquired")
        assert max(cancelled_at_ms) < first, "granted while holders of unknown leases worked"


async def _traffic_over(traffic: Traffic, server: ValkeyServer) -> None:
    """Requests go on while the data are flushed, until they are served again."""
    async with traffic.running():
        await traffic.refuses("no_slot")
        with contextlib.closing(server.client()) as client:
            client.flushall()
        await traffic.refuses("pool_recovering", more=4)
        await traffic.serves()


async def _server_ms(drill: Scene) -> int:
    return (await drill.state.read_all()).now_ms


async def _suspected(drill: Scene) -> list[str]:
    """Why the pool was suspect, each time."""
    return [str(e.data["why"]) for e in await drill.pool.events() if e.type == "PoolSuspect"]
