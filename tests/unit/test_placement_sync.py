"""The synchronous twin: threads, lost leases, Ctrl-C, and a fork that speaks for nobody else."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from aibs.errors import ConfigurationError, CoordinationUnavailable
from aibs.placement import LeaseLost, PlacementDenied, Placer, PlacerTiming, SyncPlacer
from tests.fake_backend import FakeBackend
from tests.placing import LONG, placer_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

MODEL = "llama3:8b"
QUICK = PlacerTiming(ttl_ms=600, heartbeat_ms=100, poll_ms=20, wait_ms=30_000)
PATIENCE_S = 10.0
CHILD_LIVES_S = 20
"""A forked child that hangs ends by itself."""


class Bench:
    """A sync placer over a fake back end, and the async placers that it opened."""

    def __init__(self, timing: PlacerTiming = LONG, *, slots: int = 1) -> None:
        self.backend = FakeBackend(slots=slots)
        self.opened: list[Placer] = []
        self.timing = timing
        self.placer = SyncPlacer(opener=self._open)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Placer]:
        async with placer_of(self.backend, self.timing) as placer:
            self.opened.append(placer)
            yield placer


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.placer.close()


@pytest.fixture
def quick() -> Iterator[Bench]:
    made = Bench(QUICK)
    yield made
    made.placer.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def test_a_thread_holds_a_lease_and_releases_it(bench: Bench) -> None:
    assert bench.opened == [], "nothing is opened before the first lease"
    with bench.placer.lease(model=MODEL) as lease:
        assert lease.node_base_url == "http://box-a:11434"
        assert lease.lease_id in bench.backend.leases
        assert not lease.lost.is_set()
    assert [outcome for _, outcome, _ in bench.backend.releases] == ["completed"]
    with bench.placer.lease(model=MODEL):
        pass
    assert len(bench.opened) == 1


def test_an_exception_of_the_thread_ends_its_lease_as_failed(bench: Bench) -> None:
    with pytest.raises(KeyError), bench.placer.lease(model=MODEL):
        raise KeyError("work")
    with pytest.raises(KeyboardInterrupt), bench.placer.lease(model=MODEL):
        raise KeyboardInterrupt
    assert [outcome for _, outcome, _ in bench.backend.releases] == ["failed", "cancelled"]


def test_denials_and_misuse_reach_the_thread(bench: Bench) -> None:
    with bench.placer.lease(model=MODEL), pytest.raises(PlacementDenied) as denied:
        bench.placer.lease(model=MODEL, timeout=0).__enter__()
    assert denied.value.reason == "no_slot"
    with pytest.raises(ValueError, match="a model, a role"):
        bench.placer.lease().__enter__()


def test_many_threads_share_one_placer() -> None:
    bench = Bench(slots=2)

    def work(_: int) -> str:
        with bench.placer.lease(model=MODEL, timeout=20) as lease:
            return lease.lease_id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(24)))) == 24
    assert len(bench.opened) == 1
    assert not bench.backend.leases
    bench.placer.close()


def test_a_lost_lease_sets_lost_and_raises_at_the_end(quick: Bench) -> None:
    with pytest.raises(LeaseLost) as lost, quick.placer.lease(model=MODEL) as lease:  # noqa: PT012 - the block raises
        quick.backend.words[lease.lease_id] = "revoked"
        assert lease.lost.wait(PATIENCE_S)
        with pytest.raises(LeaseLost):
            lease.raise_if_lost()
    assert lost.value.why == "revoked"


def test_ctrl_c_while_waiting_takes_the_request_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.backend.slots = 0
    main = threading.main_thread()

    def strike() -> None:
        until(lambda: bool(bench.backend.waiters))
        assert main.ident is not None
        signal.pthread_kill(main.ident, signal.SIGINT)

    thread = threading.Thread(target=strike)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        bench.placer.lease(model=MODEL, timeout=20).__enter__()
    thread.join()
    assert bench.backend.waiters == []
    assert len(bench.backend.cancels) == 1


def test_a_failed_opening_is_told_and_tried_again() -> None:
    fails = [True]
    bench = Bench()

    @asynccontextmanager
    async def opener() -> AsyncIterator[Placer]:
        if fails:
            fails.pop()
            raise CoordinationUnavailable("The server is away.")
        async with placer_of(bench.backend) as placer:
            yield placer

    placer = SyncPlacer(opener=opener)
    with pytest.raises(CoordinationUnavailable):
        placer.lease(model=MODEL).__enter__()
    with placer.lease(model=MODEL) as lease:
        assert lease.lease_id in bench.backend.leases
    placer.close()
    with pytest.raises(ConfigurationError, match="closed"):
        placer.lease(model=MODEL).__enter__()


def test_closing_ends_the_leases_of_other_threads(bench: Bench) -> None:
    ends: list[BaseException] = []

    def work() -> None:
        try:
            with bench.placer.lease(model=MODEL) as lease:
                lease.lost.wait(PATIENCE_S)
        except LeaseLost as error:
            ends.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: bool(bench.backend.leases))
    bench.placer.close()
    thread.join()
    assert len(ends) == 1
    assert not bench.backend.leases


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_speaks_for_itself_only(quick: Bench) -> None:
    with quick.placer.lease(model=MODEL) as lease:
        held = quick.opened[0].holder
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(CHILD_LIVES_S)
            os.write(write, _in_child(quick, lease.lease_id, held).encode())
            os._exit(0)
        os.close(write)
        assert _all(read) == "ok"
        os.waitpid(child, 0)
        beats = len(quick.backend.beats)
        until(lambda: len(quick.backend.beats) > beats + 2)
        assert not lease.lost.is_set(), "the parent's loop lives on"
        assert quick.backend.releases == []


def _in_child(bench: Bench, lease_id: str, holder: str) -> str:
    """What went wrong in the child, or ok. The fake's memory is the child's own copy."""
    try:
        beats = len(bench.backend.beats)
        bench.backend.slots = 2
        with bench.placer.lease(model=MODEL) as own:
            if bench.opened[-1].holder == holder or own.grant.holder == holder:
                return "it goes by its parent's name"
            until(lambda: len(bench.backend.beats) > beats + 2)
            if any(lease_id in ids for ids in bench.backend.beats[beats:]):
                return "it renews its parent's lease"
        if any(one == lease_id for one, _, _ in bench.backend.releases):
            return "it releases its parent's lease"
    except BaseException as error:  # noqa: BLE001 - told to the parent
        return repr(error)
    return "ok"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_that_leaves_the_block_releases_nothing(bench: Bench) -> None:
    read, write = os.pipe()
    block = bench.placer.lease(model=MODEL)
    lease = block.__enter__()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_LIVES_S)
        try:
            block.__exit__(None, None, None)
            lease.raise_if_lost()
            told = "the child may use its parent's lease"
        except ConfigurationError:
            told = "ok" if not bench.backend.releases else "released"
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    assert _all(read) == "ok"
    os.waitpid(child, 0)
    assert bench.backend.releases == []
    block.__exit__(None, None, None)
    assert len(bench.backend.releases) == 1


def _all(descriptor: int) -> str:
    with os.fdopen(descriptor) as pipe:
        return pipe.read()
