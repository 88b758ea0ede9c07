"""The coordination server away: refused at once, nothing forwarded, what runs goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

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
from tests.gateway_world.plain import SCRIPTED, twin_world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway_world import ServeProcess
    from tests.valkey_server import ValkeyServer

AT_ONCE_S = 3.0
"""The first to notice waits for one answer that does not come; a client gives up much later."""

KNOWN_S = 1.0
"""Once it is known, nobody waits for it."""

NDJSON = "application/x-ndjson"
WORD = ndjson({"model": SCRIPTED, "response": "word", "done": False})
DONE = ndjson({"model": SCRIPTED, "done": True})
START = head(content_type=NDJSON, transfer_encoding="chunked")
SERVED = Play((START, *chunked([WORD, DONE])))
SLOTS = 4


def request_of(path: str = "/api/generate") -> bytes:
    return post_bytes(path, dumps({"model": SCRIPTED, "prompt": "x"}))


@pytest.fixture
def world(tmp_path: Path, own_valkey: ValkeyServer) -> Iterator[World]:
    settings: Any = {
        "MODEL_CLUSTER_QUEUE_GRACE_SECONDS": "3",
        "MODEL_CLUSTER_HEARTBEAT_INTERVAL_SECONDS": "1",
    }
    with twin_world(tmp_path, own_valkey.url, slots=SLOTS, **settings) as world:
        for name in ("box-a", "box-b"):
            world.scripted(name).plays(SERVED)
        yield world


@pytest.fixture
def gateway(world: World) -> Iterator[ServeProcess]:
    with world.serve() as gateway:
        world.wait_seen()
        assert direct(gateway.url, request_of()).status == 200
        yield gateway


def calls(world: World) -> int:
    return sum(len(world.scripted(name).calls) for name in ("box-a", "box-b"))


def refused_s(url: str, path: str = "/api/generate") -> float:
    """How long a refusal took; that it was one, as each API tells it."""
    began_s = time.monotonic()
    answer = direct(url, request_of(path))
    took_s = time.monotonic() - began_s
    told: dict[str, Any] = loads(answer.body)
    reason = told["reason"] if path.startswith("/api/") else told["error"]["code"]
    assert (answer.status, reason) == (503, "coordination_unavailable"), answer
    assert answer.header("retry-after") is not None
    # Where the server is, and what the system said of it, is the log's.
    for word in (b"127.0.0.1", b".sock", "…".encode(), b"onnect"):
        assert word not in answer.body, answer.body
    return took_s


def assert_refused(world: World, url: str) -> None:
    before = calls(world)
    assert refused_s(url) < AT_ONCE_S
    for path in ("/api/generate", "/v1/completions"):
        assert refused_s(url, path) < KNOWN_S
    assert calls(world) == before


def wait_served(url: str) -> None:
    until(lambda: direct(url, request_of()).status == 200, "served again")


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_without_the_server_nothing_is_forwarded_and_with_it_again_all_is(
    how: str, world: World, gateway: ServeProcess, own_valkey: ValkeyServer
) -> None:
    if how == "killed":
        own_valkey.kill()
    else:
        own_valkey.pause()
    assert_refused(world, gateway.url)
    # The control plane and the fleet's own answers need no server.
    for path in ("/health", "/api/tags", "/v1/models", "/metrics"):
        with RawClient(gateway.url) as client:
            client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert client.answer().status == 200, path
    denials = [line["error"] for line in gateway.lines("placement_denied")]
    assert len(denials) >= 3
    if how == "killed":
        assert all("127.0.0.1" in error and "…" not in error for error in denials), denials
        own_valkey.start()
    else:
        own_valkey.resume()
    wait_served(gateway.url)
    world.wait_idle()
    if how == "paused":
        world.evidence.assert_one_end_a_grant()


def test_a_stream_outlives_a_pause_of_the_server_and_its_lease_is_given_back(
    world: World, gateway: ServeProcess, own_valkey: ValkeyServer
) -> None:
    mark = world.evidence.mark()
    for name in ("box-a", "box-b"):
        world.scripted(name).plays(Play((START, *chunked([WORD, DONE])), paced=True))
    with RawClient(gateway.url) as client:
        client.send(request_of())
        for name in ("box-a", "box-b"):
            world.scripted(name).permit(2)
        assert client.piece() == WORD
        own_valkey.pause()
        try:
            assert refused_s(gateway.url) < AT_ONCE_S
            for name in ("box-a", "box-b"):
                world.scripted(name).permit(2)
            began_s = time.monotonic()
            answer = client.answer()
            # Its end does not wait for a release that nobody answers.
            assert time.monotonic() - began_s < KNOWN_S
        finally:
            own_valkey.resume()
    assert answer.whole
    assert answer.body == WORD + DONE
    world.wait_idle()
    # The one that was refused may have got its grant when the server went on.
    assert world.evidence.outcomes(mark) in ({"completed": 1}, {"completed": 1, "cancelled": 1})
    world.evidence.assert_one_end_a_grant(mark)


def test_who_waits_is_refused_when_the_server_goes(
    world: World, gateway: ServeProcess, own_valkey: ValkeyServer
) -> None:
    for name in ("box-a", "box-b"):
        world.scripted(name).plays(Play((START, *chunked([WORD], end=False)), then="hold"))
    holders = [RawClient(gateway.url) for _ in range(2 * SLOTS)]
    try:
        for holder in holders:
            holder.send(request_of())
        until(lambda: world.evidence.active() == 2 * SLOTS, "every slot taken")
        with RawClient(gateway.url) as waiter:
            waiter.send(request_of())
            until(lambda: world.evidence.waiting() == 1, "one that waits")
            own_valkey.pause()
            try:
                answer = waiter.answer()
            finally:
                own_valkey.resume()
        assert (answer.status, loads(answer.body)["reason"]) == (503, "coordination_unavailable")
    finally:
        for holder in holders:
            holder.close()
    world.wait_idle()
    world.evidence.assert_one_end_a_grant()
