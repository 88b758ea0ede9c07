"""Requests that cannot wait for a coordination server: refused at once, and nothing left behind."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from aibs.errors import AibsError, PoolMissing
from aibs.placement import PlacementDenied, Placer, acquisition, outage
from aibs.placement import waiting as waiting_rules
from tests.fake_backend import FakeBackend
from tests.integration.in_loop import in_loop, until
from tests.placing import LONG, placer_of

MODEL = "llama3:8b"
NO_POLLS = replace(LONG, poll_ms=3_600_000)
SHORT_GRACE = replace(LONG, grace_ms=300)


async def refused(placer: Placer, timeout: float = 30) -> tuple[PlacementDenied, float]:
    """A request that cannot wait, and how long its refusal took."""
    began = time.monotonic()
    with pytest.raises(PlacementDenied) as denied:
        async with placer.lease(model=MODEL, timeout=timeout, patient=False):
            raise AssertionError("granted")
    return denied.value, time.monotonic() - began


@pytest.mark.parametrize("fault", ["away", PoolMissing("The pool is not there.")], ids=str)
@in_loop
async def test_a_server_that_refuses_the_first_question_denies_at_once(
    fault: str | AibsError,
) -> None:
    backend = FakeBackend()
    backend.faults["acquire"] = [fault] * 50
    async with placer_of(backend) as placer:
        denied, took = await refused(placer)
    assert denied.reason == "coordination_unavailable"
    assert took < 1
    assert (backend.count("acquire"), backend.count("cancel")) == (1, 0)


@in_loop
async def test_a_lost_answer_is_asked_for_once_more_because_it_may_be_a_grant() -> None:
    backend = FakeBackend()
    backend.faults["acquire"] = ["lost"]
    async with (
        placer_of(backend) as placer,
        placer.lease(model=MODEL, timeout=30, patient=False) as lease,
    ):
        assert lease.lease_id in backend.leases
    assert backend.count("acquire") == 2


@in_loop
async def test_answers_that_stay_lost_are_denied_after_the_second_and_taken_back_behind() -> None:
    backend = FakeBackend()
    backend.faults["acquire"] = ["lost"] * 50
    backend.faults["cancel"] = ["away"]
    async with placer_of(backend) as placer:
        denied, took = await refused(placer)
        assert denied.reason == "coordination_unavailable"
        assert took < 1
        assert backend.count("acquire") == 2
        await until(lambda: bool(backend.cancels))
        assert not backend.leases, "a grant that nobody holds"


@in_loop
async def test_a_question_that_hangs_is_given_up_and_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acquisition, "IMPATIENT_ANSWER_S", 0.05)
    backend = FakeBackend()
    backend.faults["acquire"] = ["hang"] * 50
    async with placer_of(backend) as placer:
        denied, took = await refused(placer)
        assert denied.reason == "coordination_unavailable"
        assert "did not answer within 0.05 s" in denied.sentence
        assert took < 1
        assert backend.count("acquire") == 2, "pings are answered: it may have been the moment"
        await until(lambda: bool(backend.cancels))


@in_loop
async def test_a_thousand_requests_to_a_server_that_hangs_do_not_each_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acquisition, "IMPATIENT_ANSWER_S", 0.1)
    monkeypatch.setattr(outage, "PROBE_S", 0.1)
    backend = FakeBackend()
    backend.faults["acquire"], backend.faults["ping"] = ["hang"] * 9, ["hang"] * 9
    async with placer_of(backend) as placer:
        await refused(placer)
        assert backend.count("acquire") == 1, "asked again while the server is known to be away"
        found = await asyncio.gather(*(refused(placer) for _ in range(1_000)))
        assert {one.reason for one, _ in found} == {"coordination_unavailable"}
        assert all("has not answered within" in one.sentence for one, _ in found)
        assert backend.count("acquire") == 1, "sent to a server that is known to be away"
        await until(lambda: backend.count("cancel") == 1)
        await asyncio.sleep(0)
        assert backend.count("cancel") == 1, "what was never sent is not taken back"


@in_loop
async def test_a_server_that_is_back_serves_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outage, "PROBE_EVERY_MS", 20)
    backend = FakeBackend()
    backend.faults["acquire"], backend.faults["ping"] = ["away"], ["away"] * 3
    async with placer_of(backend) as placer:
        await refused(placer)
        while await placer.outage.error() is not None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.002)
        assert backend.count("ping") == 4
        async with placer.lease(model=MODEL, timeout=0, patient=False):
            assert backend.count("acquire") == 2


@in_loop
async def test_one_that_is_patient_waits_for_the_server_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outage, "PROBE_EVERY_MS", 20)
    backend = FakeBackend()
    backend.faults["acquire"], backend.faults["ping"] = ["away"] * 4, ["away"] * 50
    async with placer_of(backend) as placer:
        await refused(placer)
        async with placer.lease(model=MODEL, timeout=20):
            assert backend.count("acquire") == 5
        async with placer.lease(model=MODEL, timeout=0, patient=False):
            assert backend.count("acquire") == 6, "an answered call did not end the outage"


async def _queued(placer: Placer, backend: FakeBackend) -> asyncio.Task[tuple[object, float]]:
    task = asyncio.create_task(refused(placer))
    await until(lambda: bool(backend.waiters))
    return task


@in_loop
async def test_a_waiter_whose_server_goes_away_waits_for_it_as_long_as_its_place_lives() -> None:
    backend = FakeBackend(slots=0)
    async with placer_of(backend, replace(LONG, grace_ms=20_000)) as placer:

        async def wait() -> str:
            async with placer.lease(model=MODEL, timeout=30, patient=False) as lease:
                return lease.lease_id

        waiting = asyncio.create_task(wait())
        await until(lambda: bool(backend.waiters))
        backend.slots = 1
        backend.faults["acquire"] = ["away", "lost", "away"]
        async with asyncio.timeout(10):
            assert await waiting


@in_loop
async def test_a_waiter_whose_server_stays_away_is_denied_when_its_place_is_over() -> None:
    backend = FakeBackend(slots=0)
    async with placer_of(backend, SHORT_GRACE) as placer:
        waiting = await _queued(placer, backend)
        for call in ("acquire", "refresh", "ping"):
            backend.faults[call] = ["away"] * 10_000
        async with asyncio.timeout(10):
            denied, _ = await waiting
        assert isinstance(denied, PlacementDenied)
        assert denied.reason == "coordination_unavailable"
        assert denied.position == 1
        await until(lambda: bool(backend.cancels))


@in_loop
async def test_a_waiter_that_nobody_tells_to_ask_finds_out_by_itself_that_the_server_is_away() -> (
    None
):
    backend = FakeBackend(slots=0)
    async with placer_of(backend, replace(NO_POLLS, grace_ms=300)) as placer:
        waiting = await _queued(placer, backend)
        for call in ("acquire", "refresh", "ping"):
            backend.faults[call] = ["hang" if call == "refresh" else "away"] * 100
        async with asyncio.timeout(10):
            denied, _ = await waiting
        assert isinstance(denied, PlacementDenied)
        assert denied.reason == "coordination_unavailable"


@in_loop
async def test_a_waiter_whose_place_is_confirmed_is_not_made_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_rules, "REFRESH_MS", 50)
    monkeypatch.setattr(waiting_rules, "HEARING_S", 60)
    backend = FakeBackend(slots=0)
    async with placer_of(backend, replace(NO_POLLS, grace_ms=200)) as placer:
        waiting = await _queued(placer, backend)
        await until(lambda: backend.count("refresh") >= 12)
        assert backend.count("acquire") == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@in_loop
async def test_one_that_is_patient_is_not_made_to_ask_by_a_place_that_is_not_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_rules, "HEARING_S", 60)
    backend = FakeBackend(slots=0)
    backend.faults["refresh"] = ["away"] * 1_000
    async with placer_of(backend, replace(NO_POLLS, grace_ms=50)) as placer:
        waiting = asyncio.ensure_future(placer.lease(model=MODEL, timeout=30).__aenter__())
        await until(lambda: bool(backend.waiters))
        await asyncio.sleep(0.3)
        assert backend.count("acquire") == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
