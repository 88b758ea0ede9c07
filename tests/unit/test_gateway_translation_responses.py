"""Responses: their items, their events, and what the official client's types say of them."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from aibs.gateway.translation import Unreadable, native_request
from aibs.gateway.translation.stream import LINE_MAX
from tests.native_answers import (
    COUNTS,
    CREATED,
    END,
    call,
    events,
    line,
    stream_of,
    whole_of,
)


def test_a_whole_response_is_one_that_openai_s_types_accept() -> None:
    tool: Any = {"type": "function", "name": "f", "parameters": {}, "strict": None}
    message = {"content": "yes", "thinking": "hm", "tool_calls": [call(id="c1")]}
    told = whole_of(
        {"created_at": CREATED, "message": message, "done": True, **COUNTS},
        "/v1/responses",
        instructions="Be brief.",
        tools=[tool],
        reasoning={"effort": "low"},
    )
    found = Response.model_validate(told)
    assert [one.type for one in found.output] == ["reasoning", "message", "function_call"]
    assert (found.status, found.output_text, found.instructions) == (
        "completed",
        "yes",
        "Be brief.",
    )
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens) == (5, 3)
    assert told["output"][2] == {
        "id": "fc_abcdef012345_2",
        "type": "function_call",
        "status": "completed",
        "call_id": "c1",
        "name": "f",
        "arguments": '{"z":1,"a":2}',
    }


def test_calls_of_a_response_are_told_apart_and_need_no_message() -> None:
    message = {"content": "", "tool_calls": [call(), call("g")]}
    told = whole_of({"message": message, "done": True}, "/v1/responses")["output"]
    assert [one["type"] for one in told] == ["function_call", "function_call"]
    assert len({one["call_id"] for one in told}) == 2
    stream = stream_of("/v1/responses")
    lines = [line(message={"tool_calls": [one]}) for one in message["tool_calls"]]
    last = events(b"".join(stream.feed(one) for one in [*lines, END]))[-1]
    assert len({one["call_id"] for one in last["response"]["output"]}) == 2


def test_what_was_thought_comes_back_with_the_next_request() -> None:
    message = {"content": "yes", "thinking": "hm"}
    output = whole_of({"message": message, "done": True}, "/v1/responses")["output"]
    again = native_request("/v1/responses", {"input": output}).fields["messages"]
    assert again == [{"role": "assistant", "content": "yes", "thinking": "hm"}]
    assert output[0]["encrypted_content"] == "hm"


def test_an_empty_response_has_a_message() -> None:
    told = whole_of({"message": {"content": ""}, "done": True}, "/v1/responses")
    assert [one["type"] for one in told["output"]] == ["message"]
    assert Response.model_validate(told).output_text == ""


def test_the_events_of_a_response_follow_one_another_and_the_last_has_it_all() -> None:
    lines = [
        line(message={"thinking": "h"}),
        line(message={"thinking": "m"}),
        line("a"),
        line("b"),
        line(message={"tool_calls": [call()]}),
        END,
    ]
    stream = stream_of("/v1/responses")
    told = events(b"".join(stream.feed(one) for one in lines) + stream.close())
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    assert [one["type"].removeprefix("response.") for one in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    done = [one["item"] for one in told if one["type"] == "response.output_item.done"]
    assert told[-1]["response"]["output"] == done
    places = [one["output_index"] for one in told if "output_index" in one]
    assert (places, sorted(set(places))) == (sorted(places), [0, 1, 2])
    assert Response.model_validate(told[-1]["response"]).output_text == "ab"
    assert told[5]["text"] == "hm"


def test_the_last_item_is_closed_before_the_response() -> None:
    told = events(stream_of("/v1/responses").feed(line("a") + END))
    assert [one["type"] for one in told[-2:]] == ["response.output_item.done", "response.completed"]
    assert told[-1]["response"]["output"] == [told[-2]["item"]]


def test_a_response_that_ran_out_of_tokens_is_incomplete() -> None:
    stream = stream_of("/v1/responses")
    told = events(stream.feed(line("a") + line(done=True, done_reason="length")))
    assert told[-1]["type"] == "response.incomplete"
    assert told[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert stream.ending.complete


def test_a_response_that_must_be_repeated_does_not_grow_for_ever() -> None:
    stream = stream_of("/v1/responses")
    part = line("x" * (1 << 20))
    for _ in range(LINE_MAX // (1 << 20)):
        stream.feed(part)
    with pytest.raises(Unreadable, match="characters"):
        stream.feed(line("x"))
