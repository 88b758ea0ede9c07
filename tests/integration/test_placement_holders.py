"""Holders, from their opening to their death, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import httpx
import pytest
from redis import Redis

from aibs import settings
from aibs.codec import loads
from aibs.errors import ConfigurationError, PlacementDenied
from aibs.eventstore.scripts import packaged, script_names
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from aibs.placement import PlacerTiming, SyncPlacer
from aibs.placement.asking import request_of
from aibs.placement.session import open_identity
from aibs.placement.values import Granted
from tests.integration.in_loop import in_loop, until
from tests.node_scenarios import NODE_SCENARIOS
from tests.placement_desk import GB, MODEL, TIMING, Desk, desk, visit
from tests.placement_scenarios import SCENARIOS, MemoryBench, ValkeyBench, play
from tests.placement_scene import DRAIN_S, NODES, generate_short, renewed, scene, until_true
from tests.server_clock import ServerClock
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from aibs.placement import Backend, Placer
    from aibs.placement.values import Request, Session
    from tests.placement_scenarios import Scenario
    from tests.placement_scene import Scene
    from tests.valkey_server import ValkeyServer

NODE = SimSpec("box-c", 90 * GB, (SimModel(MODEL, 7 * GB),), num_parallel=16)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *NODE_SCENARIOS], ids=lambda one: one.__name__)
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


@in_loop
async def test_an_acquire_that_arrives_after_its_cancel_takes_no_lease(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with (
        TcpProxy(own_valkey.port) as proxy,
        desk(own_valkey.url, "drill", tmp_path) as table,
    ):
        met: list[Watched] = []

        def watched(backend: Backend) -> Backend:
            met.append(Watched(backend))
            return cast("Backend", met[-1])

        async with await table.placer(proxy.url, around=watched) as placer:
            _load_scripts(own_valkey.url)
            gate = proxy.hold_present()
            block = placer.lease(model=MODEL, timeout=0)
            asking = asyncio.ensure_future(block.__aenter__())
            await until(lambda: proxy.held > 0)
            asking.cancel()
            await asyncio.wait({asking})
            await until(lambda: "unseen" in met[0].cancels)
            with contextlib.closing(own_valkey.client()) as plain:

                def scripts_run() -> int:
                    return int(plain.info("commandstats")["cmdstat_evalsha"]["calls"])

                before = scripts_run()
                gate.set()
                await until(lambda: scripts_run() > before)
            await table.nothing_left()
            assert not await table.events("LeaseAcquired"), "a cancelled request took a lease"


def _load_scripts(url: str) -> None:
    """Calls by name are run at once: else the answer that is lost says only `no such script`."""
    with contextlib.closing(Redis.from_url(url)) as plain:
        run_id = plain.info("server")["run_id"]
        for name in script_names():
            plain.script_load(packaged(name, run_id).text)


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

            _load_scripts(valkey_url)
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


# --- holders that die, stop and come back


class LongHolder:
    """A process with leases and endless work under them."""

    def __init__(self, environ: dict[str, str], directory: Path, name: str, leases: int) -> None:
        self._out = directory / f"{name}.out"
        with self._out.open("wb") as out, (directory / f"{name}.err").open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.drills.long_holder", str(leases)],
                env={
                    **os.environ,
                    **environ,
                    "PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
                },
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send it one."""
        self._process.send_signal(number)

    def said(self, word: str) -> list[dict[str, Any]]:
        """Its lines that have the word. What it logs stands between them."""
        whole = self._out.read_bytes().rpartition(b"\n")[0].splitlines()
        lines = [loads(line) for line in whole if line.startswith(b"{")]
        return [line for line in lines if word in line]

    async def says(self, word: str, times: int = 1) -> list[dict[str, Any]]:
        """Wait for that many such lines."""

        async def enough() -> bool:
            return len(self.said(word)) >= times

        await until_true(enough, f"a holder saying {word} {times} times")
        return self.said(word)

    async def ended(self) -> None:
        """Wait until it is gone."""
        await asyncio.to_thread(self._process.wait, 30)

    def kill(self) -> None:
        """Leave nothing behind."""
        if self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self._process.wait()


@asynccontextmanager
async def _holders(drill: Scene, **changes: str) -> AsyncIterator[Callable[..., LongHolder]]:
    """Makes holders' processes, all gone at the end."""
    made: list[LongHolder] = []

    def holder(leases: int) -> LongHolder:
        environ = {**drill.environ, **changes}
        made.append(LongHolder(environ, drill.directory, f"holder-{len(made)}", leases))
        return made[-1]

    try:
        yield holder
    finally:
        for one in made:
            one.kill()


@in_loop
async def test_a_restarted_holder_ends_the_leases_of_its_dead_predecessor(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    # An hour: nothing but the successor can end them within this test.
    hour = {"AIBS_MODEL_CLUSTER_ACTIVE_LEASE_TTL_SECONDS": "3600"}
    async with scene(own_valkey, tmp_path) as drill, _holders(drill, **hour) as holder:
        first, neighbour = holder(1), holder(1)
        died = (await first.says("held"))[0]
        lives = (await neighbour.says("held"))[0]
        first.signal(signal.SIGKILL)
        await first.ended()
        second = holder(1)
        follows = (await second.says("held"))[0]
        assert follows["node"] == died["node"]
        events = await drill.pool.events()
        reaped = [event for event in events if event.type == "LeaseReaped"]
        assert [event.data["lease_id"] for event in reaped] == [died["held"]]
        assert reaped[0].data["why"] == "holder_restarted"
        assert reaped[0].data["by"] == follows["holder"]
        gone = [event.data["holder"] for event in events if event.type == "SessionEnded"]
        assert gone == [died["holder"]]
        assert set(await drill.state.leases()) == {follows["held"], lives["held"]}
        drill.permitted()


@in_loop
async def test_the_capacity_of_a_dead_holder_is_back_after_its_deadline_and_drain(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey, tmp_path) as drill, _holders(drill) as holder:
        # Opened before: it is no successor that would end the leases sooner.
        placer = await drill.placer()
        dead = holder(2)
        held = await dead.says("held", 2)
        dead.signal(signal.SIGKILL)
        await dead.ended()
        async with (
            placer.lease(model=MODEL, timeout=20) as first,
            placer.lease(model=MODEL, timeout=20) as second,
        ):
            assert {first.node_id, second.node_id} == {line["node"] for line in held}
        events = await drill.pool.events()
        expired = {e.data["lease_id"]: e for e in events if e.type == "LeaseExpired"}
        assert set(expired) == {line["held"] for line in held}
        granted = [e for e in events if e.type == "LeaseAcquired"][-2:]
        drained = {e.data["node_id"]: e.at_ms + DRAIN_S * 1000 for e in expired.values()}
        for event in granted:
            assert event.at_ms >= drained[event.data["lease"]["node_id"]], "a slot not drained"
        drill.permitted()
        await drill.free()
        await drill.audited()


@in_loop
async def test_a_holder_stopped_past_its_deadline_cancels_its_work_and_its_release_is_late(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey, tmp_path) as drill, _holders(drill) as holder:
        placer = await drill.placer()
        stopped = holder(1)
        held = (await stopped.says("held"))[0]
        node = drill.nodes.node(NODES.index(held["node"]))
        stopped.signal(signal.SIGSTOP)
        async with (
            placer.lease(model=MODEL, timeout=20) as first,
            placer.lease(model=MODEL, timeout=20) as second,
        ):
            # Its slot is another's now; the paused work is what may overlap with that.
            stopped.signal(signal.SIGCONT)
            lost = (await stopped.says("lost"))[0]
            assert lost == {"lost": held["held"], "why": "trust_over"}

            async def cancelled() -> bool:
                return node.stats.generating.total() == 0

            await until_true(cancelled, "the work of the lost lease cancelled on the node")
            late = [e for e in await drill.pool.events() if e.type == "LateRelease"]
            assert [event.data["lease_id"] for event in late] == [held["held"]]
            assert late[0].data["ended_by"] == "expired"
            async with httpx.AsyncClient(timeout=20) as client:
                for lease in (first, second):
                    await generate_short(client, lease.node_base_url)
        await stopped.ended()
        drill.permitted()
        await drill.free()
        await drill.audited()


@in_loop
async def test_a_successor_ends_every_lease_of_a_predecessor_that_had_many(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with desk(valkey_url, namespace, tmp_path, slots=200) as table:
        here = open_identity("env", "test")
        # This process's number, and another beginning: whoever had it is gone.
        dead = replace(here, holder="dead", pid_start=here.pid_start - 1)
        backend = await table.backend(holder="dead")
        await backend.open_session(dead)
        asked = [request_of_holder(dead, number) for number in range(150)]
        for number, one in enumerate(asked):
            granted = await backend.acquire(one, lease_id=f"l{number}", call_id="c")
            assert isinstance(granted, Granted)
        await (await table.backend(holder=here.holder)).open_session(here)
        assert not await table.state.leases(), "leases of the dead are left to their deadlines"
        await table.nothing_left()


def request_of_holder(session: Session, number: int) -> Request:
    """One for the desk's model."""
    return request_of(
        session,
        TIMING,
        model=MODEL,
        role=None,
        priority="normal",
        timeout=0,
        ttl=900,
        request_id=f"r{number}",
        requester=None,
    )


# --- the client, where a real server shows more


@in_loop
async def test_a_release_that_is_not_answered_before_the_deadline_is_given_up(
    valkey_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aibs.placement.endings.PATIENCE_S", 0.1)
    async with (
        TcpProxy(_port_of(valkey_url)) as proxy,
        desk(valkey_url, namespace, tmp_path, slots=1) as table,
        await table.placer(proxy.url) as placer,
        await table.placer() as other,
    ):
        async with placer.lease(model=MODEL, timeout=0, request_id="again", ttl=1) as lease:
            proxy.mode = "cut"
        # While the release is tried, the request is not free here.
        again = request_named(placer, "again")
        assert not placer.claim(again)

        async def free() -> bool:
            return placer.claim(again)

        await until_true(free, "the request given up")
        placer.unclaim(again)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "release"]
        # Nobody gave it back: it ended by its deadline.
        await _until_expired(table, other, lease.lease_id)
        assert not await table.events("LeaseReleased", "LateRelease")
        proxy.mode = "pass"


async def _until_expired(table: Desk, other: Placer, lease_id: str) -> None:
    async def expired() -> bool:
        await _denied(other, 1)
        ends = await table.events("LeaseExpired")
        return [event.data["lease_id"] for event in ends] == [lease_id]

    await until_true(expired, "the lease expired")


def request_named(placer: Placer, request_id: str) -> Request:
    """The request of that name, as the placer makes it."""
    return replace(request_of_holder(placer.session, 0), request_id=request_id)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@in_loop
async def test_a_forked_child_cannot_use_its_parents_placer_and_ends_none_of_its_leases(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        await table.placer() as placer,
        placer.lease(model=MODEL, timeout=0) as lease,
    ):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os.write(write, _misuse(placer).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as told:
            assert "forked child" in await asyncio.to_thread(told.read)
        await asyncio.to_thread(os.waitpid, child, 0)
        await renewed(lease)
        assert list(await table.state.leases()) == [lease.lease_id]


def _misuse(placer: Placer) -> str:
    """In the child: what asking says. Leaving by closing must wait for nothing."""
    try:
        placer.lease(model=MODEL).__aenter__().send(None)
    except ConfigurationError as error:
        try:
            placer.aclose().send(None)
        except StopIteration:
            return str(error)
        return "closing waits"
    except BaseException as error:  # noqa: BLE001 - told to the parent
        return repr(error)
    return "the child may ask"


def test_placers_of_two_event_loops_share_nothing_but_the_pool(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    held: list[str] = []
    both, closed = threading.Barrier(2, timeout=60), threading.Event()
    failures: list[BaseException] = []

    def thread(number: int, shared: Desk) -> None:
        @in_loop
        async def run() -> None:
            async with visit(shared) as table:
                async with (
                    await table.placer() as placer,
                    placer.lease(model=MODEL, timeout=20) as lease,
                ):
                    held.append(lease.lease_id)
                    await asyncio.to_thread(both.wait)
                    if number == 1:
                        await asyncio.to_thread(closed.wait, 60)
                        await renewed(lease)
                        lease.raise_if_lost()
                if number == 0:
                    closed.set()

        try:
            run()
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)
            both.abort()

    @in_loop
    async def watched() -> None:
        async with desk(valkey_url, namespace, tmp_path) as table:
            threads = [threading.Thread(target=thread, args=(number, table)) for number in range(2)]
            for one in threads:
                one.start()
            for one in threads:
                await asyncio.to_thread(one.join, 100)
            assert not failures
            assert len(set(held)) == 2
            await table.nothing_left()

    watched()


@in_loop
async def test_threads_of_a_sync_placer_never_run_more_than_the_nodes_permit(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey, tmp_path) as drill:
        values = settings.load(drill.environ, None)

        def work(placer: SyncPlacer) -> int:
            with httpx.Client(timeout=30) as client:
                for _ in range(5):
                    with placer.lease(model=MODEL, timeout=25) as lease:
                        lease.prepare()
                        client.post(
                            f"{lease.node_base_url}/api/generate",
                            json={
                                "model": lease.model,
                                "prompt": "hello",
                                "stream": False,
                                "options": {"num_predict": 3},
                            },
                        ).raise_for_status()
            return 5

        with SyncPlacer(values) as placer:
            served = await asyncio.gather(*(asyncio.to_thread(work, placer) for _ in range(4)))
            assert sum(served) == 20
            await asyncio.to_thread(placer.close)
        await drill.free()
        drill.permitted()
        await drill.audited()
