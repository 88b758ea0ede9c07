"""How a placer closes a node that fails: told to the pool, and nobody's work hangs on that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aibs.errors import PoolVersionMismatch
from aibs.placement import tripping
from tests.fake_backend import FakeBackend
from tests.integration.in_loop import in_loop
from tests.placing import placer_of

if TYPE_CHECKING:
    import pytest


@in_loop
async def test_a_node_that_is_closed_already_or_unknown_is_told_apart() -> None:
    backend = FakeBackend()
    async with placer_of(backend) as placer:
        assert await placer.trip("box-a", "resets")
        assert not await placer.trip("box-a", "resets")
        assert not await placer.trip("box-x", "resets")


@in_loop
async def test_a_trip_that_is_not_answered_is_repeated() -> None:
    backend = FakeBackend()
    backend.faults["trip"] = ["away", "away", None]
    async with placer_of(backend) as placer:
        assert await placer.trip("box-a", "resets")
    assert backend.count("trip") == 3


@in_loop
async def test_a_server_that_stays_away_or_hangs_costs_the_caller_no_error_and_no_long_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tripping, "ANSWER_S", 0.02)
    monkeypatch.setattr(tripping, "PAUSE_FIRST_S", 0.001)
    backend = FakeBackend()
    backend.faults["trip"] = ["away", "hang", "lost", "hang", "away", "away"]
    async with placer_of(backend) as placer, asyncio.timeout(5):
        assert not await placer.trip("box-a", "resets")
    assert backend.count("trip") == tripping.TRIES_MAX


@in_loop
async def test_a_pool_of_another_release_is_not_asked_again() -> None:
    backend = FakeBackend()
    backend.faults["trip"] = [PoolVersionMismatch("Another release wrote the pool.")]
    async with placer_of(backend) as placer:
        assert not await placer.trip("box-a", "resets")
    assert backend.count("trip") == 1


@in_loop
async def test_what_a_node_said_is_cut_and_made_printable_before_everybody_reads_it() -> None:
    backend = FakeBackend()
    async with placer_of(backend) as placer:
        await placer.trip("box-a", "reset\x1b[31m\udcff" + "x" * 5_000)
    why = backend.trips["box-a"]
    assert why.startswith("reset\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}xxx")
    assert len(why) == tripping.WHY_MAX + 1
