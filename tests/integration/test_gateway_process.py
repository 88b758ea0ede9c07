"""Gateway processes: side by side, behind one port, told to stop, killed, refusing to start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from aibs.codec import dumps, loads
from aibs.ollama.sim import SimModel
from tests.gateway_world import (
    GB,
    Box,
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
from tests.gateway_world.plain import CHAT, SCRIPTED, twin_world
from tests.valkey_server import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway_world import ServeProcess

SLOTS = 2
AT_ONCE = 12
REQUESTS = 120

NDJSON = "application/x-ndjson"
WORD = ndjson({"model": SCRIPTED, "response": "word", "done": False})
DONE = ndjson({"model": SCRIPTED, "done": True})
EVENT = b'data: {"id":"c","choices":[]}\n\n'
START = head(content_type=NDJSON, transfer_encoding="chunked")
START_SSE = head(content_type="text/event-stream", transfer_encoding="chunked")
HELD = Play((START, *chunked([WORD], end=False)), then="hold")
SERVED = Play((START, *chunked([WORD, DONE])))


def request_of(model: str = SCRIPTED, path: str = "/api/generate", **members: Any) -> bytes:
    return post_bytes(path, dumps({"model": model, "prompt": "x", **members}))


def sim_world(directory: Path, valkey_url: str, **settings: str) -> World:
    """Two simulated nodes that take a little time."""
    boxes = tuple(
        Box(
            name,
            (SimModel(CHAT, 8 * GB, loaded=True),),
            slots=SLOTS,
            sim={"prompt_seconds": 0.01, "reply_tokens": 2},
        )
        for name in ("box-a", "box-b")
    )
    roster = {
        "worker_id": "answer",
        "model": CHAT,
        "roles": ["answer"],
        "kind": "chat",
        "resident_weight_gb": 8,
        "active_parameter_billions": 8,
    }
    return World(directory, valkey_url, boxes, [roster], settings=settings)


def ask_many(urls: list[str], count: int = REQUESTS) -> Counter[int]:
    """Statuses of so many requests to these gateways in turn, each on a connection of its own."""
    with ThreadPoolExecutor(AT_ONCE) as at_once:
        asked = at_once.map(lambda n: direct(urls[n % len(urls)], request_of(CHAT)), range(count))
        return Counter(answer.status if answer.whole else 0 for answer in asked)


def assert_within_slots(world: World) -> None:
    most = world.evidence.most_at_once()
    for name in ("box-a", "box-b"):
        # Both ways to know it: what was granted, and what the node held.
        assert 0 < most[name] <= SLOTS
        assert world.sim(name).stats.peak_in_flight[CHAT] <= SLOTS


def test_two_gateways_together_never_exceed_the_slots(tmp_path: Path, valkey_url: str) -> None:
    with (
        sim_world(tmp_path, valkey_url) as world,
        world.serve("first") as first,
        world.serve("second") as second,
    ):
        world.wait_seen()
        assert ask_many([first.url, second.url]) == {200: REQUESTS}
        world.wait_idle()
        holders = Counter(lease["holder"] for lease in world.evidence.grants())
        assert sum(holders.values()) == REQUESTS
        assert len(holders) == 2
        assert_within_slots(world)
        world.evidence.assert_one_end_a_grant()


def workers_of(gateway: ServeProcess) -> list[int]:
    """The pids of the processes behind a port."""
    children = Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


def test_workers_share_a_port_the_slots_and_their_end(tmp_path: Path, valkey_url: str) -> None:
    with (
        sim_world(tmp_path, valkey_url) as world,
        world.serve(arguments=("--workers", "2")) as gateway,
    ):
        world.wait_seen()
        until(lambda: len(gateway.lines("gateway_started")) == 2, "both workers")
        assert ask_many([gateway.url]) == {200: REQUESTS}
        world.wait_idle()
        holders = {lease["holder"].split(":")[1] for lease in world.evidence.grants()}
        pids = workers_of(gateway)
        assert holders == {str(pid) for pid in pids}
        assert_within_slots(world)
        files = gateway.files()
        os.kill(pids[1], signal.SIGKILL)
        until(lambda: len(gateway.lines("gateway_started")) == 3, "a new worker")
        assert ask_many([gateway.url], 20) == {200: 20}
        assert gateway.files() <= files
        gateway.signal(signal.SIGTERM)
        assert gateway.ended() == 0
        assert world.evidence.active() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        world.evidence.assert_one_end_a_grant()


# --- told to stop


@pytest.fixture
def twin(tmp_path: Path, valkey_url: str) -> Iterator[World]:
    with twin_world(tmp_path, valkey_url, slots=4) as world:
        for name in ("box-a", "box-b"):
            world.scripted(name).plays(HELD)
        yield world


def calls(world: World) -> int:
    return sum(len(world.scripted(name).calls) for name in ("box-a", "box-b"))


def test_a_gateway_told_to_stop_lets_short_answers_end_and_ends_long_ones_with_words(
    twin: World,
) -> None:
    drain_s = 1.5
    with twin.serve(API_DRAIN_SECONDS=str(drain_s)) as gateway:
        twin.wait_seen()
        clients = [RawClient(gateway.url) for _ in range(5)]
        short, long, sse, whole, idle = clients
        plays = (
            (short, Play((START, *chunked([WORD, DONE])), paced=True), request_of()),
            (long, HELD, request_of()),
            (
                sse,
                Play((START_SSE, *chunked([EVENT], end=False)), then="hold"),
                request_of(path="/v1/completions", stream=True),
            ),
            (whole, Play((), then="hold"), request_of(stream=False)),
        )
        for count, (client, play, request) in enumerate(plays, 1):
            for name in ("box-a", "box-b"):
                twin.scripted(name).plays(play)
            client.send(request)
            until(lambda count=count: calls(twin) == count, "at the node")  # type: ignore[misc]
            if play.paced:
                for name in ("box-a", "box-b"):
                    twin.scripted(name).permit(2)
                assert client.piece() == WORD
                paced = [twin.scripted(name) for name in ("box-a", "box-b")]
                gates = [node.gate() for node in paced]
        idle.send(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.answer().status == 200
        began_s = time.monotonic()
        gateway.signal(signal.SIGTERM)
        # A connection that nothing runs on is closed, and no new one is taken.
        assert idle.socket.recv(1) == b""
        until(lambda: not takes(gateway), "no new connection", 3)
        for gate in gates:
            gate(2)
        answer = short.answer()
        assert (answer.body, answer.whole) == (WORD + DONE, True)
        assert time.monotonic() - began_s < drain_s
        told = long.answer()
        assert time.monotonic() - began_s >= drain_s
        assert told.whole
        assert told.body.startswith(WORD)
        assert loads(told.body[len(WORD) :])["reason"] == "shutting_down"
        event = sse.answer().body[len(EVENT) :]
        assert loads(event.removeprefix(b"data: "))["error"]["code"] == "shutting_down"
        refused = whole.answer()
        assert (refused.status, loads(refused.body)["reason"]) == (503, "shutting_down")
        assert gateway.ended(10) == 0
        assert time.monotonic() - began_s < drain_s + 5
        for client in clients:
            client.close()
        assert twin.evidence.active() == 0
        twin.evidence.assert_one_end_a_grant()
        assert twin.evidence.outcomes() == {"completed": 1, "cancelled": 3}
        resigned = twin.evidence.events("OwnerResigned")
        assert len(resigned) == 1


def takes(gateway: ServeProcess) -> bool:
    try:
        with RawClient(gateway.url):
            return True
    except OSError:
        return False


def test_a_second_signal_ends_what_still_runs(twin: World) -> None:
    with twin.serve(API_DRAIN_SECONDS="60") as gateway, RawClient(gateway.url) as client:
        twin.wait_seen()
        client.send(request_of())
        assert client.piece() == WORD
        gateway.signal(signal.SIGTERM)
        until(lambda: bool(gateway.lines("told_to_stop")), "told")
        gateway.signal(signal.SIGINT)
        answer = client.answer()
        assert answer.whole
        assert loads(answer.body[len(WORD) :])["reason"] == "shutting_down"
        assert gateway.ended(10) == 0
        assert twin.evidence.active() == 0


def test_workers_that_are_told_to_stop_take_nothing_new_and_hear_a_second_signal(
    twin: World,
) -> None:
    with (
        twin.serve(arguments=("--workers", "2"), API_DRAIN_SECONDS="60") as gateway,
        RawClient(gateway.url) as client,
    ):
        twin.wait_seen()
        # One that still starts is told nothing that it could log.
        until(lambda: len(gateway.lines("gateway_started")) == 2, "both started")
        client.send(request_of())
        assert client.piece() == WORD
        gateway.signal(signal.SIGTERM)
        until(lambda: not takes(gateway), "no new connection", 3)
        until(lambda: len(gateway.lines("told_to_stop")) == 2, "both told")
        assert gateway.running
        gateway.signal(signal.SIGTERM)
        answer = client.answer()
        assert answer.whole
        assert loads(answer.body[len(WORD) :])["reason"] == "shutting_down"
        assert gateway.ended(10) == 0
        assert twin.evidence.active() == 0


def test_a_client_that_does_not_read_does_not_keep_a_gateway_from_stopping(twin: World) -> None:
    line = ndjson({"response": "x" * 1_000_000, "done": False})
    for name in ("box-a", "box-b"):
        twin.scripted(name).plays(Play((START, *chunked([line] * 16)), then="hold"))
    with (
        twin.serve(API_DRAIN_SECONDS="0.5") as gateway,
        RawClient(gateway.url, receive_bytes=4096) as client,
    ):
        twin.wait_seen()
        client.send(request_of())
        assert client.piece()
        began_s = time.monotonic()
        gateway.signal(signal.SIGTERM)
        assert gateway.ended(20) == 0
        assert time.monotonic() - began_s < 10
        assert twin.evidence.active() == 0


def test_a_killed_gateway_s_leases_are_ended_by_its_successor_on_the_host(twin: World) -> None:
    with twin.serve("first") as first:
        twin.wait_seen()
        with RawClient(first.url) as client:
            client.send(request_of())
            assert client.piece() == WORD
            first.kill()
            lost = twin.evidence.grants()[0]["lease_id"]
            with twin.serve("second") as second:
                # Long before the lease's own deadline.
                until(lambda: twin.evidence.active() == 0, "no lease", 10)
                assert [event.type for event in twin.evidence.ends_of(lost)] == ["LeaseReaped"]
                for name in ("box-a", "box-b"):
                    twin.scripted(name).plays(SERVED)
                assert direct(second.url, request_of()).status == 200


# --- by itself


LOCAL: Any = {
    "MODEL_CLUSTER_ENABLED": "false",
    "MODEL_CLUSTER_RESIDENCY_MONITOR_RUN_IN_API": "false",
}


def test_without_a_cluster_it_serves_within_slots_and_budget(
    tmp_path: Path, valkey_url: str
) -> None:
    other = SimModel("other:40b", 40 * GB)
    boxes = tuple(
        Box(
            name,
            (SimModel(CHAT, 30 * GB), other),
            slots=SLOTS,
            budget_gb=60,
            sim={"prompt_seconds": 0.01, "reply_tokens": 2},
        )
        for name in ("box-a", "box-b")
    )
    roster = [
        {
            "worker_id": name.partition(":")[0],
            "model": name,
            "roles": [],
            "kind": "chat",
            "resident_weight_gb": size,
            "active_parameter_billions": 8,
        }
        for name, size in ((CHAT, 30), ("other:40b", 40))
    ]
    # Both do not fit: each takes the other's place as soon as that is idle.
    swaps = {
        "MODEL_CLUSTER_SWAP_MIN_RESIDENCY_SECONDS": "0",
        "MODEL_CLUSTER_SWAP_MAX_WAIT_SECONDS": "1",
    }
    with (
        World(tmp_path, valkey_url, boxes, roster, settings={**LOCAL, **swaps}) as world,
        world.serve() as gateway,
    ):
        with ThreadPoolExecutor(AT_ONCE) as at_once:
            models = [CHAT if number % 4 else "other:40b" for number in range(60)]
            asked = at_once.map(lambda model: direct(gateway.url, request_of(model)), models)
            assert Counter(answer.status for answer in asked) == {200: 60}
        for name in ("box-a", "box-b"):
            stats = world.sim(name).stats
            assert all(count <= SLOTS for count in stats.peak_in_flight.values())
            assert stats.peak_generations_on_node <= SLOTS
            assert stats.peak_resident_bytes <= 60 * GB
            assert not stats.evictions
        assert not world.evidence.events()
        assert httpx.get(f"{gateway.url}/health", timeout=5).status_code == 200
        gateway.signal(signal.SIGTERM)
        assert gateway.ended() == 0


def refusal(world: World, *arguments: str, **settings: str) -> tuple[int, str]:
    """How a gateway that does not start ends, and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "aibs", "serve", *arguments],
        env={**world.clean_environment(), **world.settings(**settings)},
        cwd=world.directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_it_does_not_admit_by_itself_beside_a_live_fleet_unless_told_to(
    twin: World,
) -> None:
    with twin.serve():
        twin.wait_seen()
        status, said = refusal(twin, "--port", "0", **LOCAL)
        assert status == 1
        assert twin.namespace in said
        assert "--local-anyway" in said
        for name in ("box-a", "box-b"):
            twin.scripted(name).plays(SERVED)
        with twin.serve("anyway", ("--local-anyway",), **LOCAL) as gateway:
            assert direct(gateway.url, request_of()).status == 200


def test_it_does_not_admit_by_itself_where_that_cannot_be_known(twin: World) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}"
    status, said = refusal(twin, "--port", "0", VALKEY_URL=nowhere, **LOCAL)
    assert status == 3
    assert "cannot be known" in said
    assert "--local-anyway" in said
    for name in ("box-a", "box-b"):
        twin.scripted(name).plays(SERVED)
    with twin.serve("anyway", ("--local-anyway",), VALKEY_URL=nowhere, **LOCAL) as gateway:
        assert direct(gateway.url, request_of()).status == 200


def test_what_it_cannot_start_with_is_said_in_a_sentence(twin: World) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        status, said = refusal(twin, "--port", port)
        assert status == 2
        assert f"127.0.0.1:{port}" in said
        status, said = refusal(twin, "--port", port, "--workers", "2")
        assert status == 2
    status, said = refusal(twin, "--port", "0", MODEL_ADMISSION_WORKER_ROSTER="[]")
    assert status == 2
    assert "AIBS_MODEL_ADMISSION_WORKER_ROSTER" in said
    none = {
        f"MODEL_CLUSTER_NODE_{name}": ""
        for name in ("IDS", "URLS", "VRAM_GB", "MAX_PARALLEL_REQUESTS")
    }
    status, said = refusal(
        twin, "--port", "0", MODEL_CLUSTER_ROLE_AFFINITY_JSON="{}", **LOCAL, **none
    )
    assert status == 2
    assert "AIBS_MODEL_CLUSTER_NODE_IDS" in said
    status, said = refusal(twin, "--port", "0", "--host", "no.such.host.invalid")
    assert status == 2
