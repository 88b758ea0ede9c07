"""Heartbeats, trust, and what a lost lease does to the work that holds it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aibs.placement import LeaseLost, PlacerTiming
from aibs.placement import heartbeats as heart_rules
from aibs.placement.trust import margin_ms, trusted_until_ms
from tests.fake_backend import FakeBackend
from tests.integration.in_loop import in_loop, until
from tests.placing import LONG, placer_of

if TYPE_CHECKING:
    from aibs.placement import HeldLease

MODEL = "llama3:8b"
QUICK = PlacerTiming(ttl_ms=600, heartbeat_ms=100, poll_ms=20, wait_ms=30_000)
FOREVER_S = 30.0


def test_the_margin_is_two_percent_within_its_bounds() -> None:
    assert [margin_ms(ttl) for ttl in (1_000, 30_000, 900_000)] == [200, 600, 2_000]


def test_trust_counts_from_before_the_question_and_never_believes_more_than_the_ttl() -> None:
    assert trusted_until_ms(1_000, 30_000, 60_000) == 1_000 + 30_000 - 1_200
    assert trusted_until_ms(1_000, 10**9, 60_000) == 1_000 + 60_000 - 1_200


@in_loop
async def test_heartbeats_keep_a_lease_beyond_its_ttl() -> None:
    backend = FakeBackend()
    async with placer_of(backend, QUICK) as placer, placer.lease(model=MODEL) as lease:
        first = lease.trusted_until_ms
        await until(lambda: lease.trusted_until_ms > first + 800)
        assert not lease.lost.is_set()


@in_loop
async def test_one_call_renews_all_leases_of_the_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heart_rules, "LEASES_A_CALL", 3)
    backend = FakeBackend(slots=5)
    done = asyncio.Event()

    async with placer_of(backend, QUICK) as placer:

        async def work() -> None:
            async with placer.lease(model=MODEL):
                await done.wait()

        tasks = [asyncio.create_task(work()) for _ in range(5)]
        await until(lambda: len(backend.leases) == 5)
        before = len(backend.beats)
        await until(lambda: len(backend.beats) >= before + 4)
        assert sorted(len(ids) for ids in backend.beats[before + 2 : before + 4]) == [2, 3]
        done.set()
        await asyncio.gather(*tasks)


@in_loop
async def test_a_hanging_heartbeat_does_not_delay_the_next() -> None:
    backend = FakeBackend()
    backend.faults["heartbeat"] = ["hang", "lost", RuntimeError("broken"), None]
    async with placer_of(backend, QUICK) as placer, placer.lease(model=MODEL) as lease:
        first = lease.trusted_until_ms
        await until(lambda: lease.trusted_until_ms > first)
        assert not lease.lost.is_set()


@in_loop
async def test_a_call_that_hangs_is_sent_again_within_its_interval() -> None:
    backend = FakeBackend()
    backend.faults["heartbeat"] = ["hang"]
    tight = PlacerTiming(ttl_ms=1_800, heartbeat_ms=800, poll_ms=20, wait_ms=30_000)
    async with placer_of(backend, tight) as placer, placer.lease(model=MODEL) as lease:
        first = lease.trusted_until_ms
        await until(lambda: lease.trusted_until_ms > first)


@pytest.mark.parametrize("word", ["revoked", "expired", "unknown"])
def test_a_lease_that_is_over_cancels_its_work_and_raises_why(word: str) -> None:
    @in_loop
    async def lose() -> None:
        backend = FakeBackend()
        told: list[str] = []
        async with placer_of(backend, QUICK) as placer:
            with pytest.raises(LeaseLost) as lost:  # noqa: PT012 - the block is what raises
                async with placer.lease(model=MODEL) as lease:
                    lease.on_lost(lambda: told.append("lost"))
                    backend.words[lease.lease_id] = word
                    await asyncio.sleep(FOREVER_S)
            assert lost.value.why == word
            assert lost.value.reason == "lease_lost"
            assert told == ["lost"]
            assert lease.lost.is_set()
            assert lease.remaining_ms == 0
            with pytest.raises(LeaseLost):
                lease.raise_if_lost()
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0, "a cancellation is left over"
            await asyncio.sleep(0)
        assert [outcome for _, outcome, _ in backend.releases] == ["cancelled"]

    lose()


@in_loop
async def test_trust_that_runs_out_ends_the_work_before_the_deadline() -> None:
    backend = FakeBackend()
    backend.faults["heartbeat"] = ["away"] * 1000
    loop = asyncio.get_running_loop()
    async with placer_of(backend, QUICK) as placer:
        began = loop.time()
        with pytest.raises(LeaseLost) as lost:
            async with placer.lease(model=MODEL):
                await asyncio.sleep(FOREVER_S)
    assert lost.value.why == "trust_over"
    assert 0.3 < loop.time() - began < 0.6, "600 ms less the margin of 200 ms"


@in_loop
async def test_a_short_trust_beside_a_long_one_ends_in_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heart_rules, "WATCH_MAX_MS", 30_000)
    backend = FakeBackend(slots=2)
    backend.faults["heartbeat"] = ["away"] * 1000
    loop = asyncio.get_running_loop()
    timing = PlacerTiming(ttl_ms=60_000, heartbeat_ms=100, poll_ms=20, wait_ms=30_000)
    async with placer_of(backend, timing) as placer, placer.lease(model=MODEL) as long:
        # The watch sleeps until the long one's end by now.
        await asyncio.sleep(0.05)
        began = loop.time()
        with pytest.raises(LeaseLost) as lost:
            async with placer.lease(model=MODEL, ttl=0.6):
                await asyncio.sleep(FOREVER_S)
        assert loop.time() - began < 1.0
        assert not long.lost.is_set()
    assert lost.value.why == "trust_over"


@in_loop
async def test_a_slow_answer_does_not_lengthen_trust() -> None:
    backend = FakeBackend()
    heartbeat = backend.heartbeat

    async with placer_of(backend, QUICK) as placer, placer.lease(model=MODEL) as lease:
        clock = placer.clock
        sent: list[int] = []

        async def slow(holder, leases):  # type: ignore[no-untyped-def]
            sent.append(clock.boottime_ms())
            answer = await heartbeat(holder, leases)
            await asyncio.sleep(0.04)
            return answer

        backend.heartbeat = slow  # type: ignore[method-assign]
        first = lease.trusted_until_ms
        await until(lambda: lease.trusted_until_ms > first)
        assert lease.trusted_until_ms <= sent[-1] + 600 - 200


@in_loop
async def test_an_outer_cancellation_beside_a_loss_stays_a_cancellation() -> None:
    backend = FakeBackend()
    async with placer_of(backend, LONG) as placer:
        leases: list[HeldLease] = []

        async def work() -> None:
            async with placer.lease(model=MODEL) as lease:
                leases.append(lease)
                await asyncio.sleep(FOREVER_S)

        task = asyncio.create_task(work())
        await until(lambda: bool(leases))
        placer.heart.lose(leases[0], "revoked")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not backend.leases


@in_loop
async def test_an_outer_timeout_beside_a_loss_stays_a_timeout() -> None:
    backend = FakeBackend()
    async with placer_of(backend, LONG) as placer:
        with pytest.raises(TimeoutError):  # noqa: PT012 - the block is what raises
            async with asyncio.timeout(None) as outer, placer.lease(model=MODEL) as lease:
                outer.reschedule(asyncio.get_running_loop().time())
                await asyncio.sleep(0)
                placer.heart.lose(lease, "revoked")
                await asyncio.sleep(FOREVER_S)


@in_loop
async def test_work_that_ends_as_its_lease_is_lost_raises_and_leaves_no_cancellation() -> None:
    backend = FakeBackend()
    async with placer_of(backend, LONG) as placer:
        with pytest.raises(LeaseLost):
            async with placer.lease(model=MODEL) as lease:
                placer.heart.lose(lease, "revoked")
        await asyncio.sleep(0)
        with pytest.raises(KeyError):  # noqa: PT012 - the block is what raises
            async with placer.lease(model=MODEL) as lease:
                placer.heart.lose(lease, "revoked")
                raise KeyError("the work's own")
        await asyncio.sleep(0)


@in_loop
async def test_a_cancellation_beside_the_loss_of_a_finished_work_waits_for_the_release() -> None:
    backend = FakeBackend()
    async with placer_of(backend, LONG) as placer:

        async def work() -> None:
            async with placer.lease(model=MODEL) as lease:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
                placer.heart.lose(lease, "revoked")

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(work())
        assert backend.count("release") == 1
        assert not backend.leases


@in_loop
async def test_of_two_nested_leases_that_are_lost_together_the_outer_one_is_raised() -> None:
    backend = FakeBackend(slots=2)
    async with placer_of(backend, LONG) as placer:
        with pytest.raises(LeaseLost) as lost:  # noqa: PT012 - the block is what raises
            async with placer.lease(model=MODEL) as outer, placer.lease(model=MODEL) as inner:
                placer.heart.lose(inner, "revoked")
                placer.heart.lose(outer, "revoked")
                await asyncio.sleep(FOREVER_S)
        assert lost.value.lease_id == outer.lease_id
        await asyncio.sleep(0)
        assert not backend.leases


@in_loop
async def test_a_loss_breaks_off_a_task_group_of_the_work_and_is_raised() -> None:
    backend = FakeBackend()
    async with placer_of(backend, LONG) as placer:
        with pytest.raises(LeaseLost):  # noqa: PT012 - the block is what raises
            async with placer.lease(model=MODEL) as lease, asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(FOREVER_S))
                asyncio.get_running_loop().call_soon(placer.heart.lose, lease, "revoked")


@in_loop
async def test_a_failing_callback_keeps_no_other_from_hearing_of_the_loss() -> None:
    backend = FakeBackend()
    heard: list[int] = []

    def fail() -> None:
        raise KeyError("callback")

    async with placer_of(backend, LONG) as placer:
        with pytest.raises(LeaseLost):  # noqa: PT012 - the block is what raises
            async with placer.lease(model=MODEL) as lease:
                lease.on_lost(fail)
                lease.on_lost(lambda: heard.append(1))
                placer.heart.lose(lease, "revoked")
                lease.on_lost(lambda: heard.append(2))
                await asyncio.sleep(FOREVER_S)
    assert heard == [1, 2]


@in_loop
async def test_a_released_lease_is_not_renewed() -> None:
    backend = FakeBackend()
    async with placer_of(backend, QUICK) as placer:
        async with placer.lease(model=MODEL):
            await until(lambda: bool(backend.beats))
        beats = len(backend.beats)
        await asyncio.sleep(0.25)
        assert len(backend.beats) == beats
