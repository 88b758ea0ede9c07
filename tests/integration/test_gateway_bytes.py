"""What a node sends reaches the client byte for byte, and what fails is told in its own format."""

from __future__ import annotations

import gzip
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aibs.codec import dumps, loads
from tests.gateway_world import Play, World, chunked, direct, head, ndjson, post_bytes
from tests.gateway_world.plain import SCRIPTED, plain_world
from tests.gateway_world.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.gateway_world import Answer, RawNode

SEED = 20_261_202
MB = 1 << 20
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
JSON = "application/json; charset=utf-8"

DONE = ndjson({"model": SCRIPTED, "done": True, "done_reason": "stop", "eval_count": 2})
WORD = ndjson({"model": SCRIPTED, "message": {"role": "assistant", "content": "wörd 🙂"}})
EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"w\xc3\xb6rd"}}]}\n\n'
END = b"data: [DONE]\n\n"
RESPONSE_END = b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n'
OBJECT = dumps({"model": SCRIPTED, "message": {"content": "w\xf6rd"}, "done": True})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, valkey_url: str) -> Iterator[World]:
    # The scripted node fails more requests here than any node in a row should.
    settings = {"API_TRIP_AFTER_FAILURES": "1000"}
    with plain_world(tmp_path_factory.mktemp("bytes"), valkey_url, **settings) as world:
        yield world


def asked(path: str = "/api/chat", **members: Any) -> bytes:
    """A request for the scripted node."""
    return post_bytes(path, dumps({"model": SCRIPTED, "messages": [], **members}))


def streamed(content_type: str, pieces: Sequence[bytes], **more: Any) -> Play:
    start = head(content_type=content_type, transfer_encoding="chunked", **more)
    return Play((start, *chunked(pieces)))


def measured(content_type: str, body: bytes, status: str = "200 OK", **more: Any) -> Play:
    start = head(status, content_type=content_type, content_length=str(len(body)), **more)
    return Play((start, body))


def cut_up(data: bytes, size_max: int) -> list[bytes]:
    """In pieces of odd sizes, the same in each run."""
    rng, pieces = random.Random(SEED), []
    while data:
        size = rng.randint(1, size_max)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


LONG_LINES = b"".join(ndjson({"response": letter * MB, "done": False}) for letter in "aÖ🙂")
EVERY_BYTE = bytes(range(256)) * 5

SAME: dict[str, tuple[str, dict[str, Any], Play, str]] = {
    "ndjson": ("/api/chat", {}, streamed(NDJSON, [WORD, WORD, DONE]), "completed"),
    "several lines a chunk": ("/api/chat", {}, streamed(NDJSON, [WORD * 9 + DONE]), "completed"),
    "lines of 1 MB": (
        "/api/generate",
        {},
        streamed(NDJSON, [LONG_LINES, DONE]),
        "completed",
    ),
    "lines of 1 MB in odd chunks": (
        "/api/generate",
        {},
        streamed(NDJSON, cut_up(LONG_LINES + DONE, 100_000)),
        "completed",
    ),
    "a last line of 1 MB": (
        "/api/generate",
        {},
        streamed(NDJSON, cut_up(dumps({"context": "x" * MB, "done": True}), 65_000)),
        "completed",
    ),
    "a byte a chunk": (
        "/api/chat",
        {},
        streamed(NDJSON, [bytes([one]) for one in WORD + DONE]),
        "completed",
    ),
    "odd chunks": ("/api/chat", {}, streamed(NDJSON, cut_up(WORD * 40 + DONE, 7)), "completed"),
    "no last newline": ("/api/chat", {}, streamed(NDJSON, [WORD, DONE[:-1]]), "completed"),
    "crlf and blank lines": (
        "/api/chat",
        {},
        streamed(NDJSON, [WORD.replace(b"\n", b"\r\n"), DONE, b"\r\n\n"]),
        "completed",
    ),
    "done_reason alone": (
        "/api/chat",
        {},
        streamed(NDJSON, [WORD, ndjson({"done_reason": "stop"})]),
        "completed",
    ),
    "no done": ("/api/chat", {}, streamed(NDJSON, [WORD, WORD]), "failed"),
    "half a last line": ("/api/chat", {}, streamed(NDJSON, [WORD, DONE[:20]]), "failed"),
    "an error line": (
        "/api/chat",
        {},
        streamed(NDJSON, [WORD, ndjson({"error": "unexpected EOF"})]),
        "failed",
    ),
    "a line that is no JSON": ("/api/chat", {}, streamed(NDJSON, [WORD, b"oops\n"]), "failed"),
    "any bytes": ("/api/chat", {}, streamed(NDJSON, cut_up(EVERY_BYTE, 99)), "failed"),
    "a stream with a length": ("/api/chat", {}, measured(NDJSON, WORD + DONE), "completed"),
    "an empty stream": ("/api/chat", {}, streamed(NDJSON, []), "failed"),
    "an object for a stream": ("/api/chat", {}, measured(JSON, OBJECT), "completed"),
    "sse": (
        "/v1/chat/completions",
        {"stream": True},
        streamed(SSE, [EVENT, EVENT, END]),
        "completed",
    ),
    "sse in odd chunks": (
        "/v1/completions",
        {"stream": True},
        streamed(SSE, cut_up(EVENT * 30 + END, 11)),
        "completed",
    ),
    "sse with comments and crlf": (
        "/v1/chat/completions",
        {"stream": True},
        streamed(SSE, [b": hello\r\n\r\n", EVENT.replace(b"\n", b"\r\n"), END]),
        "completed",
    ),
    "sse without [DONE]": (
        "/v1/chat/completions",
        {"stream": True},
        streamed(SSE, [EVENT, EVENT]),
        "failed",
    ),
    "sse of 1 MB": (
        "/v1/chat/completions",
        {"stream": True},
        streamed(SSE, [b"data: " + dumps({"x": "y" * MB}) + b"\n\n", END]),
        "completed",
    ),
    "responses": (
        "/v1/responses",
        {"stream": True},
        streamed(SSE, [b'event: x\ndata: {"type":"x"}\n\n', RESPONSE_END]),
        "completed",
    ),
    "responses cut": (
        "/v1/responses",
        {"stream": True},
        streamed(SSE, [b'event: x\ndata: {"type":"x"}\n\n']),
        "failed",
    ),
    "an object": ("/api/chat", {"stream": False}, measured(JSON, OBJECT), "completed"),
    "an object in chunks": (
        "/api/chat",
        {"stream": False},
        streamed(JSON, cut_up(OBJECT, 9)),
        "completed",
    ),
    "an object of 3 MB": (
        "/api/embed",
        {},
        measured(JSON, dumps({"embeddings": [[0.25] * 600_000]})),
        "completed",
    ),
    "an openai object": (
        "/v1/chat/completions",
        {},
        measured(JSON, dumps({"id": "c", "choices": []})),
        "completed",
    ),
    "labelled gzip": (
        "/api/chat",
        {"stream": False},
        measured(JSON, gzip.compress(OBJECT, mtime=0), content_encoding="gzip"),
        "completed",
    ),
    "labelled gzip and streamed": (
        "/api/embed",
        {},
        streamed(JSON, cut_up(gzip.compress(OBJECT, mtime=0), 5), content_encoding="gzip"),
        "completed",
    ),
    "an empty body": ("/api/chat", {"stream": False}, measured(JSON, b""), "completed"),
    "a client's mistake": (
        "/api/chat",
        {"stream": False},
        measured(JSON, b'{"error":"too long"}', "400 Bad Request"),
        "failed",
    ),
    "a client's mistake for a stream": (
        "/v1/chat/completions",
        {"stream": True},
        measured(JSON, b'{"error":{"message":"too long"}}', "400 Bad Request"),
        "failed",
    ),
    "a route that is missing": (
        "/api/embed",
        {},
        measured("text/plain", b"404 page not found", "404 Not Found"),
        "failed",
    ),
}


def shape(answer: Answer) -> tuple[Any, ...]:
    """What must be equal."""
    told = [answer.header(name) for name in ("content-type", "content-length", "content-encoding")]
    return answer.status, told, answer.framing, answer.whole


@pytest.mark.parametrize("case", SAME)
def test_an_answer_is_the_node_s_own_byte_for_byte(
    case: str, world: World, url: str, raw: RawNode
) -> None:
    path, members, play, outcome = SAME[case]
    raw.plays(play)
    request = asked(path, **members)
    wanted = direct(raw.url, request)
    mark = world.evidence.mark()
    found = direct(url, request)
    assert found.body == wanted.body
    assert shape(found) == shape(wanted)
    world.wait_idle(2)
    assert world.evidence.outcomes(mark) == {outcome: 1}


def test_a_body_that_ends_with_its_connection_is_passed_on_whole(
    world: World, url: str, raw: RawNode
) -> None:
    raw.plays(Play((head(content_type=NDJSON), WORD, DONE)))
    mark = world.evidence.mark()
    answer = direct(url, asked())
    assert (answer.body, answer.whole) == (WORD + DONE, True)
    world.wait_idle(2)
    assert world.evidence.outcomes(mark) == {"completed": 1}


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_each_piece_is_passed_on_before_the_next_one_is_there(
    path: str, url: str, raw: RawNode
) -> None:
    native = path.startswith("/api/")
    word, end, kind = (WORD, DONE, NDJSON) if native else (EVENT, END, SSE)
    # In the middle of a character, too.
    half = word.index(b"\xc3") + 1
    pieces = [word, word[:half], word[half:], end]
    raw.plays(replace(streamed(kind, pieces), paced=True))
    with RawClient(url) as client:
        client.send(asked(path, stream=True))
        raw.permit()
        sent = b""
        for piece in pieces:
            raw.permit()
            sent += piece
            assert client.until(len(sent)) == sent
        raw.permit()
        assert client.answer().whole


# --- what breaks


def cut_after(
    content_type: str, pieces: Sequence[bytes], *, length: int | None = None, reset: bool = True
) -> Play:
    """Pieces, and when the test allows it a connection that breaks."""
    if length is None:
        start = head(content_type=content_type, transfer_encoding="chunked")
        parts = chunked(pieces, end=False)
    else:
        start = head(content_type=content_type, content_length=str(length))
        parts = list(pieces)
    # The last, empty piece is what the test lets go when its client has the rest.
    return Play((start, *parts, b""), then="reset" if reset else "close", paced=True)


def cut_short(url: str, raw: RawNode, play: Play, request: bytes, size: int) -> Answer:
    """The answer of a node that breaks off when the client has `size` bytes."""
    raw.plays(play)
    with RawClient(url) as client:
        client.send(request)
        raw.permit(len(play.pieces) - 1)
        client.until(size)
        raw.permit()
        return client.answer()


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("size", [len(WORD), 2 * len(WORD), len(WORD) + 17])
def test_an_ndjson_stream_that_breaks_ends_with_an_error_line(
    size: int, reset: bool, world: World, url: str, raw: RawNode
) -> None:
    sent = (WORD * 2)[:size]
    mark = world.evidence.mark()
    answer = cut_short(url, raw, cut_after(NDJSON, [sent], reset=reset), asked(), size)
    assert answer.whole
    assert answer.body[:size] == sent
    rest = answer.body[size:]
    # A broken line is ended first, so that the error has one of its own.
    assert rest.startswith(b"\n{" if size % len(WORD) else b"{")
    assert rest.endswith(b"\n")
    told = loads(rest)
    assert "box-raw ended early" in told["error"]
    assert told["reason"] == "node_unhealthy"
    world.wait_idle(2)
    assert world.evidence.outcomes(mark) == {"failed": 1}


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_node_that_breaks_behind_its_last_word_takes_nothing_from_the_answer(
    path: str, reset: bool, world: World, url: str, raw: RawNode
) -> None:
    native = path.startswith("/api/")
    pieces, kind = ([WORD, DONE], NDJSON) if native else ([EVENT, END], SSE)
    sent = b"".join(pieces)
    mark = world.evidence.mark()
    play = cut_after(kind, pieces, reset=reset)
    answer = cut_short(url, raw, play, asked(path, stream=True), len(sent))
    assert (answer.body, answer.whole) == (sent, True)
    world.wait_idle(2)
    assert world.evidence.outcomes(mark) == {"completed": 1}


LAST = b'event: response.completed\ndata: {"type":"response.completed","resp'
LONG_LAST = b'{"response":"","done":true,"context":[' + b"1234," * 100_000


@pytest.mark.parametrize(
    ("path", "content_type", "sent"),
    [("/v1/responses", SSE, LAST), ("/api/generate", NDJSON, LONG_LAST)],
)
def test_a_break_within_the_last_word_is_told_although_its_name_was_passed_on(
    path: str, content_type: str, sent: bytes, world: World, url: str, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    request = asked(path, stream=True)
    answer = cut_short(url, raw, cut_after(content_type, [sent]), request, len(sent))
    assert answer.body.startswith(sent + b"\n")
    assert b"ended early" in answer.body[len(sent) :]
    world.wait_idle(2)
    assert world.evidence.outcomes(mark) == {"failed": 1}


def test_a_stream_with_a_length_that_breaks_behind_its_last_word_is_broken_off(
    world: World, url: str, raw: RawNode
) -> None:
    sent = WORD + DONE
    mark = world.evidence.mark()
    play = cut_after(NDJSON, [sent], length=len(sent) + 1)
    answer = cut_short(url, raw, play, asked(), len(sent))
    assert (answer.body, answer.whole) == (sent, False)
    world.wait_idle(2)
    assert world.evidence.outcomes(mark) == {"failed": 1}


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("size", [len(EVENT), len(EVENT) + 9, 2 * len(EVENT) - 1])
def test_an_sse_stream_that_breaks_ends_with_an_error_event(
    size: int, reset: bool, world: World, url: str, raw: RawNode
) -> None:
    sent = (EVENT * 2)[:size]
    mark = world.evidence.mark()
    request = asked("/v1/chat/completions", stream=True)
    answer = cut_short(url, raw, cut_after(SSE, [sent], reset=reset), request, size)
    assert answer.whole
    assert answer.body[:size] == sent
    event = answer.body[size:].strip(b"\n")
    assert answer.body[size:].startswith(b"data:" if size == len(EVENT) else b"\n\ndata:")
    assert answer.body.endswith(b"\n\n")
    told = loads(event.removeprefix(b"data: "))["error"]
    assert told["code"] == "node_unhealthy"
    assert "box-raw ended early" in told["message"]
    world.wait_idle(2)
    assert world.evidence.outcomes(mark) == {"failed": 1}


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize(
    ("path", "members", "content_type", "length"),
    [
        ("/api/chat", {"stream": False}, JSON, 5000),
        ("/api/chat", {"stream": False}, JSON, None),
        ("/v1/chat/completions", {}, JSON, 5000),
        ("/api/chat", {}, NDJSON, 5000),
        ("/api/chat", {}, JSON, 5000),
        ("/v1/chat/completions", {"stream": True}, SSE, 5000),
    ],
    ids=["native", "native chunked", "openai", "stream with a length", "object", "sse measured"],
)
def test_a_body_in_one_piece_that_breaks_is_broken_off(
    path: str,
    members: dict[str, Any],
    content_type: str,
    length: int | None,
    reset: bool,
    world: World,
    url: str,
    raw: RawNode,
) -> None:
    sent = b'{"model":"scripted:1b","message":{"content":"begun'
    mark = world.evidence.mark()
    play = cut_after(content_type, [sent], length=length, reset=reset)
    answer = cut_short(url, raw, play, asked(path, **members), len(sent))
    # Nothing is added: a client would take it for a part of the document.
    assert answer.body == sent
    assert not answer.whole
    world.wait_idle(2)
    assert world.evidence.outcomes(mark) == {"failed": 1}


def test_what_came_before_a_break_arrives_however_slow_the_reader(
    world: World, url: str, raw: RawNode
) -> None:
    sent = WORD * (8 * MB // len(WORD))
    start = head(content_type=NDJSON, transfer_encoding="chunked")
    raw.plays(Play((start, *chunked(cut_up(sent, 90_000), end=False))))
    with RawClient(url, receive_bytes=4096) as client:
        client.send(asked())
        answer = client.answer()
    assert answer.whole
    assert answer.body[: len(sent)] == sent
    assert "ended early" in loads(answer.body[len(sent) :])["error"]


def test_a_node_that_dies_before_a_byte_is_told_as_an_error(
    world: World, url: str, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    raw.plays(Play((), then="reset"))
    native = direct(url, asked())
    assert (native.status, loads(native.body)["reason"]) == (502, "node_unhealthy")
    compatible = direct(url, asked("/v1/completions"))
    assert (compatible.status, loads(compatible.body)["error"]["type"]) == (502, "api_error")
    world.wait_idle(2)
    # A connection that broke unused says nothing, so each was tried twice.
    assert world.evidence.outcomes(mark) == {"failed": 4}


@pytest.mark.parametrize(
    "reply",
    [
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        head("302 Found", location="/api/tags", content_length="0"),
        head("401 Unauthorized", content_length="0", www_authenticate="Basic"),
        head("403 Forbidden", content_length="0"),
    ],
    ids=["no HTTP", "length", "chunk", "redirect", "401", "403"],
)
def test_an_answer_that_is_not_ollama_s_is_the_node_s_failure(
    reply: bytes, url: str, raw: RawNode
) -> None:
    raw.plays(Play((reply,)))
    answer = direct(url, asked())
    assert (answer.status, loads(answer.body)["reason"]) == (502, "node_unhealthy")
    assert answer.header("location") is None
    assert answer.header("www-authenticate") is None


# --- headers


def test_a_node_gets_no_header_but_those_that_are_its_own(url: str, raw: RawNode) -> None:
    raw.plays(streamed(NDJSON, [DONE]))
    body = dumps({"model": SCRIPTED})
    headers = [
        ("Origin", "http://localhost"),
        ("Authorization", "Bearer secret"),
        ("Proxy-Authorization", "Basic secret"),
        ("Cookie", "session=secret"),
        ("X-AIBS-Priority", "high"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("X-Real-IP", "10.0.0.1"),
        ("Forwarded", "for=10.0.0.1"),
        ("Accept-Encoding", "gzip, br"),
        ("Connection", "keep-alive, X-Own"),
        ("X-Own", "1"),
        ("TE", "trailers"),
        ("Range", "bytes=0-1"),
        ("Content-Type", "application/json; charset=utf-8"),
        ("Accept", "application/x-ndjson"),
        ("User-Agent", "somebody/1.0"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=1"),
    ]
    answer = direct(url, post_bytes("/api/chat?x=1", body, headers, host="localhost"))
    assert answer.status == 200
    found = {name.lower(): value for name, value in raw.calls[-1].headers}
    assert len(found) == len(raw.calls[-1].headers)
    assert raw.calls[-1].target == "/api/chat"
    assert found == {
        "host": f"127.0.0.1:{raw.port}",
        "content-length": str(len(body)),
        "accept-encoding": "identity",
        "content-type": "application/json; charset=utf-8",
        "accept": "application/x-ndjson",
        "user-agent": "somebody/1.0",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=1",
    }


def test_a_request_in_chunks_reaches_the_node_with_its_length(url: str, raw: RawNode) -> None:
    raw.plays(streamed(NDJSON, [DONE]))
    body = dumps({"model": SCRIPTED, "prompt": "x" * 200_000})
    start = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert direct(url, start + b"".join(chunked(cut_up(body, 30_000)))).status == 200
    assert raw.calls[-1].body == body
    assert raw.calls[-1].header("content-length") == str(len(body))
    assert raw.calls[-1].header("transfer-encoding") is None


@pytest.mark.parametrize("value", [b"caf\xe9", b"\xf0\x9f\x99\x82", b"a\tb", b"", b"x" * 20_000])
def test_a_client_s_odd_header_is_no_fault_of_a_node(
    value: bytes, world: World, url: str, raw: RawNode
) -> None:
    raw.plays(streamed(NDJSON, [DONE]))
    request = asked().replace(b"\r\n", b"\r\nUser-Agent: " + value + b"\r\n", 1)
    assert direct(url, request).status == 200
    assert len(raw.calls) == 1


def test_a_client_gets_no_header_that_was_for_the_gateway(url: str, raw: RawNode) -> None:
    raw.plays(
        measured(
            JSON,
            OBJECT,
            close=False,
            connection="close, X-Hop",
            x_hop="1",
            keep_alive="timeout=5",
            server="node/1",
            date="Thu, 01 Jan 1970 00:00:00 GMT",
            x_kept="yes",
            x_aibs_node="another",
        )
    )
    answer = direct(url, asked(stream=False))
    names = [name.lower() for name, _ in answer.headers]
    assert not {"x-hop", "keep-alive", "server", "connection"} & set(names)
    assert answer.header("x-kept") == "yes"
    assert answer.header("x-aibs-node") == "box-raw"
    assert "1970" not in str(answer.header("date"))


# --- bodies


def forwarded(url: str, raw: RawNode, body: bytes, path: str = "/api/chat") -> bytes:
    """What of a body the node gets."""
    raw.plays(streamed(NDJSON, [DONE]) if path.startswith("/api/") else streamed(SSE, [END]))
    before = len(raw.calls)
    answer = direct(url, post_bytes(path, body))
    assert answer.status == 200, answer.body
    assert len(raw.calls) == before + 1
    return raw.calls[-1].body


def test_a_body_that_says_what_it_means_is_forwarded_as_it_came(url: str, raw: RawNode) -> None:
    for body in (
        b'{ "model" : "scripted:1b",\n "messages":[ ],"seed":1.50, "x":"\\u00e9" }',
        b'\n\t {"model":"scripted:1b"}\r\n ',
        b'{"model":"scripted:1b","think":1e3}',
    ):
        assert forwarded(url, raw, body) == body
    for body in (b'{"model":"scripted:1b","options":{"num_ctx":1},"keep_alive":"9m"}',):
        assert forwarded(url, raw, body, "/v1/chat/completions") == body


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (
            b'{"Model":"chat:8b","KEEP_ALIVE":0,"model":"scripted:1b","prompt":"x"}',
            {"model": "scripted:1b", "prompt": "x"},
        ),
        (b'{"model":"chat:8b","model":"scripted:1b"}', {"model": "scripted:1b"}),
        (b'{"mod\\u0065l":"scripted:1b"}', {"model": "scripted:1b"}),
        (b'{"MODEL":"scripted:1b","model":null}', {"model": "scripted:1b"}),
        (b'{"model":"scripted:1b"} {"model":"chat:8b"}', {"model": "scripted:1b"}),
        (b'{"model":"scripted:1b"}garbage\xff', {"model": "scripted:1b"}),
        (b'{"model":"scripted:1b","prompt":"\xff"}', {"model": "scripted:1b", "prompt": "\ufffd"}),
        (
            '{"model":"scripted:1b","me\u017f\u017fages":[{}],"\u212aeep_alive":0}'.encode(),
            {"model": "scripted:1b", "messages": [{}]},
        ),
        (
            b'{"model":"scripted:1b","prompt":"\\ud800"}',
            {"model": "scripted:1b", "prompt": "\ufffd"},
        ),
    ],
)
def test_a_node_reads_the_model_that_was_placed(
    body: bytes, wanted: dict[str, Any], url: str, raw: RawNode
) -> None:
    sent = forwarded(url, raw, body)
    if b"\\u0065" in body or b'"model":"chat:8b","model"' in body:
        # Ollama reads them as we do.
        assert loads(sent) == wanted
    else:
        assert sent == dumps(wanted) or loads(sent) == wanted
    assert len({key.lower() for key in loads(sent)}) == len(loads(sent))


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"model":"scripted:1b"}',
        b"",
        b"   ",
        b"null",
        b"[]",
        b'"scripted:1b"',
        b"{",
        b'{"model":NaN}',
        b"{'model':'scripted:1b'}",
        b'{"model":5}',
        b'{"model":["scripted:1b"]}',
        b'{"model":"scripted:1b"',
        b'{"model":"scripted:1b","options":[]}',
        b'{"model":"scripted:1b","options":{"temperature":"hot"}}',
        b'{"model":"scripted:1b","x":' + b"[" * 100_000,
        b'{"model":"scripted:1b","x":' + b"[" * 3_000 + b"]" * 3_000 + b"} behind",
        b'{"model":"scripted:1b","x":' + b'{"a":' * 3_000 + b"1" + b"}" * 3_000 + b"} behind",
    ],
)
def test_a_body_that_ollama_would_refuse_is_refused_before_a_lease(
    body: bytes, world: World, url: str, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    answer = direct(url, post_bytes("/api/chat", body))
    assert answer.status == 400, answer
    assert loads(answer.body)["error"]
    assert not world.evidence.grants(mark)


def test_a_deep_body_that_ollama_takes_is_taken(url: str, raw: RawNode) -> None:
    deep = b'{"model":"scripted:1b","x":' + b"[" * 900 + b"]" * 900 + b"}"
    assert forwarded(url, raw, deep) == deep


def test_a_number_of_any_size_is_no_mistake(url: str, raw: RawNode) -> None:
    body = b'{"model":"scripted:1b","x":[123456789012345678901234567890,-1e300]}'
    assert forwarded(url, raw, body) == body
    assert loads(forwarded(url, raw, body + b" behind")) == loads(body)


def test_a_role_s_model_is_written_into_the_body(url: str, raw: RawNode) -> None:
    sent = loads(forwarded(url, raw, b'{"stream":true,"model":"aibs/raw","x":{"b":1,"a":2}}'))
    assert list(sent) == ["stream", "model", "x"]
    assert sent["model"] == SCRIPTED
    assert list(sent["x"]) == ["b", "a"]


def test_a_schema_s_members_keep_their_order_in_a_body_that_is_changed(
    url: str, raw: RawNode
) -> None:
    schema = b'{"type":"object","properties":{"zeta":{"type":"string"},"alpha":{"b":1,"a":2}}}'
    for changing in (b'"options":{"num_ctx":1}', b'"keep_alive":0', b'"Stream":true'):
        body = b'{"model":"scripted:1b","prompt":"x","format":' + schema + b"," + changing + b"}"
        sent = forwarded(url, raw, body, "/api/generate")
        assert schema in sent
        assert b"num_ctx" not in sent
        assert b"keep_alive" not in sent


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"scripted:1b","options":{"num_ctx":9},"options":{"seed":1}}',
        b'{"model":"scripted:1b","opt\\u0069ons":{"num_ctx":9},"options":{"seed":1}}',
        b'{"model":"scripted:1b","Options":{"num_ctx":9},"options":{"seed":1}}',
        b'{"model":"scripted:1b","options":{"num_ctx":9,"seed":2},"options":{"seed":1}}x',
    ],
)
def test_an_option_cannot_be_smuggled_in_by_a_second_map_of_options(
    body: bytes, url: str, raw: RawNode
) -> None:
    # Go decodes the second into the first: what one of them alone names, holds.
    sent = forwarded(url, raw, body)
    assert b"num_ctx" not in sent
    assert loads(sent)["options"] == {"seed": 1}


def test_clients_cannot_reload_a_model_or_shorten_its_stay(world: World, url: str) -> None:
    node = world.sim("box-b")

    def ask(path: str, model: str, **members: Any) -> None:
        answer = direct(url, post_bytes(path, dumps({"model": model, "prompt": "x", **members})))
        assert answer.status == 200, answer.body

    ask("/api/generate", "context:8b")
    world.wait_idle()
    before = dict(node.stats.loads)
    for number in range(4):
        options = {"num_ctx": 1024 * (number + 1), "num_batch": 8 * (number + 1), "num_gpu": number}
        for model in ("context:8b", "chat:8b"):
            ask("/api/generate", model, options=options, keep_alive=number)
            ask("/api/generate", model, options=options, keep_alive=f"{number}s")
        # Neither the OpenAI routes nor a client without options asks for another context.
        for model in ("context:8b", "chat:8b"):
            ask("/v1/completions", model)
        ask("/api/generate", "chat:8b")
    for other in ("box-a", "box-b"):
        assert world.sim(other).stats.reloads == 0
        assert world.sim(other).stats.unloads == 0
    assert dict(node.stats.loads) == before
    runner = node.scheduler.runners["registry.ollama.ai/library/context:8b"]
    assert runner.context_length == 8192
    assert runner.keep_alive_ns == 30 * 60 * 10**9
