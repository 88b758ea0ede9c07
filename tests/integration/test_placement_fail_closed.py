"""The coordination server fails in each way it can: no node gets what it did not grant."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis.exceptions import OutOfMemoryError

from aibs.errors import LeaseLost, PlacementDenied
from tests.integration.in_loop import in_loop
from tests.placement_scene import MODEL, NODES, generate_long, renewed, scene, until_true
from tests.tcp_proxy import TcpProxy
from tests.valkey_server import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aibs.placement import Placer
    from tests.placement_scene import Scene, Traffic

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
            await renewed(lease)
            assert list(await drill.state.leases()) == [lease.lease_id]
        assert not await drill.state.leases(), "a full server kept a lease that was given back"
        ends = [event for event in await drill.pool.events() if event.type == "LeaseReleased"]
        assert [event.data["lease_id"] for event in ends] == [lease.lease_id]


@pytest.mark.parametrize("away", ["stopped", "hanging"])
def test_an_application_opens_while_the_server_is_away_and_is_served_when_it_is_back(
    away: str, own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    @in_loop
    async def run() -> None:
        async with scene(own_valkey, tmp_path) as drill:
            if away == "stopped":
                own_valkey.stop()
            else:
                own_valkey.pause()
            placer = await drill.placer()
            with pytest.raises(PlacementDenied) as refused:
                async with placer.lease(model=MODEL, timeout=0):
                    pass
            assert refused.value.reason == "coordination_unavailable"
            assert f"127.0.0.1:{drill.proxy.port}" in refused.value.sentence
            assert drill.nodes.node(0).stats.requests["/api/generate"] == 0
            if away == "stopped":
                own_valkey.start()
            else:
                own_valkey.resume()
            async with placer.lease(model=MODEL, timeout=25) as lease:
                assert list(await drill.state.leases()) == [lease.lease_id]

            async def introduced() -> bool:
                return placer.holder in (await drill.state.read_all()).sessions

            await until_true(introduced, "the session made known once the server was back")
            await drill.free()

    run()


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
        async with holder.lease(model=MODEL, timeout=0, ttl=30) as held:
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
                async with holders[number].lease(model=MODEL, timeout=5, ttl=30) as lease:
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


@in_loop
async def test_a_promoted_replica_that_lost_writes_grants_nothing_until_holders_were_heard(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    with ValkeyServer() as replica:
        async with (
            TcpProxy(own_valkey.port) as link,
            scene(own_valkey, tmp_path, monitor_by_proxy=True) as drill,
        ):
            _replicate(replica, own_valkey, link.port)
            holder, traffic = await drill.placer(), await drill.traffic()
            async with traffic.running():
                await traffic.serves()
                await _in_step(replica, own_valkey)
                link.mode = "hold"
                # From here on everything is written for nothing: a new term, and a lease.
                old = await drill.pool.owner_of(drill.owner)
                drill.owner.signal(signal.SIGKILL)
                second = drill.monitor("second")
                lost_term = await drill.pool.owner_of(second, above=old.fence or 0)
                await drill.pool.observed_under(lost_term.fence or 0, NODES)
                begun = asyncio.Event()
                work = asyncio.ensure_future(_long_work(holder, drill, begun))
                await begun.wait()
                await traffic.serves(2)
                await asyncio.to_thread(own_valkey.kill)
                await drill.move_to(replica)
                refusal = await traffic.refuses("coordination_unavailable", more=8)
                assert "READONLY" in refusal.sentence
                with contextlib.closing(replica.client()) as client:
                    client.replicaof("NO", "ONE")
                refusal = await traffic.refuses("pool_recovering", more=4)
                assert "restarted" in refusal.sentence
                lost, cancelled_at_ms = await work
                assert lost.why == "unknown"
                await traffic.serves()
            await drill.free()
            drill.permitted()
            await drill.audited()
            events = await drill.pool.events()
            suspect = next(event for event in events if event.type == "PoolSuspect")
            after = [event for event in events if event.seq > suspect.seq]
            fences = [event.fence or 0 for event in after if event.type == "OwnerElected"]
            assert min(fences) > (lost_term.fence or 0), "a fence that the lost writes gave out"
            assert not [
                e for e in events if e.type == "OwnerElected" and e.fence == lost_term.fence
            ]
            first = next(event.at_ms for event in after if event.type == "LeaseAcquired")
            assert cancelled_at_ms < first, "granted while the holder of a lost lease worked"


async def _long_work(holder: Placer, drill: Scene, begun: asyncio.Event) -> tuple[LeaseLost, int]:
    """How its lease was lost, and when its work was told, by the server's clock."""
    cancelled_at_ms = 0
    try:
        async with holder.lease(model=MODEL, timeout=5, ttl=30) as lease:
            begun.set()
            try:
                await generate_long(lease.node_base_url)
            finally:
                cancelled_at_ms = await _server_ms(drill)
    except LeaseLost as lost:
        return lost, cancelled_at_ms
    raise AssertionError("its work ended without a loss")


def _replicate(replica: ValkeyServer, source: ValkeyServer, port: int) -> None:
    with (
        contextlib.closing(source.client()) as first,
        contextlib.closing(replica.client()) as second,
    ):
        first.config_set("repl-diskless-sync-delay", "0")
        second.replicaof("127.0.0.1", str(port))


async def _in_step(replica: ValkeyServer, source: ValkeyServer) -> None:
    """Wait until the replica follows: it has what the source had a moment ago."""
    with (
        contextlib.closing(source.client()) as first,
        contextlib.closing(replica.client()) as second,
    ):
        wanted = int(first.info("replication")["master_repl_offset"])

        async def follows() -> bool:
            told = second.info("replication")
            return told.get("master_link_status") == "up" and (
                int(told["slave_repl_offset"]) >= wanted
            )

        await until_true(follows, "the replica in step")


async def _server_ms(drill: Scene) -> int:
    return (await drill.state.read_all()).now_ms


async def _suspected(drill: Scene) -> list[str]:
    """Why the pool was suspect, each time."""
    return [str(e.data["why"]) for e in await drill.pool.events() if e.type == "PoolSuspect"]
