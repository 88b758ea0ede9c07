"""Nodes that fail requests while their polls are green: the harm is bounded, the rest is served."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
from tests.gateway_world.plain import ANSWER, CHAT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway_world import ServeProcess

REQUESTS = 200
AT_ONCE = 8
TRIP_AFTER = 3
SLOTS = 4
LIMIT_S = 1.0
"""For the first byte, and for silence."""

NDJSON = "application/x-ndjson"
WORD = ndjson({"model": CHAT, "response": "word", "done": False})
DONE = ndjson({"model": CHAT, "done": True, "done_reason": "stop"})
SERVED = Play((head(content_type=NDJSON, transfer_encoding="chunked"), *chunked([WORD, DONE])))
OTHER = "other:1b"


def error_play(status: str, text: str = "the node's own words") -> Play:
    body = dumps({"error": text})
    length = str(len(body))
    return Play((head(status, content_type="application/json", content_length=length), body))


def worker(name: str, roles: list[str], gb: float = 8) -> dict[str, Any]:
    return {
        "worker_id": name.partition(":")[0],
        "model": name,
        "roles": roles,
        "kind": "chat",
        "resident_weight_gb": gb,
        "active_parameter_billions": gb,
    }


LOADED = (SimModel(CHAT, 8 * GB, loaded=True), SimModel(OTHER, GB, loaded=True))
GOOD = Box("box-good", LOADED, slots=SLOTS)
BAD = Box("box-bad", LOADED, slots=SLOTS, scripted=True)
TWIN = Box("box-twin", LOADED, slots=SLOTS, scripted=True)
SETTINGS = {
    "API_FIRST_BYTE_TIMEOUT_SECONDS": str(LIMIT_S),
    "API_SILENCE_TIMEOUT_SECONDS": str(LIMIT_S),
    "API_CONNECT_TIMEOUT_SECONDS": "0.5",
    "API_TRIP_AFTER_FAILURES": str(TRIP_AFTER),
    # What a node does to its polls is not what is tried here.
    "MODEL_CLUSTER_RESIDENCY_MONITOR_FAILURE_THRESHOLD": "1000",
}
ROSTER = [worker(CHAT, ["answer"]), worker(OTHER, ["other"], 1)]


@contextmanager
def running(
    directory: Path, valkey_url: str, *boxes: Box, roster: Any = ROSTER, **settings: str
) -> Iterator[tuple[World, ServeProcess]]:
    with (
        World(directory, valkey_url, boxes, roster, settings={**SETTINGS, **settings}) as world,
        world.serve() as gateway,
    ):
        world.wait_seen()
        yield world, gateway
        world.wait_idle()
        world.evidence.assert_one_end_a_grant()


def request_of(model: str = CHAT, **members: Any) -> bytes:
    return post_bytes("/api/generate", dumps({"model": model, "prompt": "x", **members}))


def ask_many(url: str, count: int = REQUESTS, *, streams: bool = False) -> Counter[str]:
    """How so many requests ended, as their clients see it; with `streams` all of them are."""
    with (
        httpx.Client(base_url=url, timeout=30) as client,
        ThreadPoolExecutor(AT_ONCE) as at_once,
    ):

        def ask(number: int) -> str:
            body = {"model": CHAT, "prompt": "x", "stream": streams or number % 2 == 0}
            try:
                answer = client.post("/api/generate", json=body)
            except httpx.RemoteProtocolError:
                return "broken off"
            if answer.status_code != 200:
                return str(answer.status_code)
            last = loads(answer.text.splitlines()[-1])
            return "served" if last.get("done") else "told in the stream"

        return Counter(at_once.map(ask, range(count)))


def wait_tripped(world: World) -> None:
    until(lambda: bool(tripped(world)), "a node that is closed")


def tripped(world: World) -> list[tuple[str, str]]:
    events = world.evidence.events("NodeTripped")
    return [(event.data["node_id"], event.data["why"]) for event in events]


def status_of(world: World, *arguments: str) -> str:
    """What `aibs status` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "aibs", "status", *arguments],
        env={**world.clean_environment(), **world.settings()},
        cwd=world.directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


UNTOLD: dict[str, tuple[Play, str]] = {
    "hung": (Play((), then="hold"), "no first byte within"),
    "hung after its headers": (
        Play((head(content_type=NDJSON, transfer_encoding="chunked"),), then="hold"),
        "no first byte within",
    ),
    "503": (error_play("503 Service Unavailable", "server busy"), "status 503: server busy"),
    "500 without a body": (
        Play((head("500 Internal Server Error", content_length="0"),)),
        "status 500",
    ),
    "401": (Play((head("401 Unauthorized", content_length="0"),)), "status 401"),
    "error at 200": (
        Play(
            (
                head(content_type=NDJSON, transfer_encoding="chunked"),
                *chunked([b'{"error":"out of memory"}\n']),
            )
        ),
        "out of memory",
    ),
    "reset": (Play((), then="reset"), "the connection"),
    "no HTTP": (Play((b"SSH-2.0-OpenSSH\r\n",)), "no HTTP"),
}


@pytest.mark.parametrize("case", UNTOLD)
def test_no_request_fails_at_a_node_that_fails_before_a_byte(
    case: str, tmp_path: Path, valkey_url: str
) -> None:
    play, why = UNTOLD[case]
    count = REQUESTS if case in ("hung", "503") else REQUESTS // 4
    with running(tmp_path, valkey_url, BAD, GOOD) as (world, gateway):
        world.scripted("box-bad").plays(play)
        # Old servers tell an error with status 200 in streams alone; and a hung node is waited for
        # longer where no stream is asked for.
        streams = case == "error at 200" or case.startswith("hung")
        assert ask_many(gateway.url, count, streams=streams) == {"served": count}
        wait_tripped(world)
        assert [node_id for node_id, _ in tripped(world)] == ["box-bad"]
        assert why in tripped(world)[0][1]
        # Once it is closed nobody goes there.
        assert len(world.scripted("box-bad").calls) < TRIP_AFTER + AT_ONCE


TOLD: dict[str, tuple[Play, str]] = {
    "silent": (
        Play(
            (
                head(content_type=NDJSON, transfer_encoding="chunked"),
                *chunked([WORD], end=False),
            ),
            then="hold",
        ),
        "no byte for 1 s",
    ),
    "breaking": (
        Play(
            (
                head(content_type=NDJSON, transfer_encoding="chunked"),
                *chunked([WORD], end=False),
            ),
            then="reset",
        ),
        "broke off",
    ),
    "without an end": (
        Play((head(content_type=NDJSON, transfer_encoding="chunked"), *chunked([WORD]))),
        "without its end",
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_few_requests_fail_at_a_node_that_fails_after_a_byte(
    case: str, tmp_path: Path, valkey_url: str
) -> None:
    play, why = TOLD[case]
    with running(tmp_path, valkey_url, BAD, GOOD) as (world, gateway):
        world.scripted("box-bad").plays(play)
        # An answer in one piece needs no end of its own.
        outcomes = ask_many(gateway.url, REQUESTS // 4, streams=case == "without an end")
        calls = len(world.scripted("box-bad").calls)
        assert outcomes["served"] == REQUESTS // 4 - calls
        # Those that made the node closed, and those that were on their way to it then.
        assert TRIP_AFTER <= calls < TRIP_AFTER + AT_ONCE
        # Nothing of them was tried again: each was begun once.
        assert len(world.evidence.grants()) == REQUESTS // 4
        wait_tripped(world)
        assert [node_id for node_id, _ in tripped(world)] == ["box-bad"]
        assert why in tripped(world)[0][1]


def test_a_node_that_dies_takes_no_more_with_it_than_what_it_had_begun(
    tmp_path: Path, valkey_url: str
) -> None:
    dying = Box("box-bad", LOADED, slots=SLOTS, sim={"token_seconds": 0.01})
    with running(tmp_path, valkey_url, dying, GOOD) as (world, gateway):
        node = world.sim("box-bad")
        with ThreadPoolExecutor(1) as beside:
            outcomes = beside.submit(ask_many, gateway.url)
            until(lambda: node.stats.generations[CHAT] >= 10, "ten answers of the node")
            # It dies at its next request.
            world.inject("box-bad", die=True)
            found = outcomes.result()
        assert found["served"] >= REQUESTS - SLOTS, found
        assert found.total() == REQUESTS


def test_a_closed_node_is_shown_with_the_reason_and_comes_back_when_it_is_well(
    tmp_path: Path, valkey_url: str
) -> None:
    with running(tmp_path, valkey_url, BAD, GOOD) as (world, gateway):
        node = world.scripted("box-bad")
        node.plays(error_play("503 Service Unavailable", "server busy"))
        assert ask_many(gateway.url, 40) == {"served": 40}
        wait_tripped(world)
        document = loads(status_of(world, "--json"))
        states = {one["node_id"]: one["state"] for one in document["nodes"]}
        assert states == {"box-bad": "tripped", "box-good": "ready"}
        assert "server busy" in status_of(world)
        node.plays(SERVED)
        calls = len(node.calls)

        def restored() -> bool:
            assert ask_many(gateway.url, 2) == {"served": 2}
            return bool(world.evidence.events("NodeRestored"))

        until(restored, "the node restored")
        assert [e.data["node_id"] for e in world.evidence.events("NodeRestored")] == ["box-bad"]
        probes = [lease for lease in world.evidence.grants() if lease["probe"]]
        assert [lease["node_id"] for lease in probes] == ["box-bad"]
        assert ask_many(gateway.url, 40) == {"served": 40}
        assert len(node.calls) > calls + 1
        states = {
            one["node_id"]: one["state"] for one in loads(status_of(world, "--json"))["nodes"]
        }
        assert states == {"box-bad": "ready", "box-good": "ready"}


# --- what is not the node's fault


def test_a_client_s_mistakes_close_no_node(tmp_path: Path, valkey_url: str) -> None:
    with running(tmp_path, valkey_url, BAD, TWIN) as (world, gateway):
        for status in ("400 Bad Request", "413 Too Large", "422 Unprocessable", "429 Too Many"):
            for name in ("box-bad", "box-twin"):
                world.scripted(name).plays(error_play(status))
            for _ in range(2 * TRIP_AFTER):
                answer = direct(gateway.url, request_of())
                assert answer.status == int(status[:3])
                assert loads(answer.body) == {"error": "the node's own words"}
        for _ in range(2 * TRIP_AFTER):
            wrong = request_of(options={"temperature": "hot"})
            assert direct(gateway.url, wrong).status == 400
            assert direct(gateway.url, request_of("nobody")).status == 404
        calls = sum(len(world.scripted(name).calls) for name in ("box-bad", "box-twin"))
        # Each was asked of one node, and those that no node should see of none.
        assert calls == 4 * 2 * TRIP_AFTER
        assert not tripped(world)


@pytest.mark.parametrize("kind", ["500", "hang"])
def test_a_request_that_every_node_fails_closes_none(
    kind: str, tmp_path: Path, valkey_url: str
) -> None:
    bad = error_play("500 Internal Server Error") if kind == "500" else Play((), then="hold")
    settings = {"API_FIRST_BYTE_TIMEOUT_SECONDS": "0.2", "API_CONNECT_TIMEOUT_SECONDS": "0.2"}
    with running(tmp_path, valkey_url, BAD, TWIN, **settings) as (
        world,
        gateway,
    ):
        nodes = [world.scripted(name) for name in ("box-bad", "box-twin")]
        for node in nodes:
            node.plays(bad)
        for count in range(1, TRIP_AFTER + 2):
            answer = direct(gateway.url, request_of())
            assert [len(node.calls) for node in nodes] == [count, count]
            if kind == "500":
                # What the node said is what the client gets.
                assert answer.status == 500
                assert loads(answer.body) == {"error": "the node's own words"}
            else:
                assert answer.status == 504
        assert not tripped(world)


def test_a_node_alone_says_its_errors_itself_and_stays_open(
    tmp_path: Path, valkey_url: str
) -> None:
    with running(tmp_path, valkey_url, BAD) as (world, gateway):
        node = world.scripted("box-bad")
        for status in (500, 503):
            node.plays(error_play(f"{status} Something"))
            for _ in range(2 * TRIP_AFTER):
                answer = direct(gateway.url, request_of())
                assert (answer.status, answer.header("content-type")) == (
                    status,
                    "application/json",
                )
                assert loads(answer.body) == {"error": "the node's own words"}
        node.plays(SERVED)
        assert direct(gateway.url, request_of()).status == 200
        assert not tripped(world)


def test_a_missing_model_marks_that_model_on_that_node_alone(
    tmp_path: Path, valkey_url: str
) -> None:
    with running(tmp_path, valkey_url, BAD, GOOD) as (world, gateway):
        node = world.scripted("box-bad")
        node.plays(error_play("404 Not Found", f"model '{CHAT}' not found"))
        assert ask_many(gateway.url, 60) == {"served": 60}
        # Those that were on their way at once, and no later one.
        missed = len(node.calls)
        assert 1 <= missed <= AT_ONCE
        node.plays(SERVED)
        while len(node.calls) == missed:
            assert direct(gateway.url, request_of(OTHER)).status == 200
        assert loads(node.calls[-1].body)["model"] == OTHER
        assert not tripped(world)


def test_a_model_that_is_nowhere_is_told_with_the_mend(tmp_path: Path, valkey_url: str) -> None:
    with running(tmp_path, valkey_url, BAD, TWIN) as (world, gateway):
        for name in ("box-bad", "box-twin"):
            world.scripted(name).plays(error_play("404 Not Found", f"model '{CHAT}' not found"))
        for _ in range(2):
            answer = direct(gateway.url, request_of())
            told = loads(answer.body)
            assert (answer.status, told["reason"]) == (503, "not_installed")
            assert f"`ollama pull {CHAT}` on one of box-bad and box-twin" in told["error"]
            assert answer.header("retry-after") == "60"
        assert not tripped(world)


# --- one request


def test_nothing_is_tried_again_once_a_byte_was_passed_on(tmp_path: Path, valkey_url: str) -> None:
    with running(tmp_path, valkey_url, BAD, GOOD) as (world, gateway):
        node = world.scripted("box-bad")
        node.plays(TOLD["silent"][0])
        while not node.calls:
            with RawClient(gateway.url) as client:
                client.send(request_of())
                body = client.answer().body
        assert body.startswith(WORD)
        told = loads(body[len(WORD) :])
        assert "no byte for 1 s" in told["error"]
        assert node.calls[-1].gone.wait(1)
        lease = world.evidence.grants()[-1]
        until(lambda: world.evidence.active() == 0, "no lease")
        assert [e.data["outcome"] for e in world.evidence.ends_of(lease["lease_id"])] == ["failed"]
        assert lease["node_id"] == "box-bad"


def test_a_connection_that_is_not_made_in_time_sends_the_request_elsewhere(
    tmp_path: Path, valkey_url: str
) -> None:
    with running(tmp_path, valkey_url, BAD, GOOD) as (world, gateway):
        world.yard.run(world.scripted("box-bad").stop_accepting())
        try:
            assert ask_many(gateway.url, 40) == {"served": 40}
            wait_tripped(world)
            assert "connection" in tripped(world)[0][1]
        finally:
            world.yard.call(world.scripted("box-bad").accept)


def test_a_hung_node_alone_is_told_as_a_timeout(tmp_path: Path, valkey_url: str) -> None:
    with running(tmp_path, valkey_url, BAD) as (world, gateway):
        world.scripted("box-bad").plays(Play((), then="hold"))
        began_s = time.monotonic()
        answer = direct(gateway.url, request_of())
        assert (answer.status, loads(answer.body)["reason"]) == (504, "node_unhealthy")
        assert time.monotonic() - began_s >= LIMIT_S
        assert world.scripted("box-bad").calls[-1].gone.wait(1)


# --- loads

COLD = "cold:8b"
COLD_ROSTER = [worker(COLD, ["answer"])]


def test_a_load_that_fails_sends_the_request_to_another_node(
    tmp_path: Path, valkey_url: str
) -> None:
    boxes = [Box(name, (SimModel(COLD, 8 * GB),), slots=1) for name in ("box-a", "box-b")]
    with running(tmp_path, valkey_url, *boxes, roster=COLD_ROSTER) as (world, gateway):
        for name in ("box-a", "box-b"):
            world.inject(name, load_error="llama-server process has terminated")
            answer = direct(gateway.url, request_of(COLD, stream=False))
            assert answer.status == 200
            assert loads(answer.body)["response"] == ANSWER
            assert answer.header("x-aibs-node") != name
            world.inject(name)
            for node in ("box-a", "box-b"):
                direct(world.url_of(node), request_of(COLD, prompt="", keep_alive=0))
                until(lambda node=node: not world.sim(node).resident, "cold")  # type: ignore[misc]
                world.evidence.wait_observed(node, world.evidence.now_ms())
        for name in ("box-a", "box-b"):
            world.inject(name, load_error="llama-server process has terminated")
        answer = direct(gateway.url, request_of(COLD))
        assert answer.status == 502
        assert "terminated" in loads(answer.body)["error"]
        outcomes = world.evidence.outcomes()
        assert outcomes["completed"] == 2
        assert outcomes["failed"] >= 2


def test_a_long_load_after_a_failed_attempt_is_waited_for(tmp_path: Path, valkey_url: str) -> None:
    load_s = 2.0
    assert load_s > LIMIT_S + 0.5
    boxes = (
        Box("box-bad", (SimModel(COLD, 8 * GB),), slots=1, scripted=True),
        Box("box-cold", (SimModel(COLD, 8 * GB, load_seconds=load_s),), slots=1),
    )
    with running(tmp_path, valkey_url, *boxes, roster=COLD_ROSTER) as (world, gateway):
        # Resident there, so that it is asked first.
        world.scripted("box-bad").plays(error_play("503 Service Unavailable"))
        answer = direct(gateway.url, request_of(COLD, stream=False))
        assert len(world.scripted("box-bad").calls) == 1
        assert answer.status == 200, answer
        assert loads(answer.body)["response"] == ANSWER
