"""A client that leaves, at every moment of its request: nothing of it stays, and the node hears."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from aibs.codec import dumps, loads
from tests.gateway_world import (
    Play,
    RawClient,
    World,
    chunked,
    direct,
    head,
    ndjson,
    post_bytes,
    until,
)
from tests.gateway_world.plain import COLD, SCRIPTED, cut_world
from tests.tcp_proxy import TcpProxy
from tests.valkey_server import ValkeyServer

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from aibs.ollama.sim.node import SimNode
    from tests.gateway_world import RawNode, ServeProcess

WITHIN_S = 1.0
"""From a client's leaving to the last trace of its request."""

SLOW_S = 0.3
"""What a slow coordination server adds to each answer."""

NDJSON = "application/x-ndjson"
WORD = ndjson({"model": SCRIPTED, "message": {"role": "assistant", "content": "word"}})
EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
DONE = ndjson({"model": SCRIPTED, "done": True, "done_reason": "stop"})

ROUNDS = 50
SLOW_ROUNDS = [pytest.param(4, id="few"), pytest.param(50, id="fifty", marks=pytest.mark.soak)]
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("/api/chat", {}),
    ("/v1/chat/completions", {"stream": True}),
    ("/api/generate", {"stream": False}),
    ("/v1/completions", {}),
]

Leave = Literal["close", "reset", "half_close"]


@dataclass(frozen=True)
class Scene:
    """A gateway whose way to the coordination server can be made slow."""

    world: World
    gateway: ServeProcess
    raw: RawNode
    proxy: TcpProxy

    @property
    def url(self) -> str:
        return self.gateway.url

    def slow(self, delay_s: float) -> None:
        self.proxy.reply_delay_s = delay_s

    def assert_nothing_left(self, mark: int, grants: int, outcome: str = "cancelled") -> None:
        evidence = self.world.evidence
        until(
            lambda: evidence.active() == 0 and evidence.waiting() == 0,
            lambda: f"no lease and no waiter; the log: {evidence.events(after=mark)}",
            WITHIN_S,
        )
        evidence.assert_one_end_a_grant(mark)
        assert evidence.outcomes(mark) == ({outcome: grants} if grants else {})


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: ValkeyServer) -> Iterator[World]:
    with cut_world(tmp_path_factory.mktemp("cuts"), server.url) as world:
        yield world


@pytest.fixture(scope="module")
def scene(world: World, server: ValkeyServer) -> Iterator[Scene]:
    proxy = world.yard.enter(TcpProxy(server.port))
    with world.serve(VALKEY_URL=proxy.url) as gateway:
        world.wait_seen()
        yield Scene(world, gateway, world.scripted("box-raw"), proxy)
        world.wait_idle()


@pytest.fixture(autouse=True)
def fresh(scene: Scene) -> Iterator[None]:
    scene.world.yard.call(scene.raw.calls.clear)
    yield
    scene.slow(0)


def request_of(number: int) -> bytes:
    path, members = WAYS[number % len(WAYS)]
    return post_bytes(path, dumps({"model": SCRIPTED, "messages": [{}], "prompt": "x", **members}))


def leave(client: RawClient, number: int) -> None:
    ways: tuple[Leave, ...] = ("close", "reset")
    getattr(client, ways[(number // len(WAYS)) % len(ways)])()


def begun(number: int) -> Play:
    """The beginning of an answer that does not end."""
    path, members = WAYS[number % len(WAYS)]
    if members.get("stream") is False or path == "/v1/completions":
        start = head(content_type="application/json", content_length="5000")
        return Play((start, b'{"begun":'), then="hold")
    kind, piece = ("text/event-stream", EVENT) if path.startswith("/v1/") else (NDJSON, WORD)
    start = head(content_type=kind, transfer_encoding="chunked")
    return Play((start, *chunked([piece], end=False)), then="hold")


def wait_grant(world: World, mark: int, count: int = 1) -> None:
    until(lambda: len(world.evidence.grants(mark)) == count, "a grant")


def wait_call(raw: RawNode, count: int = 1) -> threading.Event:
    """Set when the side that made the newest of so many calls has left."""
    until(lambda: len(raw.calls) == count, f"{count} calls at the node")
    return raw.calls[-1].gone


def test_a_client_that_leaves_the_queue_leaves_no_place_there(scene: Scene) -> None:
    evidence, mark = scene.world.evidence, scene.world.evidence.mark()
    scene.raw.plays(begun(0))
    with RawClient(scene.url) as holder:
        holder.send(request_of(0))
        gone = wait_call(scene.raw)
        for number in range(ROUNDS):
            before = evidence.mark()
            with RawClient(scene.url) as first, RawClient(scene.url) as second:
                for client in (first, second):
                    client.send(request_of(number))
                until(lambda: evidence.waiting() == 2, "two that wait")
                leave(first, number)
                if number % 3 == 0:
                    second.half_close()
                else:
                    leave(second, number)
                until(lambda: evidence.waiting() == 0, "none that waits", WITHIN_S)
            waits = [event.data["how"] for event in evidence.events("WaitEnded", after=before)]
            assert waits == ["cancelled", "cancelled"]
        assert (evidence.active(), len(scene.raw.calls)) == (1, 1)
    assert gone.wait(WITHIN_S)
    scene.assert_nothing_left(mark, 1)


@pytest.mark.parametrize("rounds", SLOW_ROUNDS)
def test_a_client_that_leaves_before_its_grant_is_known_here_ends_it(
    scene: Scene, rounds: int
) -> None:
    evidence = scene.world.evidence
    for number in range(rounds):
        mark = evidence.mark()
        scene.slow(SLOW_S)
        with RawClient(scene.url) as client:
            client.send(request_of(number))
            wait_grant(scene.world, mark)
            leave(client, number)
        scene.slow(0)
        scene.assert_nothing_left(mark, 1)
    assert not scene.raw.calls


def test_a_client_that_leaves_between_grant_and_connection_ends_both(scene: Scene) -> None:
    scene.world.yard.run(scene.raw.stop_accepting())
    try:
        for number in range(ROUNDS):
            mark = scene.world.evidence.mark()
            with RawClient(scene.url) as client:
                client.send(request_of(number))
                wait_grant(scene.world, mark)
                leave(client, number)
            scene.assert_nothing_left(mark, 1)
    finally:
        scene.world.yard.call(scene.raw.accept)
    # Nothing of them arrives later.
    scene.raw.plays(Play((head(content_type=NDJSON), DONE)))
    assert direct(scene.url, request_of(0)).status == 200
    assert len(scene.raw.calls) == 1


def test_a_client_that_leaves_before_the_first_byte_frees_the_node(scene: Scene) -> None:
    scene.raw.plays(Play((), then="hold"))
    for number in range(ROUNDS):
        mark = scene.world.evidence.mark()
        with RawClient(scene.url) as client:
            client.send(request_of(number))
            gone = wait_call(scene.raw, number + 1)
            leave(client, number)
        assert gone.wait(WITHIN_S)
        scene.assert_nothing_left(mark, 1)


def test_a_client_that_leaves_in_mid_stream_frees_the_node(scene: Scene) -> None:
    for number in range(ROUNDS):
        mark = scene.world.evidence.mark()
        scene.raw.plays(begun(number))
        with RawClient(scene.url) as client:
            client.send(request_of(number))
            assert client.piece()
            leave(client, number)
        assert wait_call(scene.raw, number + 1).wait(WITHIN_S)
        scene.assert_nothing_left(mark, 1)


@pytest.mark.parametrize(
    ("number", "kind", "pieces"),
    [(0, NDJSON, [WORD, DONE]), (1, "text/event-stream", [EVENT, b"data: [DONE]\n\n"])],
    ids=["native", "openai"],
)
def test_a_client_that_leaves_behind_the_last_word_has_its_answer(
    scene: Scene, number: int, kind: str, pieces: list[bytes]
) -> None:
    mark = scene.world.evidence.mark()
    start = head(content_type=kind, transfer_encoding="chunked")
    scene.raw.plays(Play((start, *chunked(pieces, end=False)), then="hold"))
    with RawClient(scene.url) as client:
        client.send(request_of(number))
        got = b""
        while pieces[-1].strip() not in got:
            got += client.piece()
        client.close()
    assert wait_call(scene.raw).wait(WITHIN_S)
    scene.assert_nothing_left(mark, 1, "completed")


def test_a_half_closed_connection_is_a_client_that_left(scene: Scene) -> None:
    for number in range(ROUNDS):
        mark = scene.world.evidence.mark()
        early = number % 2 == 0
        scene.raw.plays(Play((), then="hold") if early else begun(number))
        with RawClient(scene.url) as client:
            client.send(request_of(number))
            gone = wait_call(scene.raw, number + 1)
            if not early:
                assert client.piece()
            client.half_close()
            assert gone.wait(WITHIN_S)
            scene.assert_nothing_left(mark, 1)


BEHIND = b"GET /api/version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("behind", [1, 16], ids=["one", "many"])
def test_a_client_with_requests_behind_its_first_is_noticed_when_it_leaves(
    scene: Scene, behind: int
) -> None:
    evidence = scene.world.evidence
    scene.raw.plays(begun(0))
    with RawClient(scene.url) as holder:
        holder.send(request_of(0))
        gone = wait_call(scene.raw)
        mark = evidence.mark()
        for number in range(len(WAYS)):
            with RawClient(scene.url) as client:
                client.send(request_of(number) + BEHIND * behind)
                until(lambda: evidence.waiting() == 1, "one that waits")
                leave(client, number)
            until(lambda: evidence.waiting() == 0, "none that waits", WITHIN_S)
        assert not evidence.grants(mark)
    assert gone.wait(WITHIN_S)
    until(lambda: evidence.active() == 0, "no lease", WITHIN_S)
    for number in range(2 * len(WAYS)):
        mark = evidence.mark()
        scene.raw.plays(begun(number))
        with RawClient(scene.url) as client:
            client.send(request_of(number) + BEHIND * behind)
            assert client.piece()
            leave(client, number)
        assert wait_call(scene.raw, number + 2).wait(WITHIN_S)
        scene.assert_nothing_left(mark, 1)
    assert not scene.gateway.tracebacks()


def test_requests_behind_another_are_answered_in_their_order(scene: Scene) -> None:
    start = head(content_type=NDJSON, transfer_encoding="chunked")
    scene.raw.plays(Play((start, *chunked([WORD, DONE]))))
    with RawClient(scene.url) as client:
        client.send((request_of(0) + BEHIND) * 20)
        received = b""
        while received.count(b'"version"') < 20:
            received += client.socket.recv(1 << 16)
    assert received.count(DONE.strip()) == 20
    assert received.index(DONE.strip()) < received.index(b'"version"')


@pytest.mark.parametrize("rounds", SLOW_ROUNDS)
def test_a_slow_coordination_server_keeps_no_lease_of_a_client_that_left(
    scene: Scene, rounds: int
) -> None:
    for number in range(rounds):
        mark = scene.world.evidence.mark()
        scene.raw.plays(begun(number))
        with RawClient(scene.url) as client:
            client.send(request_of(number))
            assert client.piece()
            scene.slow(SLOW_S)
            leave(client, number)
        assert wait_call(scene.raw, number + 1).wait(WITHIN_S)
        scene.assert_nothing_left(mark, 1)
        scene.slow(0)


def test_a_slow_coordination_server_cuts_no_answer_s_end_off(scene: Scene) -> None:
    mark = scene.world.evidence.mark()
    body = dumps({"done": True, "response": "x" * (8 << 20)})
    start = head(content_type="application/json", content_length=str(len(body)))
    scene.raw.plays(Play((start, body)))
    with RawClient(scene.url, receive_bytes=4096) as client:
        client.send(request_of(2))
        client.piece()
        scene.slow(SLOW_S)
        # Its end waits for this reader, and is still waiting when the release is answered.
        while scene.world.evidence.active() == 1:
            client.piece()
        time.sleep(2 * SLOW_S)
        answer = client.answer()
    assert answer.whole
    assert answer.body == body
    scene.assert_nothing_left(mark, 1, "completed")


def test_a_slow_coordination_server_holds_no_answer_s_end_back(scene: Scene) -> None:
    evidence, mark = scene.world.evidence, scene.world.evidence.mark()
    play = Play((head(content_type=NDJSON, transfer_encoding="chunked"), *chunked([WORD, DONE])))
    scene.raw.plays(replace(play, paced=True))
    with RawClient(scene.url) as client:
        client.send(request_of(0))
        scene.raw.permit(2)
        assert client.piece() == WORD
        scene.slow(SLOW_S)
        began_s = time.monotonic()
        scene.raw.permit(2)
        answer = client.answer()
        took_s = time.monotonic() - began_s
    assert answer.whole
    assert answer.body == WORD + DONE
    # The release was sent, and its answer is still on its way.
    until(lambda: evidence.active() == 0, "no lease", WITHIN_S)
    assert took_s < SLOW_S
    scene.assert_nothing_left(mark, 1, "completed")


def test_a_lease_that_is_reaped_in_mid_stream_is_told_in_the_client_s_format(
    scene: Scene,
) -> None:
    evidence = scene.world.evidence
    for number in (0, 1, 2):
        mark = evidence.mark()
        scene.raw.plays(begun(number))
        with RawClient(scene.url) as client:
            client.send(request_of(number))
            sent = client.piece()
            lease_id = str(client.head().header("x-aibs-lease"))
            reap(scene.world, lease_id)
            answer = client.answer()
        assert scene.raw.calls[-1].gone.wait(WITHIN_S)
        rest = answer.body[len(sent) :]
        if number == 2:
            assert (rest, answer.whole) == (b"", False)
        else:
            assert answer.whole
            told = loads(rest.removeprefix(b"data: "))
            reason = told["error"]["code"] if number == 1 else told["reason"]
            assert reason == "lease_lost"
        until(lambda: evidence.active() == 0, "no lease")
        assert [event.type for event in evidence.ends_of(lease_id)] == ["LeaseReaped"]
        # Given back after it was taken away: that is said, and ends nothing twice.
        wait_late_release(scene.world, mark)
        evidence.assert_one_end_a_grant(mark, late=1)


def wait_late_release(world: World, mark: int) -> None:
    until(lambda: bool(world.evidence.events("LateRelease", after=mark)), "a late release")


def reap(world: World, lease_id: str) -> None:
    """As an operator does it."""
    done = subprocess.run(
        [sys.executable, "-m", "aibs", "leaks", "--reap", lease_id, "--force", "--yes"],
        env={**world.clean_environment(), **world.settings()},
        cwd=world.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- loads


def cool(world: World) -> SimNode:
    """The node without the model that must be loaded first, and the pool knows it."""
    node, evidence = world.sim("box-cold"), world.evidence
    direct(world.url_of("box-cold"), cold_request(keep_alive=0))
    until(lambda: not node.resident, "unloaded")
    evidence.wait_observed("box-cold", evidence.now_ms())
    world.yard.call(node.stats.reset)
    return node


def cold_request(**members: Any) -> bytes:
    return post_bytes("/api/generate", dumps({"model": COLD, "prompt": "", **members}))


def wait_loading(node: SimNode) -> None:
    until(
        lambda: [one.state for one in list(node.scheduler.runners.values())] == ["loading"],
        "a load under way",
    )


@pytest.mark.parametrize("way", ["close", "reset", "half_close"])
def test_a_client_that_leaves_during_a_load_does_not_break_it_off(scene: Scene, way: Leave) -> None:
    node, evidence = cool(scene.world), scene.world.evidence
    mark = evidence.mark()
    with RawClient(scene.url) as client:
        client.send(cold_request(prompt="x"))
        wait_loading(node)
        getattr(client, way)()
        answer = direct(scene.url, cold_request(prompt="x", stream=False))
    assert answer.status == 200
    assert (node.stats.loads[COLD], node.stats.aborted_loads) == (1, 0)
    assert node.stats.generations[COLD] == 1
    until(lambda: evidence.active() == 0, "no lease", WITHIN_S)
    evidence.assert_one_end_a_grant(mark)
    assert evidence.outcomes(mark) == {"cancelled": 1, "completed": 1}


def test_a_load_goes_on_for_whoever_is_left_and_for_nobody(scene: Scene) -> None:
    node, evidence = cool(scene.world), scene.world.evidence
    mark = evidence.mark()
    with RawClient(scene.url) as first, RawClient(scene.url) as second:
        first.send(cold_request(prompt="x"))
        wait_loading(node)
        second.send(cold_request(prompt="x"))
        wait_grant(scene.world, mark, 2)
        first.reset()
        assert second.answer().whole
    assert (node.stats.loads[COLD], node.stats.aborted_loads) == (1, 0)
    node = cool(scene.world)
    with RawClient(scene.url) as first, RawClient(scene.url) as second:
        first.send(cold_request(prompt="x"))
        wait_loading(node)
        second.send(cold_request(prompt="x"))
        wait_grant(scene.world, mark, 4)
        # Both are gone when the gateway looks.
        scene.gateway.signal(signal.SIGSTOP)
    scene.gateway.signal(signal.SIGCONT)
    until(lambda: node.stats.loads[COLD] == 1, "loaded for nobody")
    assert node.stats.aborted_loads == 0
    until(lambda: evidence.active() == 0, "no lease", WITHIN_S)
    assert direct(scene.url, cold_request(prompt="x")).whole
    assert (node.stats.loads[COLD], node.stats.aborted_loads) == (1, 0)
    evidence.assert_one_end_a_grant(mark)


# --- readers that are slow


def test_readers_that_do_not_read_cost_little_memory_and_are_cut(scene: Scene) -> None:
    world, raw, evidence = scene.world, scene.raw, scene.world.evidence
    line = ndjson({"response": "x" * 1_000_000, "done": False})
    start = head(content_type=NDJSON, transfer_encoding="chunked")
    raw.plays(Play((start, *chunked([line] * 64)), then="hold"))
    with world.serve("silent", API_SILENCE_TIMEOUT_SECONDS="1") as gateway:
        assert direct(gateway.url, cold_request(prompt="x")).whole
        mark = evidence.mark()
        files, before = gateway.files(), gateway.rss_bytes()
        for _ in range(2):
            # One slot: each has the node for itself until it is cut.
            with RawClient(gateway.url, receive_bytes=4096) as client:
                client.send(request_of(0))
                assert client.piece()
                until(lambda: evidence.active() == 1, "a lease")
                grown = gateway.rss_bytes() - before
                until(lambda: evidence.active() == 0, "a reader that is cut", 5)
                assert raw.calls[-1].gone.wait(WITHIN_S)
                assert not raw.calls[-1].answered.is_set()
                # Its connection is closed, too, although it never takes what was sent.
                until(lambda: gateway.files() <= files, "the connection closed", 2)
            assert grown < 20_000_000
        assert evidence.outcomes(mark) == {"cancelled": 2}


def test_a_slow_reader_gets_all_of_it(scene: Scene) -> None:
    mark = scene.world.evidence.mark()
    line = ndjson({"response": "x" * 1_000_000, "done": False})
    start = head(content_type=NDJSON, transfer_encoding="chunked")
    scene.raw.plays(Play((start, *chunked([line] * 8 + [DONE]))))
    with RawClient(scene.url, receive_bytes=4096) as client:
        client.send(request_of(0))
        answer = client.answer()
    assert answer.whole
    assert answer.body == line * 8 + DONE
    scene.assert_nothing_left(mark, 1, "completed")
