"""Holders, from their opening to their death, on a real server."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import pytest
from redis import Redis

from aibs.errors import PlacementDenied
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from aibs.placement import PlacerTiming
from tests.integration.in_loop import in_loop
from tests.placement_desk import GB, MODEL, Desk, desk
from tests.placement_scenarios import SCENARIOS, MemoryBench, ValkeyBench, play
from tests.placement_scene import until_true
from tests.server_clock import ServerClock
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from pathlib import Path

    from aibs.placement import Backend, Placer
    from aibs.placement.values import Request
    from tests.placement_scenarios import Scenario

NODE = SimSpec("box-c", 90 * GB, (SimModel(MODEL, 7 * GB),), num_parallel=16)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_the_server_keeps_the_contract_and_answers_as_memory_does(
    scenario: Scenario, valkey_url: str
) -> None:
    found = play(scenario, ValkeyBench(valkey_url))
    assert found == play(scenario, MemoryBench())


# --- calls that overtake each other, and answers that are lost


class Watched:
    """A back end whose cancels are told: the word of each says how it met its acquire."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.cancels: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def cancel(self, request: Request) -> str:
        word = await self._inner.cancel(request)
        self.cancels.append(word)
        return word


@pytest.mark.parametrize("seed", [1, 2])
def test_a_cancel_that_overtakes_its_acquire_leaves_no_lease(
    seed: int, valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    rng = random.Random(seed)

    async def jam(proxy: TcpProxy) -> None:
        while True:
            proxy.mode = "hold"
            await asyncio.sleep(rng.uniform(0, 0.05))
            proxy.mode = "pass"
            await asyncio.sleep(rng.uniform(0, 0.02))

    async def interrupted(placer: Placer) -> None:
        async def ask() -> None:
            try:
                async with placer.lease(model=MODEL, timeout=rng.choice((0, 5))):
                    await asyncio.sleep(rng.uniform(0, 0.01))
            except PlacementDenied:
                pass

        asking = asyncio.ensure_future(ask())
        await asyncio.sleep(rng.uniform(0, 0.06))
        asking.cancel()
        await asyncio.wait({asking})

    @in_loop
    async def run() -> None:
        async with (
            TcpProxy(
                cast("int", Redis.from_url(valkey_url).get_connection_kwargs()["port"])
            ) as proxy,
            desk(valkey_url, namespace, tmp_path) as table,
        ):
            met: list[Watched] = []

            def watched(backend: Backend) -> Backend:
                met.append(Watched(backend))
                return cast("Backend", met[-1])

            # Longer than the test: nothing may end by expiry in place of its cancel.
            timing = PlacerTiming(120_000, 1_000, 50, 30_000, 20_000)
            placer = await table.placer(proxy.url, timing=timing, around=watched)
            async with placer:
                jamming = asyncio.ensure_future(jam(proxy))
                words: list[str] = []
                while not {"unseen", "leased", "queued"} <= set(words):
                    await asyncio.gather(*(interrupted(placer) for _ in range(20)))
                    words = met[0].cancels
                jamming.cancel()
                await asyncio.wait({jamming})
                proxy.mode = "pass"
            await until_true(lambda: _idle(table), f"no lease left (seed {seed}): {words}")
            await table.nothing_left()
            assert not await table.events("LeaseExpired", "LateRelease", "DoubleRelease")

    run()


def _port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


async def _idle(table: Desk) -> bool:
    parts = await table.state.read_all()
    return not parts.leases and not parts.waiters


class Lossy:
    """A back end whose answers to one kind of call get lost on the way, some times."""

    def __init__(self, inner: Backend, proxy: TcpProxy, call: str, times: int) -> None:
        self._inner = inner
        self._proxy = proxy
        self._call = call
        self._left = times
        self.lost = 0
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name in ("wakes", "aclose"):
            return method

        async def call(*args: Any, **named: Any) -> Any:
            if name == self._call and self._left > 0:
                self._left -= 1
                return await self._losing(method, *args, **named)
            answer = await method(*args, **named)
            self.calls[name] = self.calls.get(name, 0) + 1
            return answer

        return call

    async def _losing(self, method: Any, *args: Any, **named: Any) -> Any:
        before = self._proxy.replies_dropped
        self._proxy.mode = "drop_replies"
        try:
            return await method(*args, **named)
        finally:
            self.lost += self._proxy.replies_dropped > before
            self._proxy.mode = "pass"


CALLS = ("open_session", "acquire", "heartbeat", "refresh", "report", "cancel", "release")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("call", CALLS)
def test_a_lost_answer_at_any_call_of_the_client_changes_nothing_that_happens(
    call: str,
    times: int,
    valkey_url: str,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aibs.placement.waiting.REFRESH_MS", 200)

    @in_loop
    async def run() -> None:
        async with (
            SimServer((NODE,)) as nodes,
            TcpProxy(_port_of(valkey_url)) as proxy,
            desk(valkey_url, namespace, tmp_path, node_url=nodes.url()) as table,
        ):
            lossy: list[Lossy] = []

            def around(backend: Backend) -> Backend:
                lossy.append(Lossy(backend, proxy, call, times))
                return cast("Backend", lossy[0])

            # Tries enough that what is lost once or twice is never given up.
            async with await table.placer(proxy.url, around=around) as placer:
                await _a_day(placer, lossy[0])
            assert lossy[0].lost == times, "the fault did not hit"
            await table.nothing_left()
            counts = await table.counts()
            happened = {name: counts.get(name, 0) for name in HAPPENS}
            assert happened == HAPPENS

    run()


HAPPENS = {
    "SessionOpened": 1,
    "LeaseAcquired": 3,
    "ModelLoading": 1,
    "ModelLoaded": 1,
    "LeaseQueued": 2,
    "WaitEnded": 2,
    "LeaseReleased": 3,
    "LeaseExpired": 0,
    "LateRelease": 0,
    "DoubleRelease": 0,
    "PoolSuspect": 0,
}
"""What `_a_day` leaves in the log, whatever was lost."""


async def _a_day(placer: Placer, backend: Lossy) -> None:
    """Two leases, a load, two waiters of whom one leaves and one is served."""

    async def wait(queued: asyncio.Event) -> None:
        async with placer.lease(model=MODEL, timeout=20, on_queue=lambda *_: queued.set()):
            pass

    async def called(name: str, more: int) -> None:
        wanted = backend.calls.get(name, 0) + more

        async def enough() -> bool:
            return backend.calls.get(name, 0) >= wanted

        await until_true(enough, f"{more} more answered calls of {name}")

    async with placer.lease(model=MODEL, timeout=20) as first:
        await first.prepare()
        async with placer.lease(model=MODEL, timeout=20):
            queued = [asyncio.Event(), asyncio.Event()]
            waits = [asyncio.ensure_future(wait(one)) for one in queued]
            for one in queued:
                await one.wait()
            await called("refresh", 2)
            waits[0].cancel()
            await asyncio.wait({waits[0]})
        await waits[1]
        await called("heartbeat", 2)
        first.raise_if_lost()


# --- many denials


@in_loop
async def test_ten_thousand_denials_in_a_burst_are_one_event_and_a_count(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    with Redis.from_url(valkey_url) as plain:
        clock = ServerClock(plain, namespace, int(time.time() * 1000))
        async with desk(valkey_url, namespace, tmp_path, overrides=clock.overrides) as table:
            async with (
                await table.placer(timing=PlacerTiming(900_000, 200_000, 100, 30_000)) as placer,
                placer.lease(model=MODEL, timeout=0),
                placer.lease(model=MODEL, timeout=0),
            ):
                before = await table.log.length()
                reasons = await asyncio.gather(*(_denied(placer, 500) for _ in range(20)))
                assert {reason for some in reasons for reason in some} == {"no_slot"}
                assert await table.log.length() == before + 1, "each denial is an event"
                assert len(await table.state.leases()) == 2
                clock.set(clock.now_ms + 10_000)
                await _denied(placer, 1)
                told = await table.events("DenialsCounted")
                assert [event.data["count"] for event in told] == [10_000 - 1]
                assert await table.log.length() == before + 3
            await table.nothing_left()


async def _denied(placer: Placer, times: int) -> list[str]:
    reasons = []
    for _ in range(times):
        try:
            async with placer.lease(model=MODEL, timeout=0):
                reasons.append("granted")
        except PlacementDenied as denied:
            reasons.append(denied.reason)
    return reasons
