"""Releases that are tried by their caller, and what becomes of those that are not answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aibs.clock import SystemClock
from aibs.errors import CoordinationUnavailable
from aibs.placement import endings as endings_module
from aibs.placement.asking import request_of
from aibs.placement.endings import Endings
from aibs.placement.values import Granted
from tests.fake_backend import FakeBackend
from tests.integration.in_loop import in_loop, until
from tests.placing import LONG, placer_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aibs.placement.values import Lease

LATER_MS = 60_000


async def granted(backend: FakeBackend) -> Lease:
    """A lease of the back end that no placer keeps."""
    session = placer_of(backend).session
    request = request_of(
        session,
        LONG,
        model="llama3:8b",
        role=None,
        priority="normal",
        timeout=0,
        ttl=None,
        request_id="r1",
        requester=None,
    )
    answer = await backend.acquire(request, lease_id="a" * 32, call_id="c")
    assert isinstance(answer, Granted)
    return answer.lease


class Scene:
    """A lease, and the endings that are to end it. `done` counts."""

    def __init__(self, backend: FakeBackend, lease: Lease) -> None:
        self.backend = backend
        self.endings = Endings(backend, SystemClock())
        self.lease = lease
        self.done = 0

    def _count(self) -> None:
        self.done += 1

    async def release(self) -> None:
        until_ms = SystemClock().boottime_ms() + LATER_MS
        await self.endings.release(self.lease, "completed", until_ms=until_ms, done=self._count)

    @property
    def call_ids(self) -> set[str]:
        return {detail for call, detail in self.backend.calls if call == "release"}


async def scene() -> Scene:
    backend = FakeBackend()
    return Scene(backend, await granted(backend))


@pytest.mark.parametrize("fault", ["away", "lost"])
@in_loop
async def test_a_try_without_an_answer_is_repeated_and_ends_once(fault: str) -> None:
    made = await scene()
    made.backend.faults["release"] = [fault, fault]
    await made.release()
    assert made.backend.count("release") == 3
    assert (made.done, made.backend.leases) == (1, {})
    assert len(made.call_ids) == 1


@in_loop
async def test_a_cancelled_try_is_repeated_behind_its_caller() -> None:
    made = await scene()
    made.backend.faults["release"] = ["hang"]
    task = asyncio.create_task(made.release())
    await until(lambda: made.backend.count("release") == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: made.done == 1)
    assert made.backend.leases == {}


@in_loop
async def test_a_refused_release_is_not_repeated() -> None:
    made = await scene()
    made.backend.faults["release"] = [ValueError("a fault of programming")]
    await made.release()
    assert (made.done, made.backend.count("release")) == (1, 1)


@in_loop
async def test_settling_waits_for_a_try_and_lets_nothing_begin_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endings_module, "PATIENCE_S", 0.3)
    made = await scene()
    made.backend.faults["release"] = ["hang"] * 9
    tries = [asyncio.create_task(made.release()) for _ in range(2)]
    await until(lambda: made.backend.count("release") == 2)
    # Over before the tries are: what they would leave to a task has nobody to wait for it.
    await made.endings.settle(0.05)
    await asyncio.gather(*tries)
    assert made.done == 2
    before = made.backend.count("release")
    await asyncio.sleep(0.2)
    assert made.backend.count("release") == before


@in_loop
async def test_settling_waits_until_a_slow_try_is_answered() -> None:
    made = await scene()
    made.backend.faults["release"] = ["hang"]
    trying = asyncio.create_task(made.release())
    await until(lambda: made.backend.count("release") == 1)
    settling = asyncio.create_task(made.endings.settle(30))
    await asyncio.sleep(0.05)
    assert not settling.done()
    trying.cancel()
    await asyncio.gather(trying, return_exceptions=True)
    await settling
    assert (made.done, made.backend.leases) == (1, {})


def test_a_try_that_is_closed_behind_its_loop_raises_nothing() -> None:
    loop = asyncio.new_event_loop()
    kept: list[Coroutine[None, None, None]] = []

    async def begin() -> None:
        made = await scene()
        made.backend.faults["release"] = ["hang"]
        trying = made.release()
        trying.send(None)
        trying.send(None)
        kept.append(trying)

    loop.run_until_complete(begin())
    loop.close()
    kept.pop().close()


@in_loop
async def test_patience_is_not_begun_anew_where_a_try_fails_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endings_module, "PATIENCE_S", 0.4)
    made = await scene()

    async def late(*_: object, **__: object) -> object:
        await asyncio.sleep(0.3)
        raise CoordinationUnavailable("The server is away.")

    monkeypatch.setattr(made.backend, "release", late)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await made.release()
    # 0.3 s for the try and what is left of 0.4 s, not 0.4 s more.
    assert loop.time() - began_s < 0.65
    await made.endings.settle(0)
