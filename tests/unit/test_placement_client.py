"""The placer against a scripted back end: what it sends, what it raises, what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import TYPE_CHECKING, Any, cast

import pytest

from aibs.errors import ConfigurationError
from aibs.placement import LeaseLost, PlacementDenied
from aibs.placement.asking import request_of
from aibs.placement.values import Denied, NodeReason
from tests.fake_backend import FakeBackend
from tests.integration.in_loop import in_loop, until
from tests.placing import LONG, placer_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aibs.placement import Placer

MODEL = "llama3:8b"
REST: Any = {"role": None, "priority": "normal", "timeout": None, "ttl": None, "requester": None}


@in_loop
async def test_a_granted_lease_says_where_to_go_and_is_released_as_completed() -> None:
    backend = FakeBackend()
    async with placer_of(backend) as placer:
        async with placer.lease(model="LLAMA3:8b") as lease:
            assert (lease.node_id, lease.node_base_url) == ("box-a", "http://box-a:11434")
            assert lease.remaining_ms > 50_000
        assert [outcome for _, outcome, _ in backend.releases] == ["completed"]
        assert backend.cancels == []
    assert [session.holder for session in backend.sessions] == [placer.holder]


@in_loop
async def test_a_lease_that_was_given_back_leaves_nothing_to_the_garbage_collector() -> None:
    async def served(placer: Placer, seen: list[weakref.ref[object]]) -> None:
        async with placer.lease(model=MODEL) as lease:
            seen += [weakref.ref(lease.lost), weakref.ref(cast("Any", asyncio.current_task()))]

    seen: list[weakref.ref[object]] = []
    gc.collect()
    gc.disable()
    try:
        async with placer_of(FakeBackend()) as placer:
            await asyncio.create_task(served(placer, seen))
            await asyncio.sleep(0)
            assert [one() for one in seen] == [None, None]
    finally:
        gc.enable()


@in_loop
async def test_an_exception_ends_the_lease_as_failed_and_goes_on() -> None:
    backend = FakeBackend()
    async with placer_of(backend) as placer:
        with pytest.raises(KeyError):
            async with placer.lease(model=MODEL):
                raise KeyError("work")
    assert [outcome for _, outcome, _ in backend.releases] == ["failed"]


@in_loop
async def test_a_cancelled_block_ends_its_lease_as_cancelled_and_stays_cancelled() -> None:
    backend = FakeBackend()
    async with placer_of(backend) as placer:
        entered = asyncio.Event()

        async def work() -> None:
            async with placer.lease(model=MODEL):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [outcome for _, outcome, _ in backend.releases] == ["cancelled"]


@in_loop
async def test_a_release_is_repeated_with_its_call_id_until_answered() -> None:
    backend = FakeBackend()
    backend.faults["release"] = ["lost", "away", None]
    async with placer_of(backend) as placer, placer.lease(model=MODEL):
        pass
    assert backend.count("release") == 3
    assert len({detail for call, detail in backend.calls if call == "release"}) == 1


@in_loop
async def test_a_second_cancellation_does_not_stop_the_release() -> None:
    backend = FakeBackend()
    backend.faults["release"] = ["away"] * 3
    async with placer_of(backend) as placer:
        entered = asyncio.Event()

        async def work() -> None:
            async with placer.lease(model=MODEL):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        await until(lambda: backend.count("release") == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.leases, "the first call was not done"
        await until(lambda: not backend.leases)
    assert backend.count("release") == 4


@in_loop
async def test_nothing_waits_where_no_waiting_time_is_given() -> None:
    backend = FakeBackend(slots=0)
    async with placer_of(backend) as placer:
        with pytest.raises(PlacementDenied) as denied:
            async with placer.lease(model=MODEL, timeout=0):
                raise AssertionError("there is no slot")
    assert denied.value.reason == "no_slot"
    assert denied.value.nodes == (NodeReason("box-a", "no_slot"),)
    assert denied.value.retry_after_ms == 1000
    assert "box-a has no free slot" in str(denied.value)
    assert (backend.count("acquire"), backend.count("cancel")) == (1, 0)


@in_loop
async def test_a_denied_request_is_not_cancelled() -> None:
    backend = FakeBackend()
    backend.deny = Denied("unknown_model")
    async with placer_of(backend) as placer:
        with pytest.raises(PlacementDenied, match="no worker of the roster"):
            await placer.lease(model="mistral").__aenter__()
    assert backend.cancels == []


@in_loop
async def test_a_lost_grant_is_asked_for_again_as_the_same() -> None:
    backend = FakeBackend()
    backend.faults["acquire"] = ["lost", "lost"]
    async with placer_of(backend) as placer, placer.lease(model=MODEL) as lease:
        assert lease.lease_id in backend.leases
        asked = {detail for call, detail in backend.calls if call == "acquire"}
        assert len(asked) == 1, "another lease or call id is another question"


@in_loop
async def test_a_lost_grant_without_waiting_time_is_asked_for_once_more() -> None:
    backend = FakeBackend()
    backend.faults["acquire"] = ["lost"]
    async with placer_of(backend) as placer, placer.lease(model=MODEL, timeout=0) as lease:
        assert lease.lease_id in backend.leases


@in_loop
async def test_answers_that_stay_lost_are_denied_and_cancelled_behind() -> None:
    backend = FakeBackend()
    backend.faults["acquire"] = ["lost"] * 50
    async with placer_of(backend) as placer:
        with pytest.raises(PlacementDenied) as denied:
            await placer.lease(model=MODEL, timeout=0.2).__aenter__()
        assert denied.value.reason == "coordination_unavailable"
        await until(lambda: bool(backend.cancels))
        assert not backend.leases, "a grant that nobody holds"


@in_loop
async def test_a_server_that_is_away_denies_at_once_and_needs_no_cancel() -> None:
    backend = FakeBackend()
    backend.faults["acquire"] = ["away"] * 50
    async with placer_of(backend) as placer:
        with pytest.raises(PlacementDenied) as denied:
            await placer.lease(model=MODEL, timeout=0).__aenter__()
    assert denied.value.reason == "coordination_unavailable"
    assert (backend.count("acquire"), backend.count("cancel")) == (1, 0)


@in_loop
async def test_a_server_that_comes_back_within_the_timeout_serves() -> None:
    backend = FakeBackend()
    backend.faults["acquire"] = ["away", "away", None]
    async with placer_of(backend) as placer, placer.lease(model=MODEL, timeout=10):
        assert backend.count("acquire") == 3


async def _interrupted(placer: Placer, backend: FakeBackend) -> asyncio.Task[None]:
    async def work() -> None:
        async with placer.lease(model=MODEL, timeout=20):
            raise AssertionError("it was to be interrupted before")

    task = asyncio.create_task(work())
    await until(lambda: backend.count("acquire") >= 1)
    return task


@in_loop
async def test_an_interrupted_acquire_is_cancelled_until_answered_and_stays_cancelled() -> None:
    backend = FakeBackend()
    backend.faults["acquire"] = ["hang"]
    backend.faults["cancel"] = ["away", "lost"]
    async with placer_of(backend) as placer:
        task = await _interrupted(placer, backend)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.count("cancel") == 3


@in_loop
async def test_an_interrupted_waiter_leaves_the_queue() -> None:
    backend = FakeBackend(slots=0)
    async with placer_of(backend) as placer:
        task = await _interrupted(placer, backend)
        await until(lambda: bool(backend.waiters))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.waiters == []


@in_loop
async def test_an_outer_timeout_in_acquire_stays_a_timeout_and_cancels() -> None:
    backend = FakeBackend(slots=0)
    async with placer_of(backend) as placer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), placer.lease(model=MODEL, timeout=20):
                raise AssertionError("there is no slot")
        assert len(backend.cancels) == 1


@in_loop
async def test_a_closed_coroutine_cancels_its_request() -> None:
    backend = FakeBackend(slots=0)
    async with placer_of(backend) as placer:
        block = placer.lease(model=MODEL, timeout=20).__aenter__()
        waiting = asyncio.ensure_future(_step(block))
        await until(lambda: bool(backend.waiters))
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await until(lambda: bool(backend.cancels))


async def _step(block: object) -> None:
    """Runs a coroutine by hand and closes it where it stands, as a collected frame would be."""
    coroutine = block
    try:
        while True:
            future = coroutine.send(None)  # type: ignore[attr-defined]
            if future is not None:
                future._asyncio_future_blocking = False
                await asyncio.wait({future})
            else:
                await asyncio.sleep(0)
    finally:
        coroutine.close()  # type: ignore[attr-defined]


@in_loop
async def test_an_abandoned_generator_releases_its_lease() -> None:
    backend = FakeBackend()
    async with placer_of(backend) as placer:

        async def parts() -> AsyncIterator[int]:
            async with placer.lease(model=MODEL):
                yield 1
                yield 2

        generator = parts()
        assert await anext(generator) == 1
        await generator.aclose()  # type: ignore[attr-defined]
        await until(lambda: not backend.leases)
    assert [outcome for _, outcome, _ in backend.releases] == ["cancelled"]


@in_loop
async def test_the_same_request_twice_in_a_process_never_ends_the_first() -> None:
    backend = FakeBackend()
    async with placer_of(backend) as placer, placer.lease(model=MODEL, request_id="r") as first:
        with pytest.raises(PlacementDenied) as denied:
            await placer.lease(model=MODEL, request_id="r").__aenter__()
        assert denied.value.reason == "request_conflict"
        assert first.lease_id in backend.leases
        assert backend.cancels == []


@in_loop
async def test_the_lease_of_another_process_is_not_taken_over() -> None:
    backend = FakeBackend()
    async with (
        placer_of(backend) as one,
        placer_of(backend) as other,
        one.lease(model=MODEL, request_id="r", requester="key") as lease,
    ):
        with pytest.raises(PlacementDenied) as denied:
            await other.lease(model=MODEL, request_id="r", requester="key").__aenter__()
        assert denied.value.reason == "request_conflict"
        assert lease.lease_id in backend.leases
        assert backend.cancels == []


@in_loop
async def test_closing_the_placer_ends_its_leases_and_waits() -> None:
    backend = FakeBackend()
    ends: list[BaseException] = []

    async def work(placer: Placer) -> None:
        try:
            async with placer.lease(model=MODEL, timeout=20):
                await asyncio.Event().wait()
        except (LeaseLost, ConfigurationError) as error:
            ends.append(error)

    placer = placer_of(backend)
    async with placer:
        first = asyncio.create_task(work(placer))
        await until(lambda: bool(backend.leases))
        second = asyncio.create_task(work(placer))
        await until(lambda: bool(backend.waiters))
    await asyncio.gather(first, second)
    assert {type(end) for end in ends} == {LeaseLost, ConfigurationError}
    assert not backend.leases
    assert not backend.waiters
    with pytest.raises(ConfigurationError, match="not open"):
        await placer.lease(model=MODEL).__aenter__()


def test_a_placer_of_another_loop_says_so() -> None:
    backend = FakeBackend()
    placers: list[Placer] = []

    async def open_only() -> None:
        placers.append(await placer_of(backend).__aenter__())

    async def use() -> None:
        with pytest.raises(ConfigurationError, match="another event loop"):
            await placers[0].lease(model=MODEL).__aenter__()

    asyncio.run(open_only())
    asyncio.run(use())


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"model": "not a name"},
        {"model": MODEL, "priority": "urgent"},
        {"model": MODEL, "timeout": -1},
        {"model": MODEL, "timeout": float("nan")},
        {"model": MODEL, "ttl": 20},
        {"model": MODEL, "request_id": ""},
        {"model": MODEL, "request_id": "é" * 65},
        {"model": MODEL, "requester": "a|b"},
        {"model": MODEL, "avoid": ["box-a", "no node"]},
        {"model": MODEL, "avoid": [f"box-{number}" for number in range(9)]},
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(asked: dict[str, str]) -> None:
    @in_loop
    async def ask() -> None:
        backend = FakeBackend()
        async with placer_of(backend) as placer:
            with pytest.raises(ValueError, match=r"[Tt]he |A lease"):
                placer.lease(**asked)  # type: ignore[arg-type]
        assert backend.count("acquire") == 0

    ask()


@in_loop
async def test_a_node_to_avoid_is_part_of_the_question_and_not_of_what_the_request_is() -> None:
    backend = FakeBackend()
    async with placer_of(backend) as placer:
        with pytest.raises(PlacementDenied) as denied:
            async with placer.lease(model=MODEL, timeout=30, avoid=["box-a", "box-a"]):
                raise AssertionError("placed on the node that it avoids")
        async with placer.lease(model=MODEL, request_id="r", avoid={"box-b"}) as lease:
            assert lease.node_id == "box-a"
        plain, avoiding = (
            request_of(placer.session, LONG, model=MODEL, request_id="r", avoid=avoid, **REST)
            for avoid in ((), ("box-b", "box-a", "box-b"))
        )
    assert denied.value.reason == "node_unhealthy"
    assert "box-a failed this request before" in denied.value.sentence
    assert avoiding.avoid == ("box-a", "box-b")
    assert avoiding.request_hash == plain.request_hash


@in_loop
async def test_a_session_that_is_not_answered_delays_no_lease() -> None:
    backend = FakeBackend()
    backend.faults["open_session"] = ["away", "lost", None]
    async with placer_of(backend) as placer, placer.lease(model=MODEL):
        await until(lambda: bool(backend.sessions))
