"""What cannot be placed is told in time and in the client's words; who waits hears of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ollama
import openai
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

    from tests.gateway_world import RawNode

NDJSON = "application/x-ndjson"
WORD = ndjson({"model": SCRIPTED, "message": {"role": "assistant", "content": "word"}})
DONE = ndjson({"model": SCRIPTED, "message": {"role": "assistant"}, "done": True})
EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
END = b"data: [DONE]\n\n"
HELD = Play(
    (head(content_type=NDJSON, transfer_encoding="chunked"), *chunked([WORD], end=False)),
    then="hold",
)
SERVED = Play((head(content_type=NDJSON, transfer_encoding="chunked"), *chunked([WORD, DONE])))
SERVED_SSE = Play(
    (head(content_type="text/event-stream", transfer_encoding="chunked"), *chunked([EVENT, END]))
)
QUEUE_MAX = 12
PLACES = QUEUE_MAX // 4
"""Of one environment."""

HI: Any = [{"role": "user", "content": "hi"}]


def request_of(path: str = "/api/chat", *headers: tuple[str, str], **members: Any) -> bytes:
    body = {"model": SCRIPTED, "messages": HI, "prompt": "x", **members}
    return post_bytes(path, dumps(body), headers)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, valkey_url: str) -> Iterator[World]:
    settings: Any = {"MODEL_CLUSTER_QUEUE_MAX_WAITERS": str(QUEUE_MAX)}
    with twin_world(tmp_path_factory.mktemp("placing"), valkey_url, **settings) as world:
        yield world


@pytest.fixture
def nodes(world: World) -> list[RawNode]:
    found = [world.scripted(name) for name in ("box-a", "box-b")]
    for node in found:
        world.yard.call(node.calls.clear)
    return found


@pytest.fixture
def full(world: World, url: str, nodes: list[RawNode]) -> Iterator[list[RawClient]]:
    """Every slot taken by a stream that does not end; closing a client frees one."""
    for node in nodes:
        node.plays(HELD)
    holders = []
    try:
        for count in (1, 2):
            holder = RawClient(url)
            holders.append(holder)
            holder.send(request_of())
            until(lambda count=count: world.evidence.active() == count, "a slot taken")  # type: ignore[misc]
        yield holders
    finally:
        for holder in holders:
            holder.close()
        world.wait_idle()


def test_what_cannot_be_placed_in_its_time_is_refused_with_all_that_helps(
    url: str, full: list[RawClient]
) -> None:
    began_s = time.monotonic()
    native = direct(url, request_of("/api/chat", ("X-AIBS-Wait", "0.5")))
    assert time.monotonic() - began_s >= 0.5
    told = loads(native.body)
    assert (native.status, told["reason"]) == (503, "wait_timeout")
    assert SCRIPTED in told["error"]
    assert told["retry_after_ms"] > 0
    assert told["position"] == 1
    assert int(str(native.header("retry-after"))) >= 1
    compatible = direct(url, request_of("/v1/completions", ("X-AIBS-Wait", "0.1")))
    told = loads(compatible.body)["error"]
    assert (compatible.status, told["code"], told["type"]) == (503, "wait_timeout", "api_error")
    assert compatible.header("retry-after") is not None


def test_a_request_that_does_not_wait_is_refused_at_once_with_the_nodes_reason(
    world: World, url: str, full: list[RawClient]
) -> None:
    mark = world.evidence.mark()
    refused = direct(url, request_of("/api/generate", ("X-AIBS-Wait", "0")))
    told = loads(refused.body)
    assert (refused.status, told["reason"]) == (503, "no_slot")
    assert "box-a" in told["error"]
    assert refused.header("retry-after") is not None
    assert not world.evidence.events("LeaseQueued", after=mark)
    (denied,) = world.evidence.events("LeaseDenied", after=mark)
    assert refused.header("x-aibs-request") == denied.data["request_id"]


def test_a_full_queue_is_told_as_too_many_requests(
    world: World, url: str, full: list[RawClient]
) -> None:
    waiting = [RawClient(url) for _ in range(PLACES)]
    try:
        for client in waiting:
            client.send(request_of())
        until(lambda: world.evidence.waiting() == PLACES, "a full queue")
        native = direct(url, request_of())
        assert (native.status, loads(native.body)["reason"]) == (429, "queue_full")
        assert native.header("retry-after") is not None
        compatible = direct(url, request_of("/v1/chat/completions"))
        told = loads(compatible.body)["error"]
        assert (compatible.status, told["type"]) == (429, "rate_limit_error")
    finally:
        for client in waiting:
            client.close()
    until(lambda: world.evidence.waiting() == 0, "an empty queue")


def test_a_higher_class_is_served_first(
    world: World, url: str, nodes: list[RawNode], full: list[RawClient]
) -> None:
    mark = world.evidence.mark()
    with RawClient(url) as low, RawClient(url) as high:
        for count, (client, word) in enumerate(((low, "low"), (high, "high")), 1):
            client.send(request_of("/api/chat", ("X-AIBS-Priority", word)))
            until(lambda count=count: world.evidence.waiting() == count, "one that waits")  # type: ignore[misc]
        for node in nodes:
            node.plays(SERVED)
        full[0].close()
        assert high.answer().whole
        assert low.answer().whole
        assert int(str(low.head().header("x-aibs-queue-ms"))) > 0
    classes = [lease["class"] for lease in world.evidence.grants(mark)]
    assert classes == ["high", "low"]


# --- places told in the stream


def wait_place(client: RawClient) -> bytes:
    piece = client.piece()
    assert b"position" in piece, piece
    return piece


UPDATES = ("X-AIBS-Queue-Updates", "1")


def test_ollama_s_client_takes_places_told_in_its_stream(
    world: World, url: str, nodes: list[RawNode], full: list[RawClient]
) -> None:
    client = ollama.Client(host=url, headers=dict([UPDATES]), timeout=20)
    stream: Any = client.chat(SCRIPTED, messages=HI, stream=True)
    first = next(stream)
    assert (first.done, first.message.content, first.model) == (False, "", SCRIPTED)
    for node in nodes:
        node.plays(SERVED)
    full[0].close()
    rest = list(stream)
    assert [part.message.content for part in rest if part.message.content] == ["word"]
    assert rest[-1].done
    client._client.close()


def test_openai_s_client_takes_places_told_in_its_stream(
    url: str, nodes: list[RawNode], full: list[RawClient]
) -> None:
    with openai.OpenAI(
        base_url=f"{url}/v1",
        api_key="x",
        timeout=20,
        max_retries=0,
        default_headers=dict([UPDATES]),
    ) as client:
        stream = client.chat.completions.create(model=SCRIPTED, messages=HI, stream=True)
        # Nothing that a client of OpenAI would hear: the stream has begun all the same.
        for node in nodes:
            node.plays(SERVED_SSE)
        full[0].close()
        assert [part.choices[0].delta.content for part in stream] == ["word"]


def test_places_are_told_as_they_change_and_only_to_those_who_asked(
    world: World, url: str, nodes: list[RawNode], full: list[RawClient]
) -> None:
    with RawClient(url) as silent, RawClient(url) as told, RawClient(url) as sse:
        silent.send(request_of())
        until(lambda: world.evidence.waiting() == 1, "one that waits")
        told.send(request_of("/api/generate", UPDATES))
        place = loads(wait_place(told))
        assert place["aibs"] == {"position": 2, "reason": "no_slot"}
        assert (place["done"], place["response"], place["model"]) == (False, "", SCRIPTED)
        sse.send(request_of("/v1/completions", UPDATES, stream=True))
        assert wait_place(sse) == b": aibs position=3 reason=no_slot\n\n"
        silent.close()
        assert loads(wait_place(told))["aibs"]["position"] == 1
        assert wait_place(sse) == b": aibs position=2 reason=no_slot\n\n"
        for node in nodes:
            node.plays(SERVED)
        full[0].close()
        assert told.answer().body.endswith(WORD + DONE)
        assert told.answer().whole
        assert sse.answer().whole


def test_a_wait_that_ends_without_a_place_is_told_in_the_stream_that_has_begun(
    url: str, full: list[RawClient]
) -> None:
    native = direct(url, request_of("/api/chat", UPDATES, ("X-AIBS-Wait", "0.5")))
    lines = [loads(line) for line in native.body.splitlines()]
    assert (native.status, native.whole) == (200, True)
    assert lines[0]["aibs"]["position"] == 1
    assert lines[-1]["reason"] == "wait_timeout"
    wait = ("X-AIBS-Wait", "0.5")
    sse = direct(url, request_of("/v1/chat/completions", UPDATES, wait, stream=True))
    assert (sse.status, sse.whole) == (200, True)
    last = sse.body.rstrip().rpartition(b"\n\n")[2]
    assert loads(last.removeprefix(b"data: "))["error"]["code"] == "wait_timeout"


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_node_s_refusal_behind_places_is_told_in_that_stream(
    path: str, url: str, nodes: list[RawNode], full: list[RawClient]
) -> None:
    told = {"message": "too long"} if path.startswith("/v1/") else "too long"
    body = dumps({"error": told})
    start = head("400 Bad Request", content_type="application/json", content_length=str(len(body)))
    with RawClient(url) as client:
        client.send(request_of(path, UPDATES, stream=True))
        place = wait_place(client)
        for node in nodes:
            node.plays(Play((start, body)))
        full[0].close()
        answer = client.answer()
    assert answer.whole
    assert answer.body.endswith(b"\n")
    rest = answer.body[len(place) :].rstrip(b"\n")
    if path.startswith("/v1/"):
        assert rest.startswith(b"data: ")
        assert loads(rest.removeprefix(b"data: "))["error"]["message"] == "too long"
    else:
        assert loads(rest)["error"] == "too long"


def test_a_request_that_was_told_its_place_goes_to_another_node_where_one_fails(
    world: World, url: str, nodes: list[RawNode], full: list[RawClient]
) -> None:
    refusal = Play((head("503 Service Unavailable", content_length="0"),))
    with RawClient(url) as client:
        client.send(request_of("/api/chat", UPDATES))
        wait_place(client)
        holder = full.pop()
        node_id = next(
            lease["node_id"]
            for lease in reversed(world.evidence.grants())
            if lease["lease_id"] == holder.head().header("x-aibs-lease")
        )
        failing = nodes[0] if node_id == "box-a" else nodes[1]
        other = nodes[1] if node_id == "box-a" else nodes[0]
        failing.plays(refusal)
        other.plays(SERVED)
        holder.close()
        until(lambda: len(failing.calls) == 2, "an attempt that failed")
        full[0].close()
        answer = client.answer()
    assert answer.whole
    assert answer.body.endswith(WORD + DONE)
