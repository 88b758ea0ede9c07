"""What one process alone takes to be loaded: warm for the next lease, and in the way of others."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aibs import settings
from aibs.fleet import Fleet, Node
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from aibs.placement import open_placer
from aibs.placement.memory import MemoryBackend
from aibs.placement.remembered import KEPT_BY_DEFAULT_MS, MARGIN_MS
from aibs.placement.values import Granted
from tests.integration.in_loop import in_loop
from tests.placement_scenarios import SetClock
from tests.property.placement_world import GB, LIMITS, WORKERS, key_of, request

if TYPE_CHECKING:
    from aibs.fleet import KeepAlive
    from aibs.placement.values import Lease, Outcome

SMALL, MEDIUM, LARGE = "small:7b", "medium:30b", "large:70b"
NODES = (Node("box-c", "http://box-c:11434", 90 * GB, 2),)
SEEDS = (1, 2, 3)


class Bench:
    """A memory back end, its clock, and requests by number."""

    def __init__(self, *, keep_alive: KeepAlive = None, nodes: tuple[Node, ...] = NODES) -> None:
        self.clock = SetClock()
        workers = tuple(replace(one, keep_alive=keep_alive, roles=()) for one in WORKERS)
        self.backend = MemoryBackend(Fleet(nodes=nodes, workers=workers), LIMITS, self.clock)
        self._number = 0

    async def ask(self, model: str) -> Lease | None:
        """A lease that is granted at once, or none."""
        self._number += 1
        asked = replace(request(self._number, f"m|{key_of(model)}"), ttl_ms=10**9)
        lease_id = f"l{self._number}"
        answer = await self.backend.acquire(asked, lease_id=lease_id, call_id="c")
        return answer.lease if isinstance(answer, Granted) else None

    async def lease(self, model: str) -> Lease:
        """One that must be granted."""
        lease = await self.ask(model)
        assert lease is not None
        return lease

    async def loads(self, lease: Lease, outcome: str = "ok") -> None:
        """Its holder loads the model."""
        await self.backend.report(lease, "loading", lease.key, ms=0, outcome="ok")
        await self.backend.report(lease, "loaded", lease.key, ms=5, outcome=outcome)

    async def unloads(self, lease: Lease, key: str) -> None:
        """Its holder unloads another one for its room."""
        await self.backend.report(lease, "unloaded", key, ms=5, outcome="ok")

    async def release(self, lease: Lease, outcome: Outcome = "completed") -> None:
        """The lease ends."""
        await self.backend.release(lease, outcome, call_id="c")

    async def use(self, model: str, outcome: Outcome = "completed") -> Lease:
        """One lease from its grant to its end, with the load that it needs."""
        lease = await self.lease(model)
        if not lease.warm:
            for key in lease.unload_first:
                await self.unloads(lease, key)
            await self.loads(lease)
        await self.release(lease, outcome)
        return lease

    def later(self, ms: int) -> None:
        """Time passes."""
        self.clock.now_ms += ms


@in_loop
async def test_a_model_is_warm_from_its_load_on_and_not_before() -> None:
    bench = Bench()
    first = await bench.lease(SMALL)
    assert not first.warm
    assert not (await bench.lease(SMALL)).warm, "leased is not loaded"
    await bench.loads(first)
    await bench.release(first, "cancelled")
    bench.later(1_000)
    assert (await bench.lease(SMALL)).warm


@in_loop
async def test_work_that_was_completed_leaves_its_model_behind_and_a_failed_load_does_not() -> None:
    bench = Bench()
    await bench.release(await bench.lease(SMALL), "completed")
    failed = await bench.lease(MEDIUM)
    await bench.loads(failed, "failed")
    await bench.release(failed, "cancelled")
    bench.later(1)
    assert (await bench.lease(SMALL)).warm
    assert not (await bench.lease(MEDIUM)).warm


@pytest.mark.parametrize(
    ("keep_alive", "kept_ms"),
    [(None, KEPT_BY_DEFAULT_MS), ("30m", 1_800_000), (60, 60_000), (-1, 10**12)],
)
@in_loop
async def test_a_model_is_warm_until_shortly_before_its_keep_alive_runs_out(
    keep_alive: KeepAlive, kept_ms: int
) -> None:
    bench = Bench(keep_alive=keep_alive)
    await bench.use(SMALL)
    bench.later(kept_ms - MARGIN_MS)
    held = await bench.lease(SMALL)
    assert held.warm
    bench.later(2 * kept_ms)
    await bench.release(held, "cancelled")
    bench.later(kept_ms - MARGIN_MS)
    assert (await bench.lease(SMALL)).warm, "its time does not count from the last lease's end"


@pytest.mark.parametrize("keep_alive", ["0", 0, 1])
@in_loop
async def test_a_model_that_is_not_kept_is_warm_beside_its_lease_and_not_after(
    keep_alive: KeepAlive,
) -> None:
    bench = Bench(keep_alive=keep_alive)
    first = await bench.lease(SMALL)
    await bench.loads(first)
    beside = await bench.lease(SMALL)
    assert beside.warm
    await bench.release(first)
    await bench.release(beside)
    bench.later(1)
    assert not (await bench.lease(SMALL)).warm


@in_loop
async def test_a_model_whose_keep_alive_ran_out_is_loaded_again() -> None:
    bench = Bench(keep_alive=60)
    await bench.use(SMALL)
    bench.later(60_000 - MARGIN_MS + 1)
    again = await bench.lease(SMALL)
    assert not again.warm
    assert again.unload_first == ()


@in_loop
async def test_a_model_that_is_in_the_way_is_listed_to_be_unloaded_and_then_forgotten() -> None:
    bench = Bench()
    await bench.use(MEDIUM)
    bench.later(1)
    large = await bench.lease(LARGE)
    assert large.unload_first == (key_of(MEDIUM),)
    await bench.unloads(large, key_of(MEDIUM))
    await bench.loads(large)
    await bench.release(large)
    bench.later(1)
    medium = await bench.lease(MEDIUM)
    assert not medium.warm
    assert medium.unload_first == (key_of(LARGE),)
    await bench.unloads(medium, key_of(LARGE))
    bench.later(1)
    assert (await bench.lease(SMALL)).unload_first == ()


@in_loop
async def test_a_model_that_was_to_be_unloaded_and_may_not_be_is_in_the_way_and_not_warm() -> None:
    bench = Bench()
    await bench.use(MEDIUM)
    bench.later(1)
    large = await bench.lease(LARGE)
    assert large.unload_first == (key_of(MEDIUM),)
    await bench.release(large, "cancelled")
    bench.later(1)
    again = await bench.lease(LARGE)
    assert again.unload_first == (key_of(MEDIUM),), "it may be there still"
    await bench.release(again, "cancelled")
    bench.later(1)
    assert not (await bench.lease(MEDIUM)).warm


@in_loop
async def test_where_something_failed_nothing_is_taken_to_be_loaded() -> None:
    bench = Bench()
    await bench.use(SMALL)
    await bench.use(MEDIUM)
    await bench.use(SMALL, "failed")
    bench.later(1)
    small, medium = await bench.lease(SMALL), await bench.lease(MEDIUM)
    assert (small.warm, medium.warm) == (False, True)
    await bench.loads(small)
    await bench.release(small)
    await bench.release(medium)
    await bench.backend.trip("box-c", "resets")
    bench.later(10_000)
    probe = await bench.lease(MEDIUM)
    assert (probe.probe, probe.warm) == (True, False)


@pytest.mark.parametrize("seed", SEEDS)
@in_loop
async def test_no_order_of_leases_fills_a_node_beyond_its_slots_or_its_budget(seed: int) -> None:
    """What is loaded is at most what was loaded and not unloaded: with it, too, it must fit."""
    rng = random.Random(seed)
    bench = Bench(keep_alive=60)
    held: list[Lease] = []
    loaded: set[str] = set()
    unloaded = 0
    weights = {key_of(name): size * GB for name, size in ((SMALL, 10), (MEDIUM, 30), (LARGE, 80))}
    for _ in range(400):
        bench.later(rng.choice((1, 1, 500, 30_000, 70_000)))
        if held and rng.random() < 0.5:
            lease = held.pop(rng.randrange(len(held)))
            await bench.release(lease, rng.choice(("completed", "cancelled", "failed")))
            continue
        lease_or_none = await bench.ask(rng.choice((SMALL, MEDIUM, LARGE)))
        if lease_or_none is None:
            continue
        lease = lease_or_none
        held.append(lease)
        assert len(held) <= 2, f"more than its slots (seed {seed})"
        for key in lease.unload_first if not lease.warm else ():
            assert key not in {one.key for one in held}, f"another lease's model (seed {seed})"
            await bench.unloads(lease, key)
            loaded.discard(key)
            unloaded += 1
        there = loaded | {one.key for one in held}
        assert sum(weights[key] for key in there) <= 90 * GB, f"over its budget (seed {seed})"
        if not lease.warm:
            await bench.loads(lease)
        loaded.add(lease.key)
    assert unloaded, "nothing was ever in the way"


@in_loop
async def test_a_process_alone_loads_a_model_once_for_many_requests() -> None:
    spec = SimSpec(vram_bytes=90 * GB, models=(SimModel(SMALL, 6 * GB),))
    async with SimServer([spec]) as server:
        values = settings.load(
            {
                "AIBS_MODEL_CLUSTER_NODE_IDS": "box-c",
                "AIBS_MODEL_CLUSTER_NODE_URLS": server.url(),
                "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": "80",
                "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": "2",
                "AIBS_MODEL_ADMISSION_WORKER_ROSTER": '[{"worker_id":"w","model":"small:7b",'
                '"kind":"chat","resident_weight_gb":7,"active_parameter_billions":7}]',
            },
            None,
        )
        async with open_placer(values) as placer:

            async def work() -> bool:
                async with placer.lease(model=SMALL, timeout=20) as lease:
                    await lease.prepare()
                    return lease.warm

            found = [await work() for _ in range(3)]
            await asyncio.gather(*(work() for _ in range(4)))
        assert found == [False, True, True]
        asked = [entry for entry in server.node().log if "generate" in str(entry)]
        assert len(asked) == 1, "a load for each request"
