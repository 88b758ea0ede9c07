"""Opening a placer: what it refuses at the start, and what it leaves to each request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aibs import settings
from aibs.clock import SystemClock
from aibs.errors import (
    ConfigurationError,
    CoordinationUnavailable,
    OutcomeUnknown,
    PlacementDenied,
    PoolVersionMismatch,
    UnsupportedServer,
)
from aibs.placement import Placer, open_placer
from aibs.placement.reaching import ReachedBackend
from aibs.placement.session import open_identity
from tests.fake_backend import FakeBackend
from tests.integration.in_loop import in_loop, until
from tests.placing import FLEET, LONG
from tests.valkey_server import free_port

if TYPE_CHECKING:
    from aibs.errors import AibsError
    from aibs.placement import Backend

MODEL = "llama3:8b"
SETTINGS = {
    "AIBS_MODEL_CLUSTER_NODE_IDS": "box-c",
    "AIBS_MODEL_CLUSTER_NODE_URLS": "http://box-c:11434",
    "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": "80",
    "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": "1",
    "AIBS_MODEL_ADMISSION_WORKER_ROSTER": '[{"worker_id":"w","model":"llama3:8b","roles":["chat"],'
    '"kind":"chat","resident_weight_gb":7,"active_parameter_billions":8}]',
}


class Way:
    """A way to a back end. `fault` befalls each attempt: an error, `hang`, or None: reached."""

    def __init__(self, fault: AibsError | str | None = None) -> None:
        self.fault = fault
        self.tried = 0
        self.reached = FakeBackend()

    async def __call__(self) -> Backend:
        self.tried += 1
        await asyncio.sleep(0)
        if self.fault == "hang":
            await asyncio.Event().wait()
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.reached


def placer_by(way: Way) -> tuple[ReachedBackend, Placer]:
    backend = ReachedBackend(way, SystemClock())
    return backend, Placer(backend, FLEET, open_identity("test", "test"), LONG)


AWAY = CoordinationUnavailable("box:6379 cannot be reached: refused.", mend="Look there.")
UNFIT = UnsupportedServer("box:6379 is Redis 7.4, not Valkey 8 or newer.")


@pytest.mark.parametrize("variable", ["AIBS_COORDINATION_BACKEND", "AIBS_MODEL_CLUSTER_BACKEND"])
def test_memory_is_no_back_end_of_an_enabled_cluster(variable: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings.load({**SETTINGS, "AIBS_MODEL_CLUSTER_ENABLED": "true", variable: "memory"}, None)
    assert [fault.variable for fault in refused.value.faults][:1] == [variable]
    assert "cannot enforce global model capacity" in str(refused.value)


@in_loop
async def test_a_waiter_is_patient_with_the_server_for_the_queue_grace_of_the_settings() -> None:
    values = settings.load({**SETTINGS, "AIBS_MODEL_CLUSTER_QUEUE_GRACE_SECONDS": "7"}, None)
    async with open_placer(values) as placer:
        waiter = placer.room.join("a", patient=False)
        kept_ms = waiter.place_until_ms - placer.clock.boottime_ms()
        placer.room.leave(waiter)
    assert 6_000 < kept_ms <= 7_000


@in_loop
async def test_without_the_cluster_admission_is_local_and_asks_no_server() -> None:
    away = f"redis://127.0.0.1:{free_port()}"
    values = settings.load({**SETTINGS, "AIBS_VALKEY_URL": away}, None)
    async with open_placer(values) as placer, placer.lease(model=MODEL, timeout=0) as lease:
        assert lease.node_id == "box-c"
        with pytest.raises(PlacementDenied) as denied:
            async with placer.lease(model=MODEL, timeout=0):
                pass
        assert denied.value.reason == "no_slot"


@in_loop
async def test_a_server_that_is_away_is_never_replaced_by_local_admission() -> None:
    away = f"redis://127.0.0.1:{free_port()}"
    values = settings.load(
        {**SETTINGS, "AIBS_MODEL_CLUSTER_ENABLED": "true", "AIBS_VALKEY_URL": away}, None
    )
    async with open_placer(values) as placer:
        for timeout in (0, 0.1):
            with pytest.raises(PlacementDenied) as denied:
                async with placer.lease(model=MODEL, timeout=timeout):
                    pass
            assert denied.value.reason == "coordination_unavailable"
            assert away.partition("//")[2] in denied.value.sentence


@pytest.mark.parametrize(
    "error", [UNFIT, ConfigurationError("The password is wrong."), PoolVersionMismatch("Older.")]
)
@in_loop
async def test_what_waiting_does_not_mend_is_told_at_opening(error: AibsError) -> None:
    backend, _ = placer_by(Way(error))
    with pytest.raises(type(error)):
        await backend.open(5)
    await backend.aclose()


@pytest.mark.parametrize("error", [AWAY, OutcomeUnknown("open: no answer.")])
@in_loop
async def test_a_server_that_is_away_at_opening_serves_the_request_that_finds_it_back(
    error: AibsError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aibs.placement.placer.SESSION_WAIT_S", 0.01)
    way = Way(error)
    backend, placer = placer_by(way)
    await backend.open(5)
    async with placer:
        with pytest.raises(PlacementDenied) as denied:
            async with placer.lease(model=MODEL, timeout=0):
                pass
        assert denied.value.reason == "coordination_unavailable"
        assert str(error).rstrip(".") in denied.value.sentence
        way.fault = None
        async with placer.lease(model=MODEL, timeout=5) as lease:
            assert lease.node_id == "box-a"
    assert not way.reached.cancels, "what was never sent is not taken back"
    await backend.aclose()


@in_loop
async def test_a_server_that_is_found_unfit_later_refuses_requests_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aibs.placement.placer.SESSION_WAIT_S", 0.01)
    way = Way(AWAY)
    backend, placer = placer_by(way)
    await backend.open(5)
    way.fault = UNFIT
    async with placer:
        with pytest.raises(PlacementDenied, match="is Redis") as denied:
            async with placer.lease(model=MODEL, timeout=0):
                pass
        assert denied.value.reason == "coordination_unavailable"
    await backend.aclose()


@in_loop
async def test_opening_does_not_wait_for_a_server_that_hangs() -> None:
    backend, _ = placer_by(Way("hang"))
    await backend.open(0.01)
    await backend.aclose()


@in_loop
async def test_one_attempt_serves_all_callers_and_outlives_the_one_that_began_it() -> None:
    way = Way("hang")
    backend, placer = placer_by(way)
    first, *others = (
        asyncio.ensure_future(backend.open_session(placer.session)) for _ in range(20)
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    await asyncio.sleep(0.01)
    assert way.tried == 1
    assert not [other for other in others if other.done()]
    await backend.aclose()
    for other in others:
        with pytest.raises(CoordinationUnavailable):
            await other


@in_loop
async def test_a_node_is_tripped_by_way_of_the_server_and_not_here_while_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aibs.placement.placer.SESSION_WAIT_S", 0.01)
    monkeypatch.setattr("aibs.placement.tripping.PAUSE_FIRST_S", 0.001)
    way = Way(AWAY)
    backend, placer = placer_by(way)
    async with placer:
        assert not await placer.trip("box-a", "resets")
        way.fault = None
        assert await placer.trip("box-a", "resets")
    assert way.reached.trips == {"box-a": "resets"}
    await backend.aclose()


@in_loop
async def test_a_closed_placer_reaches_for_nothing() -> None:
    way = Way()
    backend, placer = placer_by(way)
    await backend.aclose()
    with pytest.raises(CoordinationUnavailable):
        await backend.open_session(placer.session)
    assert way.tried == 0


@in_loop
async def test_wakes_are_heard_from_a_server_that_came_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aibs.placement.reaching.AGAIN_S", 0.01)
    way = Way(AWAY)
    backend, _ = placer_by(way)
    heard = asyncio.ensure_future(_first_wake(backend))
    await until(lambda: way.tried >= 2)
    way.fault = None
    way.reached.wake_queue.put_nowait(frozenset({"a"}))
    assert await heard == {"a"}
    await backend.aclose()


async def _first_wake(backend: Backend) -> frozenset[str]:
    async for names in backend.wakes():
        return names
    raise AssertionError("wakes end never")
