"""How waiters of one process are woken, refreshed, polled and timed out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aibs.placement import PlacementDenied, PlacerTiming
from aibs.placement import waiting as waiting_rules
from aibs.placement.values import Place
from tests.fake_backend import FakeBackend
from tests.integration.in_loop import in_loop, until
from tests.placing import LONG, placer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aibs.placement import Placer

MODEL = "llama3:8b"
NO_POLLS = PlacerTiming(ttl_ms=60_000, heartbeat_ms=20_000, poll_ms=3_600_000, wait_ms=60_000)


async def _hold(placer: Placer, done: asyncio.Event, order: list[int], number: int) -> None:
    async with placer.lease(model=MODEL, timeout=30):
        order.append(number)
        await done.wait()


@in_loop
async def test_a_wake_alone_brings_the_waiter_its_lease() -> None:
    backend = FakeBackend()
    order: list[int] = []
    async with placer_of(backend, NO_POLLS) as placer:
        first, second = asyncio.Event(), asyncio.Event()
        second.set()
        one = asyncio.create_task(_hold(placer, first, order, 1))
        await until(lambda: bool(backend.leases))
        two = asyncio.create_task(_hold(placer, second, order, 2))
        await until(lambda: bool(backend.waiters))
        first.set()
        async with asyncio.timeout(1.5):
            await asyncio.gather(one, two)
    assert order == [1, 2]


@in_loop
async def test_a_wake_before_the_queued_answer_is_not_lost() -> None:
    backend = FakeBackend(slots=0)

    def wake(call: str) -> None:
        if call == "acquire" and backend.count("acquire") == 1:
            keys = [f"test|{placer.holder}|r"]
            backend.wake_queue.put_nowait(frozenset(keys))
            asyncio.get_running_loop().call_later(0.05, setattr, backend, "slots", 1)

    async def slow(*_: object) -> None:
        await asyncio.sleep(0.1)

    backend.on_call = wake
    placer = placer_of(backend, NO_POLLS)
    acquire = backend.acquire

    async def slow_acquire(request, *, lease_id, call_id):  # type: ignore[no-untyped-def]
        answer = await acquire(request, lease_id=lease_id, call_id=call_id)
        await slow()
        return answer

    backend.acquire = slow_acquire  # type: ignore[method-assign]
    async with placer, asyncio.timeout(1.5), placer.lease(model=MODEL, request_id="r", timeout=30):
        assert backend.count("acquire") == 2


@in_loop
async def test_without_wakes_the_poll_interval_brings_the_lease() -> None:
    backend = FakeBackend()
    backend.wakes_on_release = False
    order: list[int] = []
    async with placer_of(backend, LONG) as placer:
        first, second = asyncio.Event(), asyncio.Event()
        second.set()
        one = asyncio.create_task(_hold(placer, first, order, 1))
        await until(lambda: bool(backend.leases))
        two = asyncio.create_task(_hold(placer, second, order, 2))
        await until(lambda: bool(backend.waiters))
        first.set()
        async with asyncio.timeout(1.5):
            await asyncio.gather(one, two)


@in_loop
async def test_only_the_first_waiters_of_a_process_poll() -> None:
    backend = FakeBackend(slots=0)
    many = waiting_rules.POLLERS_MAX + 4
    async with placer_of(backend, LONG) as placer:
        tasks = [
            asyncio.create_task(_hold(placer, asyncio.Event(), [], number))
            for number in range(many)
        ]
        await until(lambda: len(backend.waiters) == many)
        asked = len([call for call, _ in backend.calls if call == "acquire"])
        await until(lambda: backend.count("acquire") > asked + 40)
        by_lease: dict[str, int] = {}
        for call, detail in backend.calls:
            if call == "acquire":
                by_lease[detail[0]] = by_lease.get(detail[0], 0) + 1
        assert sum(1 for count in by_lease.values() if count > 1) == waiting_rules.POLLERS_MAX
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@in_loop
async def test_places_of_all_waiters_are_refreshed_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_rules, "REFRESH_MS", 50)
    monkeypatch.setattr(waiting_rules, "PLACES_A_CALL", 3)
    backend = FakeBackend(slots=0)
    async with placer_of(backend, NO_POLLS) as placer:
        tasks = [
            asyncio.create_task(_hold(placer, asyncio.Event(), [], number)) for number in range(5)
        ]
        await until(lambda: len(backend.waiters) == 5)
        before = backend.count("refresh")
        await until(lambda: backend.count("refresh") >= before + 4)
        sizes = [len(keys) for call, keys in backend.calls if call == "refresh"]
        assert sizes[before + 2 : before + 4] in ([3, 2], [2, 3])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@in_loop
async def test_a_forgotten_waiter_asks_again_and_failed_refreshes_stop_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_rules, "REFRESH_MS", 50)
    backend = FakeBackend(slots=0)
    backend.faults["refresh"] = ["away", "hang", RuntimeError("broken")]
    async with placer_of(backend, NO_POLLS) as placer:
        task = asyncio.create_task(_hold(placer, asyncio.Event(), [], 1))
        await until(lambda: bool(backend.waiters))
        backend.waiters.clear()
        await until(lambda: bool(backend.waiters))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@in_loop
async def test_on_queue_hears_each_change_of_place_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_rules, "REFRESH_MS", 30)
    backend = FakeBackend(slots=0)
    places = [3, 3, 2]

    async def refresh(holder: str, keys: Sequence[str]) -> list[Place]:
        return [Place(key, "queued", position=places.pop(0) if places else 2) for key in keys]

    backend.refresh = refresh  # type: ignore[method-assign, assignment]
    heard: list[tuple[int, str]] = []
    async with placer_of(backend, NO_POLLS) as placer:
        block = placer.lease(
            model=MODEL, timeout=30, on_queue=lambda place, why: heard.append((place, why))
        )
        task = asyncio.ensure_future(block.__aenter__())
        await until(lambda: len(heard) == 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert heard == [(1, "no_slot"), (3, "no_slot"), (2, "no_slot")]


@in_loop
async def test_a_failing_on_queue_takes_the_request_back() -> None:
    backend = FakeBackend(slots=0)

    def fail(_place: int, _reason: str) -> None:
        raise KeyError("callback")

    async with placer_of(backend) as placer:
        with pytest.raises(KeyError):
            await placer.lease(model=MODEL, timeout=30, on_queue=fail).__aenter__()
    assert len(backend.cancels) == 1


@in_loop
async def test_at_the_deadline_one_last_question_then_wait_timeout() -> None:
    backend = FakeBackend(slots=0)
    async with placer_of(backend, NO_POLLS) as placer:
        with pytest.raises(PlacementDenied) as denied:
            await placer.lease(model=MODEL, timeout=0.2).__aenter__()
    assert denied.value.reason == "wait_timeout"
    assert denied.value.position == 1
    assert "box-a has no free slot" in str(denied.value)
    assert backend.count("acquire") == 2
    assert backend.cancels == [], "the script ended it"


@in_loop
async def test_a_server_whose_clock_lags_is_told_that_the_wait_is_over() -> None:
    backend = FakeBackend(slots=0)
    async with placer_of(backend, NO_POLLS) as placer:
        block = placer.lease(model=MODEL, timeout=0.2)
        task = asyncio.ensure_future(block.__aenter__())
        await until(lambda: bool(backend.waiters))
        for key in backend.wait_until:
            backend.wait_until[key] += 60_000
        with pytest.raises(PlacementDenied) as denied:
            await task
        assert denied.value.reason == "wait_timeout"
        await until(lambda: not backend.waiters)
