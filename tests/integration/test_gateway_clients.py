"""The official clients, unchanged, against a real gateway: what they get is what Ollama gives."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import ollama
import openai
import pytest

from aibs.codec import dumps, loads
from tests.gateway_world import Play, World, chunked, head, ndjson, until
from tests.gateway_world.plain import ANSWER, CHAT, EMBED, SCRIPTED, plain_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.gateway_world import RawNode

HI: list[dict[str, str]] = [{"role": "user", "content": "hi"}]
SAY_HI: Any = HI
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        # Members whose order is not the alphabet's: a model answers in this order.
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "day": {"type": "string"}},
            "required": ["town"],
        },
    },
}
CALLED = {"function": {"name": "weather", "arguments": {"town": "Oslo", "day": "today"}}}
LINES = [
    {"model": SCRIPTED, "message": {"role": "assistant", "content": f"word{i}"}, "done": False}
    for i in range(3)
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, valkey_url: str) -> Iterator[World]:
    with plain_world(tmp_path_factory.mktemp("clients"), valkey_url) as world:
        yield world


def held(*pieces: bytes, content_type: str) -> Play:
    """An answer that begins and does not end."""
    start = head(content_type=content_type, transfer_encoding="chunked")
    return Play((start, *chunked(pieces, end=False)), then="hold")


def json_play(document: Any) -> Play:
    """A whole answer."""
    body = dumps(document)
    return Play((head(content_type="application/json", content_length=str(len(body))), body))


def assert_left(world: World, raw: RawNode, mark: int) -> None:
    """The node saw that its client left, and the lease ended as cancelled, within a second."""
    assert raw.calls[-1].gone.wait(1)
    until(lambda: world.evidence.active() == 0, "no lease", 1)
    assert world.evidence.outcomes(mark) == {"cancelled": 1}


# --- the client of Ollama


def test_ollama_chat_whole_and_streamed(native: ollama.Client) -> None:
    whole = native.chat(CHAT, messages=HI)
    assert (whole.message.content, whole.done, whole.done_reason) == (ANSWER, True, "stop")
    parts = list(native.chat(CHAT, messages=HI, stream=True))
    assert "".join(part.message.content or "" for part in parts) == ANSWER
    assert [part.done for part in parts] == [False] * 8 + [True]
    assert parts[-1].eval_count == 8


def test_ollama_generate_whole_and_streamed(native: ollama.Client) -> None:
    assert native.generate(CHAT, prompt="hi").response == ANSWER
    parts = list(native.generate(CHAT, prompt="hi", stream=True, options={"num_predict": 2}))
    assert "".join(part.response or "" for part in parts) == "token1 token2"
    assert parts[-1].done_reason == "length"


def test_ollama_embeds_one_text_and_several(native: ollama.Client) -> None:
    several = native.embed(EMBED, input=["one", "two"]).embeddings
    assert len(several) == 2
    assert native.embed(EMBED, input="one").embeddings == [several[0]]
    assert native.embeddings(EMBED, prompt="two").embedding == several[1]


def test_ollama_tools_arrive_in_their_order_and_calls_come_back(
    native: ollama.Client, raw: RawNode
) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [CALLED]}
    raw.plays(json_play({"model": SCRIPTED, "message": message, "done": True}))
    answer = native.chat(SCRIPTED, messages=HI, tools=[TOOL])
    assert answer.message.tool_calls is not None
    assert answer.message.tool_calls[0].function.arguments == {"town": "Oslo", "day": "today"}
    sent = loads(raw.calls[-1].body)["tools"][0]["function"]
    assert list(sent["parameters"]["properties"]) == ["town", "day"]


def test_ollama_errors_keep_their_type_status_and_words(
    native: ollama.Client, http: httpx.Client
) -> None:
    with pytest.raises(ollama.ResponseError, match="'nobody' not found") as missing:
        native.chat("nobody", messages=HI)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="nobody"):
        list(native.generate("nobody", prompt="x", stream=True))
    with pytest.raises(ollama.ResponseError, match="does not support chat") as wrong:
        native.chat(EMBED, messages=HI)
    assert wrong.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="num_predict must be a number") as option:
        native.chat(CHAT, messages=HI, options={"num_predict": "many"})
    assert option.value.status_code == 400
    body = http.post("/api/chat", content=b'{"model":').json()
    assert "not JSON" in body["error"]
    assert http.post("/api/chat", content=b"").json()["error"] == "missing request body"
    assert http.post("/api/chat", json={"messages": HI}).json()["error"] == "model is required"
    unknown = http.post("/api/chat", json={"model": "nobody"}).json()
    assert unknown["reason"] == "unknown_model"
    assert unknown["retry_after_ms"] is None


def test_ollama_hears_of_a_failure_in_mid_stream(native: ollama.Client, raw: RawNode) -> None:
    start = head(content_type="application/x-ndjson", transfer_encoding="chunked")
    raw.plays(Play((start, *chunked([ndjson(*LINES)], end=False)), then="reset"))
    stream = iter(native.chat(SCRIPTED, messages=HI, stream=True))
    assert [next(stream).message.content for _ in range(3)] == ["word0", "word1", "word2"]
    with pytest.raises(ollama.ResponseError, match="box-raw ended early"):
        next(stream)


def test_ollama_that_stops_reading_a_stream_frees_the_node(
    world: World, native: ollama.Client, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    raw.plays(held(ndjson(*LINES), content_type="application/x-ndjson"))
    stream: Any = native.chat(SCRIPTED, messages=HI, stream=True)
    assert next(stream).message.content == "word0"
    stream.close()
    assert_left(world, raw, mark)


def test_ollama_lists_the_roster_and_its_roles(native: ollama.Client, http: httpx.Client) -> None:
    names = {model.model for model in native.list().models}
    roles = {f"aibs/{role}:latest" for role in ("answer", "semantic", "context", "raw")}
    assert names == {CHAT, "embed:latest", "context:8b", SCRIPTED} | roles
    resident = {(one["node"], one["name"]) for one in http.get("/api/ps").json()["models"]}
    assert {("box-a", CHAT), ("box-b", CHAT), ("box-a", "embed:latest")} <= resident
    assert {model.name for model in native.ps().models} >= {CHAT, "embed:latest"}
    assert http.get("/api/version").json() == {"version": "0.32.15"}
    assert http.get("/").text == "Ollama is running"
    assert http.head("/").status_code == 200


def test_ollama_shows_a_model_by_name_and_by_role(native: ollama.Client) -> None:
    shown = native.show(CHAT)
    assert shown.details is not None
    assert shown.capabilities is not None
    assert "completion" in shown.capabilities
    assert native.show("aibs/answer").capabilities == shown.capabilities
    with pytest.raises(ollama.ResponseError, match="nobody") as missing:
        native.show("nobody")
    assert missing.value.status_code == 404


def test_ollama_unload_is_acknowledged_and_the_model_stays(
    world: World, native: ollama.Client
) -> None:
    mark = world.evidence.mark()
    answer = native.generate(CHAT, keep_alive=0)
    assert (answer.done, answer.done_reason, answer.response) == (True, "unload", "")
    assert native.chat(CHAT, messages=[], keep_alive="0s").done_reason == "unload"
    assert native.generate(CHAT, prompt="hi", keep_alive=0).response == ANSWER
    for node_id in ("box-a", "box-b"):
        assert CHAT in world.sim(node_id).resident
    assert len(world.evidence.grants(mark)) == 1


def test_ollama_load_only_answers_as_a_load(native: ollama.Client) -> None:
    answer = native.generate(CHAT)
    assert (answer.done, answer.done_reason, answer.response) == (True, "load", "")


def test_model_management_is_refused_with_a_sentence(
    native: ollama.Client, http: httpx.Client
) -> None:
    asked: list[Any] = [
        lambda: native.pull(CHAT),
        lambda: native.push(CHAT),
        lambda: native.delete(CHAT),
        lambda: native.copy(CHAT, "other"),
        lambda: native.create("other", from_=CHAT),
        lambda: list(native.pull(CHAT, stream=True)),
    ]
    for ask in asked:
        with pytest.raises(ollama.ResponseError, match="is not served: models are managed") as told:
            ask()
        assert told.value.status_code == 403
    assert http.head("/api/blobs/sha256:12").status_code == 403
    assert http.post("/api/blobs/sha256:12", content=b"x").status_code == 403


# --- the client of OpenAI


def test_openai_chat_whole_and_streamed(compatible: openai.OpenAI) -> None:
    whole = compatible.chat.completions.create(model=CHAT, messages=SAY_HI)
    assert whole.choices[0].message.content == ANSWER
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8
    stream = compatible.chat.completions.create(
        model=CHAT, messages=SAY_HI, stream=True, stream_options={"include_usage": True}
    )
    parts = list(stream)
    said = [part.choices[0].delta.content or "" for part in parts if part.choices]
    assert "".join(said) == ANSWER
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == 8


def test_openai_completions_whole_and_streamed(compatible: openai.OpenAI) -> None:
    whole = compatible.completions.create(model=CHAT, prompt="hi")
    assert whole.choices[0].text == ANSWER
    parts = compatible.completions.create(model=CHAT, prompt="hi", stream=True, max_tokens=2)
    assert "".join(part.choices[0].text for part in parts) == "token1 token2"


def test_openai_embeddings(compatible: openai.OpenAI, native: ollama.Client) -> None:
    found = compatible.embeddings.create(model=EMBED, input=["one", "two"], encoding_format="float")
    wanted = native.embed(EMBED, input=["one", "two"]).embeddings
    assert [one.embedding for one in found.data] == wanted


def response_of(status: str) -> dict[str, Any]:
    """A document of /v1/responses."""
    text = {"type": "output_text", "text": "hello", "annotations": []}
    message = {"type": "message", "id": "m1", "role": "assistant", "status": "completed"}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": SCRIPTED,
        "output": [{**message, "content": [text]}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 4,
        },
    }


def test_openai_responses_whole_and_streamed(
    world: World, compatible: openai.OpenAI, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    raw.plays(json_play(response_of("completed")))
    assert compatible.responses.create(model=SCRIPTED, input="hi").output_text == "hello"
    assert raw.calls[-1].target == "/v1/responses"
    delta: dict[str, Any] = {
        "type": "response.output_text.delta",
        "delta": "hello",
        "item_id": "m1",
        "output_index": 0,
        "content_index": 0,
        "sequence_number": 1,
        "logprobs": [],
    }
    done: dict[str, Any] = {"type": "response.completed", "response": response_of("completed")}
    events = [
        b"event: %s\ndata: %s\n\n" % (str(document["type"]).encode(), dumps(document))
        for document in (delta, {**done, "sequence_number": 2})
    ]
    start = head(content_type="text/event-stream", transfer_encoding="chunked")
    raw.plays(Play((start, *chunked(events))))
    stream = compatible.responses.create(model=SCRIPTED, input="hi", stream=True)
    kinds = [event.type for event in stream]
    assert kinds == ["response.output_text.delta", "response.completed"]
    world.wait_idle()
    assert world.evidence.outcomes(mark) == {"completed": 2}


def test_openai_tools_arrive_and_calls_come_back(compatible: openai.OpenAI, raw: RawNode) -> None:
    function = {"name": "weather", "arguments": '{"town":"Oslo"}'}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    raw.plays(
        json_play(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 1,
                "model": SCRIPTED,
                "choices": [choice],
            }
        )
    )
    tools: Any = [TOOL]
    answer = compatible.chat.completions.create(model=SCRIPTED, messages=SAY_HI, tools=tools)
    called: Any = answer.choices[0].message.tool_calls
    assert called[0].function.arguments == '{"town":"Oslo"}'
    assert loads(raw.calls[-1].body)["tools"] == [TOOL]


def test_openai_errors_keep_their_type_status_and_words(compatible: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'nobody' not found") as missing:
        compatible.chat.completions.create(model="nobody", messages=SAY_HI)
    assert missing.value.code == "unknown_model"
    assert missing.value.type == "not_found_error"
    with pytest.raises(openai.BadRequestError, match="does not support chat"):
        compatible.chat.completions.create(model=EMBED, messages=SAY_HI)
    with pytest.raises(openai.BadRequestError, match="too short"):
        compatible.chat.completions.create(model=CHAT, messages=[])
    with pytest.raises(openai.BadRequestError, match="model is required"):
        compatible.chat.completions.create(model="", messages=SAY_HI)


def test_openai_hears_of_a_failure_in_mid_stream(compatible: openai.OpenAI, raw: RawNode) -> None:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": SCRIPTED}
    choice = {"index": 0, "delta": {"content": "word0"}, "finish_reason": None}
    event = b"data: " + dumps({**chunk, "choices": [choice]}) + b"\n\n"
    start = head(content_type="text/event-stream", transfer_encoding="chunked")
    raw.plays(Play((start, *chunked([event], end=False)), then="reset"))
    stream = compatible.chat.completions.create(model=SCRIPTED, messages=SAY_HI, stream=True)
    events = iter(stream)
    assert next(events).choices[0].delta.content == "word0"
    with pytest.raises(openai.APIError, match="box-raw ended early") as told:
        next(events)
    assert told.value.code == "node_unhealthy"


def test_openai_that_closes_a_stream_frees_the_node(
    world: World, compatible: openai.OpenAI, raw: RawNode
) -> None:
    mark = world.evidence.mark()
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": SCRIPTED}
    choice = {"index": 0, "delta": {"content": "word0"}, "finish_reason": None}
    event = b"data: " + dumps({**chunk, "choices": [choice]}) + b"\n\n"
    raw.plays(held(event, content_type="text/event-stream"))
    stream = compatible.chat.completions.create(model=SCRIPTED, messages=SAY_HI, stream=True)
    assert next(iter(stream)).choices[0].delta.content == "word0"
    stream.close()
    assert_left(world, raw, mark)


def test_openai_models_are_listed_and_retrieved(compatible: openai.OpenAI) -> None:
    names = {model.id for model in compatible.models.list()}
    assert {CHAT, "embed:latest", "aibs/answer:latest"} <= names
    assert compatible.models.retrieve(CHAT).id == CHAT
    assert compatible.models.retrieve("embed").id == "embed:latest"
    assert compatible.models.retrieve("aibs/answer").id == "aibs/answer:latest"
    with pytest.raises(openai.NotFoundError):
        compatible.models.retrieve("nobody")


# --- what a client may say, and what it is told


def test_a_role_is_asked_for_by_name_and_by_header(
    world: World, native: ollama.Client, http: httpx.Client, compatible: openai.OpenAI
) -> None:
    mark = world.evidence.mark()
    assert native.chat("aibs/answer", messages=HI).message.content == ANSWER
    assert native.chat("AIBS/answer:latest", messages=HI).model == CHAT
    headers = {"X-AIBS-Role": "answer"}
    assert http.post("/api/generate", json={"prompt": "hi"}, headers=headers).status_code == 200
    named = {"model": CHAT, "prompt": "hi", "stream": False}
    assert http.post("/api/generate", json=named, headers=headers).json()["response"] == ANSWER
    whole = compatible.chat.completions.create(model="aibs/answer", messages=SAY_HI)
    assert whole.choices[0].message.content == ANSWER
    roles = [(lease["role"], lease["model"]) for lease in world.evidence.grants(mark)]
    assert roles == [("answer", CHAT)] * 5
    wrong = http.post("/api/generate", json=named, headers={"X-AIBS-Role": "semantic"})
    assert (wrong.status_code, wrong.json()["reason"]) == (404, "unknown_model")
    assert http.post("/api/chat", json={"model": "aibs/nobody"}).status_code == 404


def test_priority_and_wait_are_asked_for_by_header(world: World, http: httpx.Client) -> None:
    mark = world.evidence.mark()
    body = {"model": CHAT, "prompt": "hi", "stream": False}
    for word in ("high", "low", "", "Normal"):
        answer = http.post("/api/generate", json=body, headers={"X-AIBS-Priority": word})
        assert answer.status_code == 200, answer.text
    classes = [lease["class"] for lease in world.evidence.grants(mark)]
    assert classes == ["high", "low", "normal", "normal"]
    for header in ({"X-AIBS-Priority": "urgent"}, {"X-AIBS-Wait": "-1"}, {"X-AIBS-Wait": "soon"}):
        refused = http.post("/api/generate", json=body, headers=header)
        assert refused.status_code == 400
        assert next(iter(header)) in refused.json()["error"]


def test_answers_say_where_they_were_made(world: World, http: httpx.Client) -> None:
    body = {"model": CHAT, "messages": HI}
    for path in ("/api/chat", "/v1/chat/completions"):
        mark = world.evidence.mark()
        answer = http.post(path, json=body)
        lease = world.evidence.grants(mark)[0]
        assert answer.headers["x-aibs-lease"] == lease["lease_id"]
        assert answer.headers["x-aibs-node"] == lease["node_id"]
        assert answer.headers["x-aibs-request"] == lease["request_id"]
        assert int(answer.headers["x-aibs-queue-ms"]) >= 0


def test_names_are_taken_as_ollama_takes_them(http: httpx.Client) -> None:
    for name in ("CHAT:8B", "library/chat:8b", "registry.ollama.ai/library/chat:8b", " chat:8b "):
        answer = http.post("/api/generate", json={"model": name, "prompt": "x", "stream": False})
        assert answer.status_code == 200, (name, answer.text)
    for name, status in (("chat:8b-cloud", 404), ("chat:8b:cloud", 404), ("a/b/c/d", 400)):
        answer = http.post("/api/generate", json={"model": name, "prompt": "x"})
        assert answer.status_code == status, (name, answer.text)


def test_wrong_methods_and_paths_are_told_in_the_client_s_format(http: httpx.Client) -> None:
    wrong = http.get("/api/chat")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert "POST" in wrong.json()["error"]
    assert http.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert http.get("/api/nothing").status_code == 404
    coded = http.post("/api/chat", content=b"x", headers={"Content-Encoding": "gzip"})
    assert coded.status_code == 415


# --- curl


def curl(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["curl", "--silent", "--show-error", "--max-time", "20", *arguments, url]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_streams_errors_and_lists(url: str) -> None:
    body = '{"model": "chat:8b", "prompt": "hi"}'
    done = curl(f"{url}/api/generate", "--no-buffer", "--data", body)
    assert done.returncode == 0, done.stderr
    lines = [loads(line) for line in done.stdout.splitlines()]
    assert "".join(line["response"] for line in lines) == ANSWER
    # curl labels it as a form; Ollama minds no label.
    sse = curl(
        f"{url}/v1/chat/completions",
        *("--data", '{"model":"chat:8b","stream":true,"messages":[{"role":"user","content":"x"}]}'),
    )
    assert sse.stdout.endswith("data: [DONE]\n\n")
    failed = curl(f"{url}/api/generate", "--fail-with-body", "--data", '{"model":"nobody"}')
    assert failed.returncode == 22
    assert "nobody" in loads(failed.stdout)["error"]
    expecting = curl(f"{url}/api/generate", "--header", "Expect: 100-continue", "--data", body)
    assert expecting.returncode == 0
    old = curl(f"{url}/api/generate", "--http1.0", "--data", body)
    assert old.stdout.count('"done":true') == 1
    assert loads(curl(f"{url}/api/version").stdout) == {"version": "0.32.15"}
