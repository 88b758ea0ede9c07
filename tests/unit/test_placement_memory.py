"""The memory back end keeps the contract of back ends, and admits within its process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aibs.clock import SystemClock
from aibs.errors import LeaseLost, PlacementDenied
from aibs.placement import Placer, PlacerTiming
from aibs.placement.memory import MemoryBackend
from aibs.placement.session import open_identity
from tests.integration.in_loop import in_loop
from tests.node_scenarios import NODE_SCENARIOS
from tests.placement_desk import LIMITS
from tests.placement_scenarios import SCENARIOS, MemoryBench, play
from tests.placing import FLEET, LONG

if TYPE_CHECKING:
    from tests.placement_scenarios import Scenario

MODEL = "llama3:8b"


def placer(timing: PlacerTiming = LONG) -> Placer:
    """One on a single slot."""
    backend = MemoryBackend(FLEET, replace(LIMITS, drain_ms=50), SystemClock())
    return Placer(backend, FLEET, open_identity("test", "test"), timing)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *NODE_SCENARIOS], ids=lambda one: one.__name__)
def test_memory_keeps_the_contract(scenario: Scenario) -> None:
    play(scenario, MemoryBench())


@in_loop
async def test_a_hundred_tasks_on_one_slot_are_served_one_at_a_time_and_by_wakes() -> None:
    # So rarely would they ask by themselves that only wakes serve them within the bound.
    async with placer(replace(LONG, poll_ms=60_000)) as local:
        inside, served = 0, 0

        async def work() -> None:
            nonlocal inside, served
            async with local.lease(model=MODEL, timeout=30):
                inside += 1
                assert inside == 1, "more than the slot's one"
                await asyncio.sleep(0)
                inside -= 1
                served += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(work())
        assert served == 100


@in_loop
async def test_cancelled_and_failed_work_gives_its_slot_to_the_next() -> None:
    async with placer() as local:
        begun = asyncio.Event()

        async def endless() -> None:
            async with local.lease(model=MODEL, timeout=5):
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(endless())
        await begun.wait()
        with pytest.raises(PlacementDenied):
            async with local.lease(model=MODEL, timeout=0):
                pass
        task.cancel()
        await asyncio.wait({task})
        with pytest.raises(RuntimeError, match="its own"):
            async with local.lease(model=MODEL, timeout=0):
                raise RuntimeError("its own")
        async with local.lease(model=MODEL, timeout=0) as lease:
            assert lease.node_id == "box-a"


@in_loop
async def test_a_holder_whose_heart_stood_still_loses_its_lease_and_the_slot_is_given_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aibs.placement.endings.PATIENCE_S", 0.01)
    monkeypatch.setattr("aibs.placement.placer.CLOSE_WAIT_S", 0.01)
    timing = PlacerTiming(ttl_ms=400, heartbeat_ms=100, poll_ms=20, wait_ms=10_000)
    backend = MemoryBackend(FLEET, replace(LIMITS, drain_ms=50), SystemClock())
    still = Placer(_NoHeart(backend), FLEET, open_identity("test", "still"), timing)  # type: ignore[arg-type]
    other = Placer(backend, FLEET, open_identity("test", "other"), timing)
    async with still, other:
        with pytest.raises(LeaseLost) as lost:
            async with still.lease(model=MODEL, timeout=0):
                await asyncio.Event().wait()
        assert lost.value.why == "trust_over"
        async with other.lease(model=MODEL, timeout=10) as lease:
            await asyncio.sleep(0)
            lease.raise_if_lost()


class _NoHeart:
    """A back end that heartbeats and releases do not reach: the process stands still to it."""

    def __init__(self, inner: MemoryBackend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def heartbeat(self, *_: object) -> None:
        await asyncio.Event().wait()

    async def release(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()
