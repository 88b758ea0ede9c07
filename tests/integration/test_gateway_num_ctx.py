"""OpenAI's clients and a model with a context of its own: it is loaded once, whoever asks how."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any, Final

import httpx
import openai
import pytest

from aibs.codec import dumps_in_order, loads
from aibs.ollama.sim import SimModel
from tests.gateway_world import GB, Box, Play, World, chunked, head, ndjson, until
from tests.gateway_world.plain import ANSWER

if TYPE_CHECKING:
    from collections.abc import Iterator

    import ollama

    from tests.gateway_world import RawNode

OWN: Final = "own:8b"
OTHER: Final = "other:8b"
OWN_EMBED: Final = "own-embed"
OTHER_EMBED: Final = "other-embed"
SCRIPTED: Final = "scripted:1b"
SPARE: Final = "spare:1b"
"""On two nodes: resident on a scripted one, and not loaded on the other."""

NUM_CTX: Final = 8192
HI: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "day": {"type": "string"}},
        },
    },
}


def worker(model: str, kind: str = "chat", **more: Any) -> dict[str, Any]:
    """A worker of the roster, with a role of its model's name."""
    name = model.partition(":")[0]
    return {
        "worker_id": name,
        "model": model,
        "roles": [name],
        "kind": kind,
        "resident_weight_gb": 1,
        "active_parameter_billions": 1,
        **more,
    }


CONTEXT: Final[dict[str, Any]] = {"num_ctx": NUM_CTX, "keep_alive": "30m"}
ROSTER: Final = (
    worker(OWN, **CONTEXT),
    worker(OTHER),
    worker(OWN_EMBED, "embedding", num_ctx=512),
    worker(OTHER_EMBED, "embedding"),
    worker(SCRIPTED, **CONTEXT),
    worker(SPARE, num_ctx=NUM_CTX, keep_alive=0),
)
EMBEDS: Final[dict[str, Any]] = {"kind": "embedding", "max_context": 2048}
AFFINITY: Final = {name: ["box-a"] for name in ("own", "other", "own-embed", "other-embed")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, valkey_url: str) -> Iterator[World]:
    boxes = (
        Box(
            "box-a",
            (
                SimModel(OWN, GB),
                SimModel(OTHER, GB),
                SimModel(OWN_EMBED, GB, **EMBEDS),
                SimModel(OTHER_EMBED, GB, **EMBEDS),
                SimModel(SPARE, GB),
            ),
        ),
        Box("box-raw", (SimModel(SCRIPTED, GB),), scripted=True),
        Box("box-bad", (SimModel(SPARE, GB),), scripted=True),
    )
    directory = tmp_path_factory.mktemp("num_ctx")
    affinity = {**AFFINITY, "scripted": ["box-raw"], "spare": ["box-bad", "box-a"]}
    settings = {"API_TRIP_AFTER_FAILURES": "1000"}
    with World(directory, valkey_url, boxes, ROSTER, affinity=affinity, settings=settings) as world:
        yield world


def piece(text: str, **more: Any) -> dict[str, Any]:
    """A line of /api/chat."""
    message = {"role": "assistant", "content": text}
    return {"model": SCRIPTED, "message": message, "done": False, **more}


END: Final = piece("", done=True, done_reason="stop", prompt_eval_count=5, eval_count=3)


def streamed(*documents: dict[str, Any], end: bool = True, **play: Any) -> Play:
    """A stream of /api/chat, a chunk a line."""
    start = head(content_type="application/x-ndjson", transfer_encoding="chunked")
    return Play((start, *chunked([ndjson(one) for one in documents], end=end)), **play)


def whole(document: Any, status: str = "200 OK") -> Play:
    """An answer in one piece."""
    body = dumps_in_order(document)
    length = str(len(body))
    return Play((head(status, content_type="application/json", content_length=length), body))


def answers(raw: RawNode, mark: int = 0) -> list[Any]:
    """The bodies that the scripted node was asked with, but for loads of the gateway's own."""
    found = [loads(call.body) for call in raw.calls[mark:]]
    return [body for body in found if body.get("messages") or body.get("prompt")]


# --- the reason for all this


def test_a_model_with_a_context_is_loaded_once_however_it_is_asked(
    world: World, native: ollama.Client, compatible: openai.OpenAI, http: httpx.Client
) -> None:
    node = world.sim("box-a")
    before = node.stats.reloads
    for number in range(20):
        if number % 2:
            assert native.chat(OWN, messages=HI).message.content == ANSWER
        elif number % 4:
            answer = compatible.chat.completions.create(model=OWN, messages=HI)
            assert answer.choices[0].message.content == ANSWER
        else:
            assert compatible.completions.create(model=OWN, prompt="hi").choices[0].text == ANSWER
    assert node.stats.loads[OWN] == 1
    assert node.stats.reloads == before
    resident = httpx.get(f"{world.url_of('box-a')}/api/ps").json()["models"]
    assert {one["name"]: one["context_length"] for one in resident}[OWN] == NUM_CTX


def test_an_embedding_model_with_a_context_is_loaded_once_however_it_is_asked(
    world: World, native: ollama.Client, compatible: openai.OpenAI
) -> None:
    for _ in range(3):
        compatible.embeddings.create(model=OWN_EMBED, input="one", encoding_format="float")
        native.embed(OWN_EMBED, input="one")
    assert world.sim("box-a").stats.loads[f"{OWN_EMBED}:latest"] == 1


# --- the same request with and without a context of its own has the same form


def shape(value: Any) -> Any:
    """The keys of a document and the types of its members."""
    if isinstance(value, dict):
        return {key: shape(member) for key, member in sorted(value.items())}
    if isinstance(value, list):
        return [shape(member) for member in value]
    return type(value).__name__


def events(text: str) -> list[Any]:
    """What a stream says."""
    found = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [one if one == "[DONE]" else loads(one) for one in found]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 2}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/completions", {"prompt": ""}),
    ],
)
def test_a_translated_answer_has_the_form_of_a_forwarded_one(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    own, other = (http.post(path, json={"model": model, **body}) for model in (OWN, OTHER))
    assert own.status_code == other.status_code == 200, own.text
    assert shape(own.json()) == shape(other.json())
    ours, theirs = own.json(), other.json()
    for document in (ours, theirs):
        del document["id"], document["created"], document["model"]
    assert ours == theirs
    assert own.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True}}])
def test_a_translated_stream_has_the_form_of_a_forwarded_one(
    http: httpx.Client, path: str, more: dict[str, Any]
) -> None:
    asked = {"messages": HI, "prompt": "hi", "stream": True, **more}
    own, other = (http.post(path, json={"model": model, **asked}) for model in (OWN, OTHER))
    assert own.headers["content-type"] == other.headers["content-type"] == "text/event-stream"
    assert shape(events(own.text)) == shape(events(other.text))
    assert events(own.text)[-1] == "[DONE]"


def test_translated_embeddings_are_those_of_the_node(
    http: httpx.Client, compatible: openai.OpenAI, native: ollama.Client
) -> None:
    body = {"input": ["one", "two"]}
    own, other = (
        http.post("/v1/embeddings", json={"model": model, **body}).json()
        for model in (OWN_EMBED, OTHER_EMBED)
    )
    assert shape(own) == shape(other)
    assert [one["embedding"] for one in own["data"]] == [one["embedding"] for one in other["data"]]
    wanted = native.embed(OWN_EMBED, input=["one", "two"]).embeddings
    # Without a word of it, the client asks for base64 and reads it.
    read = compatible.embeddings.create(model=OWN_EMBED, input=["one", "two"]).data
    for one, vector in zip(read, wanted, strict=True):
        assert one.embedding == pytest.approx(vector, rel=1e-6)
    coded = http.post(
        "/v1/embeddings", json={"model": OWN_EMBED, "input": "one", "encoding_format": "base64"}
    ).json()
    assert len(base64.b64decode(coded["data"][0]["embedding"])) == 4 * len(wanted[0])


# --- the official client


def test_a_chat_is_answered_whole_and_streamed(compatible: openai.OpenAI) -> None:
    answer = compatible.chat.completions.create(model=OWN, messages=HI)
    assert answer.choices[0].message.content == ANSWER
    assert (answer.choices[0].finish_reason, answer.model) == ("stop", OWN)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    parts = list(
        compatible.chat.completions.create(
            model=OWN,
            messages=HI,
            stream=True,
            max_tokens=3,
            stream_options={"include_usage": True},
        )
    )
    said = [part.choices[0].delta.content or "" for part in parts if part.choices]
    assert "".join(said) == "token1 token2 token3"
    assert [part.choices[0].finish_reason for part in parts if part.choices][-1] == "length"
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == 3


def test_a_completion_is_answered_whole_and_streamed(compatible: openai.OpenAI) -> None:
    assert compatible.completions.create(model=OWN, prompt="hi").choices[0].text == ANSWER
    parts = compatible.completions.create(model=OWN, prompt="hi", stream=True, max_tokens=2)
    assert "".join(part.choices[0].text for part in parts) == "token1 token2"


def test_a_role_finds_the_model_and_the_node_gets_its_name(
    compatible: openai.OpenAI, raw: RawNode
) -> None:
    raw.plays(whole(END))
    answer = compatible.chat.completions.create(model="aibs/scripted", messages=HI)
    assert answer.model == SCRIPTED
    assert answers(raw)[-1]["model"] == SCRIPTED


def test_tools_and_options_reach_the_node_with_the_worker_s_context(
    compatible: openai.OpenAI, raw: RawNode
) -> None:
    call = {"function": {"name": "weather", "arguments": {"town": "Oslo", "day": "today"}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    raw.plays(whole({**END, "message": message}))
    answer = compatible.chat.completions.create(
        model=SCRIPTED,
        messages=HI,
        tools=[TOOL],
        seed=7,
        stop="END",
        extra_body={"num_ctx": 99, "options": {"num_ctx": 99}, "keep_alive": 0},
    )
    called: Any = answer.choices[0].message.tool_calls
    assert called[0].function.name == "weather"
    assert called[0].function.arguments == '{"town":"Oslo","day":"today"}'
    assert answer.choices[0].finish_reason == "tool_calls"
    assert raw.calls[-1].target == "/api/chat"
    sent = loads(raw.calls[-1].body)
    assert list(sent["tools"][0]["function"]["parameters"]["properties"]) == ["town", "day"]
    assert sent["options"] == {
        "stop": ["END"],
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 7,
        "num_ctx": NUM_CTX,
    }
    assert sent["keep_alive"] == "30m"
    assert sent["stream"] is False
    assert set(sent) == {"model", "messages", "stream", "options", "tools", "keep_alive"}


# --- responses


def test_a_response_is_answered_whole_and_streamed(compatible: openai.OpenAI) -> None:
    answer = compatible.responses.create(model=OWN, input="hi", instructions="Be brief.")
    assert (answer.output_text, answer.status, answer.instructions) == (
        ANSWER,
        "completed",
        "Be brief.",
    )
    assert answer.usage is not None
    assert answer.usage.output_tokens == 8
    events = list(compatible.responses.create(model=OWN, input=HI, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[4:-4] == ["response.output_text.delta"] * 8
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == ANSWER


def test_the_client_s_own_reader_of_responses_puts_the_events_together(
    compatible: openai.OpenAI, raw: RawNode
) -> None:
    call = {"id": "call_7", "function": {"name": "weather", "arguments": {"town": "Oslo"}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    thought = {"role": "assistant", "content": "", "thinking": "so"}
    lines = [piece("", message=thought), piece("I "), piece("look"), piece("", message=message)]
    raw.plays(streamed(*lines, END))
    with compatible.responses.stream(model=SCRIPTED, input="hi") as stream:
        for _ in stream:
            pass
        found = stream.get_final_response()
    assert [item.type for item in found.output] == ["reasoning", "message", "function_call"]
    assert found.output_text == "I look"
    called: Any = found.output[-1]
    assert (called.call_id, called.arguments) == ("call_7", '{"town":"Oslo"}')


def test_a_response_that_is_cut_says_so(compatible: openai.OpenAI) -> None:
    answer = compatible.responses.create(model=OWN, input="hi", max_output_tokens=2)
    assert (answer.status, answer.output_text) == ("incomplete", "token1 token2")
    stream = compatible.responses.create(model=OWN, input="hi", max_output_tokens=2, stream=True)
    assert [event.type for event in stream][-1] == "response.incomplete"


def test_a_response_that_fails_in_mid_stream_is_told(
    world: World, compatible: openai.OpenAI, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    for last in ([{"error": "the runner stopped"}], []):
        raw.plays(streamed(piece("a"), *last))
        with pytest.raises(openai.APIError, match=r"the runner stopped|without its end"):
            list(compatible.responses.create(model=SCRIPTED, input="hi", stream=True))
    world.wait_idle()
    assert world.evidence.outcomes(mark) == {"failed": 2}


# --- streams


def test_each_line_of_the_node_is_an_event_at_once_and_the_last_is_the_end(
    world: World, compatible: openai.OpenAI, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    documents = [piece(f"word{number}") for number in range(3)]
    raw.plays(streamed(*documents, END, paced=True))
    got: list[str] = []

    def read() -> None:
        for part in compatible.chat.completions.create(model=SCRIPTED, messages=HI, stream=True):
            got.append(part.choices[0].delta.content or "")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    raw.permit(1)
    for number in range(3):
        raw.permit(1)
        until(lambda wanted=number: len(got) == wanted + 1, "the event of a line")  # type: ignore[misc]
    raw.permit(1)
    until(lambda: len(got) == 4, "the event of the last line")
    # The client leaves when it reads [DONE]: that it hears with the end of the node's answer.
    raw.permit(1)
    reader.join(20)
    assert got == ["word0", "word1", "word2", ""]
    world.wait_idle()
    assert world.evidence.outcomes(mark) == {"completed": 1}


def test_lines_of_a_megabyte_and_lines_cut_anywhere_are_read(
    compatible: openai.OpenAI, raw: RawNode
) -> None:
    long = "ä" * (1 << 19)
    text = ndjson(piece(long), piece("b"), END)
    step = 70_001
    pieces = [text[place : place + step] for place in range(0, len(text), step)]
    start = head(content_type="application/x-ndjson", transfer_encoding="chunked")
    raw.plays(Play((start, *chunked(pieces))))
    parts = list(compatible.chat.completions.create(model=SCRIPTED, messages=HI, stream=True))
    assert [part.choices[0].delta.content for part in parts] == [long, "b", ""]


def test_tokens_are_counted_though_no_usage_is_asked_for(
    compatible: openai.OpenAI, http: httpx.Client, raw: RawNode
) -> None:
    def counted() -> dict[str, float]:
        lines = http.get("/metrics").text.splitlines()
        return {
            direction: float(line.rsplit(" ", 1)[1])
            for line in lines
            for direction in ("input", "output")
            if "tokens_total{" in line and SCRIPTED in line and f'"{direction}"' in line
        }

    before = counted()
    raw.plays(streamed(piece("a"), END))
    list(compatible.chat.completions.create(model=SCRIPTED, messages=HI, stream=True))
    raw.plays(whole(END))
    compatible.chat.completions.create(model=SCRIPTED, messages=HI)

    def grown() -> tuple[float, ...]:
        now = counted()
        return tuple(now.get(one, 0) - before.get(one, 0) for one in ("input", "output"))

    # What is scraped may be a second old.
    until(lambda: grown() == (10, 6), lambda: f"10 and 6 tokens, but {grown()}")


# --- failures


def test_an_error_of_the_node_in_mid_stream_is_told_and_no_done_follows(
    world: World, compatible: openai.OpenAI, http: httpx.Client, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    raw.plays(streamed(piece("a"), {"error": "the runner stopped"}))
    stream = iter(compatible.chat.completions.create(model=SCRIPTED, messages=HI, stream=True))
    assert next(stream).choices[0].delta.content == "a"
    with pytest.raises(openai.APIError, match="the runner stopped"):
        next(stream)
    body = {"model": SCRIPTED, "messages": HI, "stream": True}
    text = http.post("/v1/chat/completions", json=body).text
    assert "[DONE]" not in text
    assert events(text)[-1]["error"]["message"] == "the runner stopped"
    world.wait_idle()
    assert world.evidence.outcomes(mark) == {"failed": 2}


def test_a_stream_without_its_end_is_told_and_fails(
    world: World, compatible: openai.OpenAI, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    for play in (
        streamed(piece("a")),
        streamed(piece("a"), end=False, then="reset"),
        streamed(piece("a"), {"no": "end"}),
    ):
        raw.plays(play)
        stream = iter(compatible.chat.completions.create(model=SCRIPTED, messages=HI, stream=True))
        assert next(stream).choices[0].delta.content == "a"
        with pytest.raises(openai.APIError, match="ended"):
            list(stream)
    world.wait_idle()
    assert world.evidence.outcomes(mark) == {"failed": 3}


def test_a_node_that_breaks_behind_its_last_word_takes_nothing_from_a_translated_stream(
    world: World, http: httpx.Client, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    raw.plays(streamed(piece("a"), END, end=False, then="reset"))
    asked = {"model": SCRIPTED, "messages": HI, "stream": True}
    text = http.post("/v1/chat/completions", json=asked).text
    *said, end = events(text)
    assert end == "[DONE]"
    assert not any("error" in one for one in said)
    world.wait_idle()
    assert world.evidence.outcomes(mark) == {"completed": 1}


def test_a_stream_that_is_no_json_is_told_and_fails(
    world: World, compatible: openai.OpenAI, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    start = head(content_type="application/x-ndjson", transfer_encoding="chunked")
    raw.plays(Play((start, *chunked([ndjson(piece("a")) + b"<html>\n"]))))
    stream = iter(compatible.chat.completions.create(model=SCRIPTED, messages=HI, stream=True))
    assert next(stream).choices[0].delta.content == "a"
    with pytest.raises(openai.APIError, match="not JSON"):
        list(stream)
    world.wait_idle()
    assert world.evidence.outcomes(mark) == {"failed": 1}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("play", "status", "words"),
    [
        (whole({"error": "no tools here"}, "400 Bad Request"), 400, "no tools here"),
        (whole({"error": "model 'x' not found"}, "404 Not Found"), 503, "ollama pull"),
        (whole({"error": "out of memory"}, "500 Internal Server Error"), 500, "out of memory"),
        (streamed({"error": "failed at once"}), 500, "failed at once"),
        (whole({"error": "failed at once"}), 500, "failed at once"),
        (streamed(), 502, "box-raw"),
        (
            Play(
                (head("404 Not Found", content_type="text/plain", content_length="8"), b"no route")
            ),
            404,
            "no route",
        ),
    ],
)
def test_errors_of_the_node_come_in_openai_s_form(
    http: httpx.Client, raw: RawNode, play: Play, status: int, words: str, stream: bool
) -> None:
    raw.plays(play)
    body = {"model": SCRIPTED, "messages": HI, "stream": stream}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": HI, "stop": 1}, "stop"),
        ("/v1/chat/completions", {"messages": HI, "max_tokens": "2"}, "max_tokens"),
        ("/v1/completions", {"prompt": [1, 2]}, "prompt"),
        ("/v1/embeddings", {"input": [1, 2]}, "input"),
        ("/v1/responses", {"input": "hi", "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {"input": "hi", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_what_cannot_be_carried_is_refused_before_a_node_or_a_lease(
    world: World, http: httpx.Client, raw: RawNode, path: str, body: dict[str, Any], field: str
) -> None:
    mark = world.evidence.mark()
    refused = http.post(path, json={"model": SCRIPTED, **body})
    assert refused.status_code == 400
    assert field in refused.json()["error"]["message"]
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert raw.calls == []
    assert world.evidence.grants(mark) == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "play",
    [
        streamed({"error": "failed at once"}),
        streamed(),
        whole({"error": "out of memory"}, "500 Internal Server Error"),
        Play((head(content_type="application/json", content_length="6"), b"<html>")),
    ],
)
def test_a_node_that_fails_before_it_said_anything_is_passed_over(
    world: World, http: httpx.Client, play: Play, stream: bool
) -> None:
    answer, nodes = spare(world, http, play, stream=stream)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-aibs-node"] == "box-a"
    assert "token8" in answer.text
    assert nodes == ["box-bad", "box-a"]


def test_a_node_without_the_route_is_told_and_one_without_the_model_is_passed_over(
    world: World, http: httpx.Client
) -> None:
    plain = Play(
        (head("404 Not Found", content_type="text/plain", content_length="8"), b"no route")
    )
    answer, nodes = spare(world, http, plain, stream=False)
    assert (answer.status_code, nodes) == (404, ["box-bad"])
    missing = whole({"error": "model 'spare:1b' not found"}, "404 Not Found")
    answer, nodes = spare(world, http, missing, stream=False)
    # From now on that node is passed over for the model.
    assert (answer.status_code, nodes) == (200, ["box-bad", "box-a"])


def spare(
    world: World, http: httpx.Client, play: Play, *, stream: bool
) -> tuple[httpx.Response, list[str]]:
    """An answer, and the nodes that were tried for it; the scripted one is the first of them."""
    until(lambda: SPARE not in world.sim("box-a").resident, "its unload")
    world.evidence.wait_observed("box-a", world.evidence.now_ms())
    mark = world.evidence.mark()
    world.scripted("box-bad").plays(play)
    body = {"model": SPARE, "messages": HI, "stream": stream}
    answer = http.post("/v1/chat/completions", json=body)
    return answer, [lease["node_id"] for lease in world.evidence.grants(mark)]


def test_a_client_that_leaves_in_mid_stream_frees_the_node(
    world: World, compatible: openai.OpenAI, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    raw.plays(streamed(piece("a"), end=False, then="hold"))
    stream = compatible.chat.completions.create(model=SCRIPTED, messages=HI, stream=True)
    assert next(iter(stream)).choices[0].delta.content == "a"
    stream.close()
    assert raw.calls[-1].gone.wait(1)
    until(lambda: world.evidence.active() == 0, "no lease", 1)
    assert world.evidence.outcomes(mark) == {"cancelled": 1}


def test_an_error_of_an_embedding_is_told_in_the_node_s_words(
    http: httpx.Client, raw: RawNode
) -> None:
    raw.plays(whole({"error": "out of memory"}))
    answer = http.post("/v1/embeddings", json={"model": SCRIPTED, "input": "a"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "out of memory")


def test_places_in_the_queue_and_a_translated_stream_are_one_stream(
    http: httpx.Client, raw: RawNode
) -> None:
    raw.plays(streamed(piece("a"), END))
    body = {"model": SCRIPTED, "messages": HI, "stream": True}
    text = http.post("/v1/chat/completions", json=body, headers={"X-AIBS-Queue-Updates": "1"}).text
    assert events(text)[-1] == "[DONE]"
