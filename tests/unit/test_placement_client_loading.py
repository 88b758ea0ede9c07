"""Cold loads against a simulated node: what is unloaded, when it is loaded, what is reported."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aibs.errors import FleetMismatch, ModelNotInstalled, NodeError, WarmUpFailed
from aibs.model_names import comparison_key
from aibs.ollama.client import NodeClient
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from aibs.placement import LeaseLost, PlacerTiming, loading
from tests.fake_backend import FakeBackend
from tests.integration.in_loop import in_loop, until
from tests.placing import FLEET, LONG, WORKER, placer_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aibs.placement import HeldLease, Placer

GB = 10**9
MODEL = "llama3:8b"
KEY = comparison_key(MODEL)
IDLE = comparison_key("idle:7b")
HASTY = PlacerTiming(ttl_ms=60_000, heartbeat_ms=20_000, poll_ms=20, load_ms=400)


def spec(*more: SimModel, **changes: Any) -> SimSpec:
    models = (SimModel(MODEL, 6 * GB, load_seconds=0.05), *more)
    return SimSpec(**{"vram_bytes": 90 * GB, "models": models, **changes})


def cold(server: SimServer, *unload_first: str, slots: int = 1) -> FakeBackend:
    backend = FakeBackend(slots=slots, base_url=server.url())
    backend.warm, backend.unload_first = False, unload_first
    return backend


@in_loop
async def test_a_warm_lease_needs_no_request_to_its_node() -> None:
    async with SimServer([spec()]) as server:
        backend = cold(server)
        backend.warm = True
        async with placer_of(backend) as placer, placer.lease(model=MODEL) as lease:
            await lease.prepare()
        assert server.node().log == []
    assert backend.reports == []


@in_loop
async def test_a_cold_load_carries_the_workers_context_and_keep_alive() -> None:
    async with SimServer([spec()]) as server:
        backend = cold(server)
        async with placer_of(backend) as placer, placer.lease(model=MODEL) as lease:
            await lease.prepare()
            async with NodeClient(server.url(), timeout_s=5) as api:
                (resident,) = (await api.ps()).models
        assert resident.context_length == 8192, "another context is another runner"
        assert not resident.keeps_forever
        assert server.node().stats.reloads == 0
    assert backend.reports == [("loading", KEY, "ok"), ("loaded", KEY, "ok")]


@in_loop
async def test_room_is_made_before_the_load_and_ps_decides_when_it_is_there() -> None:
    idle = SimModel("idle:7b", 60 * GB, loaded=True)
    async with SimServer([spec(idle, unload_seconds=0.3)]) as server:
        backend = cold(server, IDLE)
        seen: list[list[str]] = []

        def on_call(call: str) -> None:
            if call == "report":
                seen.append(list(server.node().resident))

        backend.on_call = on_call
        async with placer_of(backend) as placer, placer.lease(model=MODEL) as lease:
            await lease.prepare()
        assert server.node().resident == [MODEL]
        assert server.node().stats.evictions == 0, "Ollama chose, not we"
    assert seen[0] == [], "it was reported gone while it was there"
    assert backend.reports == [
        ("unloaded", IDLE, "ok"),
        ("loading", KEY, "ok"),
        ("loaded", KEY, "ok"),
    ]


@in_loop
async def test_a_model_that_shows_its_alias_is_unloaded_all_the_same() -> None:
    shown = SimModel("alias:1b", 9 * GB, weights=IDLE, loaded=True)
    async with SimServer([spec(shown, SimModel("idle:7b", 9 * GB, weights=IDLE))]) as server:
        backend = cold(server, IDLE)
        async with placer_of(backend) as placer, placer.lease(model=MODEL) as lease:
            await lease.prepare()
        assert server.node().resident == [MODEL]


@in_loop
async def test_what_is_gone_already_is_not_unloaded_again() -> None:
    async with SimServer([spec(SimModel("idle:7b", 9 * GB))]) as server:
        backend = cold(server, IDLE)
        async with placer_of(backend) as placer, placer.lease(model=MODEL) as lease:
            await lease.prepare()
        assert server.node().stats.unloads == 0
    assert [kind for kind, _, _ in backend.reports] == ["loading", "loaded"]


@in_loop
async def test_a_model_that_stays_ends_the_lease_as_failed_without_a_load() -> None:
    idle = SimModel("idle:7b", 9 * GB, loaded=True)
    async with SimServer([spec(idle, unload_seconds=30.0)]) as server:
        backend = cold(server, IDLE)
        async with placer_of(backend, HASTY) as placer:
            with pytest.raises(WarmUpFailed) as failed:
                async with placer.lease(model=MODEL) as lease:
                    await lease.prepare()
        assert failed.value.reason == "unload_timeout"
        assert server.node().stats.loads[MODEL] == 0
    assert backend.reports == [("unloaded", IDLE, "failed")]
    assert [outcome for _, outcome, _ in backend.releases] == ["failed"]


@in_loop
async def test_a_failed_load_ends_the_lease_as_failed_even_where_the_work_goes_on() -> None:
    async with SimServer([spec()]) as server:
        server.node().faults.load_error = "out of memory"
        backend = cold(server)
        async with placer_of(backend) as placer, placer.lease(model=MODEL) as lease:
            with pytest.raises(NodeError, match="out of memory"):
                await lease.prepare()
    assert backend.reports == [("loading", KEY, "ok"), ("loaded", KEY, "failed")]
    assert [outcome for _, outcome, _ in backend.releases] == ["failed"]


@in_loop
async def test_a_model_that_is_not_installed_says_so() -> None:
    async with (
        SimServer([SimSpec(vram_bytes=9 * GB)]) as server,
        placer_of(cold(server)) as placer,
        placer.lease(model=MODEL) as lease,
    ):
        with pytest.raises(ModelNotInstalled):
            await lease.prepare()


@in_loop
async def test_a_worker_of_another_roster_is_not_loaded_with_guessed_options() -> None:
    async with SimServer([spec()]) as server:
        backend = cold(server)
        foreign = replace(FLEET, workers=())
        async with placer_of(backend, fleet=foreign) as placer:
            with pytest.raises(FleetMismatch):
                async with placer.lease(model=MODEL) as lease:
                    await lease.prepare()
        assert server.node().log == []


@in_loop
async def test_a_worker_that_keeps_nothing_alive_is_loaded_and_not_unloaded() -> None:
    fleet = replace(FLEET, workers=(replace(WORKER, keep_alive=0),))
    async with SimServer([spec()]) as server, placer_of(cold(server), fleet=fleet) as placer:
        async with placer.lease(model=MODEL) as lease:
            await lease.prepare()
        assert server.node().resident == [MODEL]


@in_loop
async def test_lost_reports_do_not_stop_the_load() -> None:
    async with SimServer([spec()]) as server:
        backend = cold(server)
        backend.faults["report"] = ["away", "lost", "away", "away", "away"]
        async with placer_of(backend) as placer, placer.lease(model=MODEL) as lease:
            await lease.prepare()
        assert server.node().resident == [MODEL]


@in_loop
async def test_one_load_serves_all_leases_and_outlives_the_one_that_began_it() -> None:
    slow = SimModel(MODEL, 6 * GB, load_seconds=0.4)
    async with SimServer([SimSpec(vram_bytes=90 * GB, models=(slow,))]) as server:
        backend = cold(server, slots=2)
        async with placer_of(backend, LONG) as placer:

            async def work() -> None:
                async with placer.lease(model=MODEL) as lease:
                    backend.warm = True
                    await lease.prepare()
                    assert server.node().resident == [MODEL]

            first = asyncio.create_task(work())
            await until(lambda: bool(backend.reports))
            second = asyncio.create_task(work())
            await until(lambda: len(backend.leases) == 2)
            await asyncio.sleep(0)
            first.cancel()
            await second
            with pytest.raises(asyncio.CancelledError):
                await first
        assert server.node().stats.loads[MODEL] == 1
        assert server.node().stats.aborted_loads == 0, "the second one's load began anew"


class Held:
    """Leases of one placer that prepare together, each ended by hand."""

    def __init__(self, placer: Placer, backend: FakeBackend) -> None:
        self.leases: list[HeldLease] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._placer = placer
        self._backend = backend

    async def begin(self) -> HeldLease:
        """One more, which waits for the load."""
        joined = len(self.leases) + 1
        self.tasks.append(asyncio.create_task(self._work()))
        await until(lambda: len(self.leases) == joined)
        await asyncio.sleep(0)
        return self.leases[-1]

    async def _work(self) -> None:
        async with self._placer.lease(model=MODEL) as lease:
            self.leases.append(lease)
            await lease.prepare()

    async def end(self, number: int) -> None:
        """Its client left."""
        self.tasks[number].cancel()
        await asyncio.wait({self.tasks[number]})

    def shared(self) -> list[bool]:
        """What each lease says of its load."""
        return [lease.load_is_shared for lease in self.leases]

    def reports(self) -> list[tuple[str, int]]:
        """Each report, and the number of the lease that it went under."""
        ids = [lease.lease_id for lease in self.leases]
        calls = [detail for call, detail in self._backend.calls if call == "report"]
        return [(kind, ids.index(lease_id)) for kind, lease_id, _ in calls]


@asynccontextmanager
async def holding(load_s: float) -> AsyncIterator[tuple[Held, FakeBackend]]:
    slow = SimModel(MODEL, 6 * GB, load_seconds=load_s)
    async with SimServer([SimSpec(vram_bytes=90 * GB, models=(slow,))]) as server:
        backend = cold(server, slots=3)
        async with placer_of(backend, LONG) as placer:
            yield Held(placer, backend), backend


@in_loop
async def test_a_load_is_shared_as_long_as_another_lease_waits_for_it() -> None:
    async with holding(0.5) as (held, backend):
        await held.begin()
        await until(lambda: bool(backend.reports))
        assert held.shared() == [False]
        await held.begin()
        assert held.shared() == [True, True]
        await held.end(0)
        assert held.shared() == [True, False], "the one that left is not needed any more"
        await held.tasks[1]
        assert held.shared() == [False, False], "the load is over"


@in_loop
async def test_a_load_reports_under_a_lease_that_still_waits() -> None:
    async with holding(0.4) as (held, backend):
        for _ in range(3):
            await held.begin()
        await until(lambda: bool(backend.reports))
        # One that never spoke goes unheard; the one that did hands over.
        await held.end(2)
        assert held.reports() == [("loading", 0)]
        await held.end(0)
        await held.tasks[1]
        assert held.reports() == [("loading", 0), ("loading", 1), ("loaded", 1)]


@in_loop
async def test_the_end_of_a_load_is_told_after_its_beginning_under_the_lease_that_took_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "REPORT_AGAIN_S", 0.6)
    async with holding(0.2) as (held, backend):
        backend.faults["report"] = [None, "away"]
        await held.begin()
        await held.begin()
        await until(lambda: bool(backend.reports))
        await held.end(0)
        await held.tasks[1]
        assert backend.reports[-2:] == [("loading", KEY, "ok"), ("loaded", KEY, "ok")]
        assert held.reports()[1:] == [("loading", 1), ("loading", 1), ("loaded", 1)]


@in_loop
async def test_a_lost_lease_breaks_off_its_load() -> None:
    slow = SimModel(MODEL, 6 * GB, load_seconds=20.0)
    async with SimServer([SimSpec(vram_bytes=90 * GB, models=(slow,))]) as server:
        backend = cold(server)
        async with placer_of(backend) as placer:
            with pytest.raises(LeaseLost):  # noqa: PT012 - the block raises
                async with placer.lease(model=MODEL) as lease:
                    asyncio.get_running_loop().call_later(0.1, placer.heart.lose, lease, "revoked")
                    await lease.prepare()
            await until(lambda: server.node().stats.aborted_loads == 1)
    assert [outcome for _, outcome, _ in backend.releases] == ["cancelled"]
