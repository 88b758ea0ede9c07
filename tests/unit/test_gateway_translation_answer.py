"""Answers of native routes as OpenAI's: judged by the official client's own types."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from aibs.codec import dumps_in_order
from aibs.gateway.translation import Unreadable
from tests.native_answers import (
    COUNTS,
    CREATED,
    END,
    call,
    chunks,
    events,
    line,
    stream_of,
    whole_of,
)

# --- chat


def test_a_whole_chat_is_one_that_openai_s_types_accept() -> None:
    message = {"role": "assistant", "content": "yes", "thinking": "hm"}
    told = whole_of(
        {"created_at": CREATED, "message": message, "done": True, "done_reason": "length", **COUNTS}
    )
    found = ChatCompletion.model_validate(told)
    assert told["choices"][0]["message"] == {
        "role": "assistant",
        "content": "yes",
        "reasoning": "hm",
    }
    assert (found.id, found.created, found.model) == (
        "chatcmpl-abcdef012345",
        1_767_225_600,
        "model:1b",
    )
    assert (found.system_fingerprint, found.choices[0].finish_reason) == ("fp_ollama", "length")
    assert found.usage is not None
    assert found.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
    }


def test_calls_of_a_whole_chat_have_ids_indices_and_arguments_in_their_order() -> None:
    message = {"content": "", "tool_calls": [call(id="own"), call("g")]}
    told = whole_of({"message": message, "done": True, "done_reason": "stop"})
    choice = ChatCompletion.model_validate(told).choices[0]
    assert choice.finish_reason == "tool_calls"
    calls = told["choices"][0]["message"]["tool_calls"]
    assert [one["id"] for one in calls] == ["own", "call_abcdef011"]
    assert told["choices"][0]["message"]["content"] == ""
    assert [one["index"] for one in calls] == [0, 1]
    assert calls[0]["function"] == {"name": "f", "arguments": '{"z":1,"a":2}'}


def test_a_stream_is_chunks_with_the_reason_in_the_last_and_done_behind() -> None:
    stream = stream_of()
    text = stream.feed(line("a") + line("b") + END) + stream.close()
    assert text.endswith(b"data: [DONE]\n\n")
    found = chunks(text)
    assert [one.choices[0].delta.content for one in found] == ["a", "b", ""]
    assert [one.choices[0].finish_reason for one in found] == [None, None, "stop"]
    assert {one.choices[0].delta.role for one in found} == {"assistant"}
    assert {(one.id, one.object, one.created) for one in found} == {
        ("chatcmpl-abcdef012345", "chat.completion.chunk", 1_700_000_000)
    }
    assert all(one.usage is None for one in found)
    assert (stream.ending.complete, stream.ending.error) == (True, None)
    assert (stream.ending.input_tokens, stream.ending.output_tokens) == (5, 3)


def test_a_stream_ends_with_its_counts_where_they_are_asked_for() -> None:
    found = chunks(stream_of(stream_options={"include_usage": True}).feed(line("a") + END))
    assert found[-1].choices == []
    assert found[-1].usage is not None
    assert found[-1].usage.total_tokens == 8
    assert [one.usage for one in found[:-1]] == [None, None]


def test_calls_of_a_stream_count_on_and_give_the_reason() -> None:
    lines = [line(message={"tool_calls": [call()]}), line(message={"tool_calls": [call("g")]}), END]
    stream = stream_of()
    found = chunks(b"".join(stream.feed(one) for one in lines))
    calls = [one.choices[0].delta.tool_calls for one in found]
    assert [[one.index for one in some or ()] for some in calls] == [[0], [1], []]
    assert len({one.id for some in calls for one in some or ()}) == 2
    assert found[-1].choices[0].finish_reason == "tool_calls"


def test_what_is_thought_and_said_in_one_line_comes_in_two_chunks() -> None:
    given = line("so", message={"thinking": "hm"}, logprobs=[{"token": "hm", "logprob": -1}])
    told = events(stream_of().feed(given))
    assert [one["choices"][0]["delta"] for one in told] == [
        {"role": "assistant", "content": "", "reasoning": "hm"},
        {"role": "assistant", "content": "so"},
    ]
    assert ["logprobs" in one["choices"][0] for one in told] == [True, False]


def test_logprobs_are_what_openai_s_types_accept() -> None:
    one = {"token": "a", "logprob": -0.5}
    given = [one, {**one, "top_logprobs": [one]}]
    told = whole_of({"message": {"content": "aa"}, "done": True, "logprobs": given})
    content = ChatCompletion.model_validate(told).choices[0].logprobs
    assert content is not None
    assert content.content is not None
    assert [len(token.top_logprobs) for token in content.content] == [0, 1]


def test_an_end_without_a_reason_is_a_stop() -> None:
    assert chunks(stream_of().feed(line(done=True)))[-1].choices[0].finish_reason == "stop"
    assert whole_of({"message": {}, "done": True})["choices"][0]["finish_reason"] == "stop"


# --- completions


def test_completions_are_what_openai_s_types_accept() -> None:
    end = {"response": "b", "done": True, "done_reason": "stop", **COUNTS}
    whole = Completion.model_validate(whole_of(end, "/v1/completions"))
    assert (whole.id, whole.object, whole.choices[0].text) == (
        "cmpl-abcdef012345",
        "text_completion",
        "b",
    )
    lines = dumps_in_order({"response": "a", "done": False}) + b"\n" + dumps_in_order(end) + b"\n"
    stream = stream_of("/v1/completions", stream_options={"include_usage": True})
    told = events(stream.feed(lines) + stream.close())
    assert [one["choices"][0]["text"] for one in told[:2]] == ["a", "b"]
    assert [one["choices"][0]["finish_reason"] for one in told[:2]] == [None, "stop"]
    assert (told[2]["choices"], told[2]["usage"]["total_tokens"]) == ([], 8)
    assert told[3] == "[DONE]"


def test_logprobs_of_a_completion_come_in_its_own_form() -> None:
    top = [{"token": "a", "logprob": -1}, {"token": "b", "logprob": -2}]
    given = [{"token": "ab", "logprob": -1, "top_logprobs": top}, {"token": "c", "logprob": -3}]
    told = whole_of({"response": "abc", "done": True, "logprobs": given}, "/v1/completions")
    Completion.model_validate({**told, "choices": [{**told["choices"][0]}]})
    assert told["choices"][0]["logprobs"] == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-1, -3],
        "top_logprobs": [{"a": -1, "b": -2}, {}],
        "text_offset": [0, 2],
    }


# --- embeddings


def test_embeddings_are_numbers_or_little_endian_floats() -> None:
    document = {"embeddings": [[0.5, -1.0], [2.0, 0.25]], "prompt_eval_count": 4}
    told = whole_of(document, "/v1/embeddings", encoding_format="FLOAT")
    CreateEmbeddingResponse.model_validate(told)
    assert [one["embedding"] for one in told["data"]] == document["embeddings"]
    assert [one["index"] for one in told["data"]] == [0, 1]
    assert told["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    coded = whole_of(document, "/v1/embeddings", encoding_format="BASE64")["data"]
    assert struct.unpack("<2f", base64.b64decode(coded[1]["embedding"])) == (2.0, 0.25)


@pytest.mark.parametrize("document", [{}, {"embeddings": None}, {"embeddings": [["a"]]}])
def test_an_answer_without_embeddings_is_not_taken_for_one(document: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        whole_of(document, "/v1/embeddings", encoding_format="base64")
