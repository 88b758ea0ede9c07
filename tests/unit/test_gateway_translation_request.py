"""Requests of OpenAI's routes as native ones."""

from __future__ import annotations

import base64
from typing import Any, Final

import pytest

from aibs.codec import dumps_in_order
from aibs.gateway.translation import native_request

CHAT: Final = "/v1/chat/completions"
HI: Final = [{"role": "user", "content": "hi"}]
PIXEL: Final = base64.b64encode(b"\x89PNG").decode()
DEFAULTS: Final = {"temperature": 1.0, "top_p": 1.0}


def chat(**fields: Any) -> dict[str, Any]:
    return native_request(CHAT, {"messages": HI, **fields}).fields


def completion(**fields: Any) -> dict[str, Any]:
    return native_request("/v1/completions", {"prompt": "hi", **fields}).fields


def responses(**fields: Any) -> dict[str, Any]:
    return native_request("/v1/responses", {"input": "hi", **fields}).fields


@pytest.mark.parametrize(
    ("path", "body", "native"),
    [
        (CHAT, {"messages": HI}, "/api/chat"),
        ("/v1/completions", {}, "/api/generate"),
        ("/v1/embeddings", {"input": "a"}, "/api/embed"),
        ("/v1/responses", {"input": "a"}, "/api/chat"),
    ],
)
def test_each_route_has_its_native_one(path: str, body: dict[str, Any], native: str) -> None:
    request = native_request(path, body)
    assert (request.path, request.streams) == (native, False)
    assert native_request(path, {**body, "stream": True}).streams is (native != "/api/embed")


# --- options


def test_a_chat_that_says_nothing_has_openai_s_defaults_and_no_more() -> None:
    assert chat() == {"messages": HI, "stream": False, "options": DEFAULTS}
    nothing = dict.fromkeys(
        (
            *("temperature", "top_p", "stop", "seed", "max_tokens", "tools", "response_format"),
            *("reasoning", "reasoning_effort", "logprobs", "top_logprobs", "stream_options"),
            *("frequency_penalty", "presence_penalty", "stream"),
        )
    )
    assert chat(**nothing) == chat()


def test_options_that_are_said_are_carried_and_zero_is_said() -> None:
    asked = chat(
        temperature=0,
        top_p=0,
        seed=0,
        max_tokens=5,
        stop="END",
        frequency_penalty=0,
        presence_penalty=-0.5,
    )
    assert asked["options"] == {
        "temperature": 0,
        "top_p": 0,
        "seed": 0,
        "num_predict": 5,
        "stop": ["END"],
        "frequency_penalty": 0,
        "presence_penalty": -0.5,
    }
    assert chat(stop=["a", "b"])["options"]["stop"] == ["a", "b"]


def test_the_newer_name_of_the_limit_goes_before_the_older_one() -> None:
    assert chat(max_completion_tokens=3, max_tokens=9)["options"]["num_predict"] == 3


def test_what_would_load_a_model_otherwise_is_not_carried() -> None:
    asked = chat(num_ctx=9, options={"num_ctx": 9, "num_gpu": 0}, keep_alive=0, shift=False)
    assert asked == chat()


def test_a_completion_has_the_defaults_of_its_own_route() -> None:
    assert completion() == {
        "prompt": "hi",
        "stream": False,
        "options": {**DEFAULTS, "frequency_penalty": 0, "presence_penalty": 0},
    }
    assert completion(top_p=0)["options"]["top_p"] == 1.0
    asked = completion(suffix="end", logprobs=2, prompt=["hi"])
    assert (asked["suffix"], asked["logprobs"], asked["top_logprobs"]) == ("end", True, 2)
    assert asked["prompt"] == "hi"
    assert "logprobs" not in completion(logprobs=0)


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "low"),
        ({"reasoning": {"Effort": "max"}}, "max"),
    ],
)
def test_effort_decides_whether_a_model_thinks(fields: dict[str, Any], think: Any) -> None:
    assert chat(**fields)["think"] == think


def test_a_schema_keeps_the_order_of_its_members() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    wanted = {"type": "JSON_Schema", "json_schema": {"name": "n", "schema": schema}}
    assert dumps_in_order(chat(response_format=wanted)["format"]) == dumps_in_order(schema)
    assert chat(response_format={"type": "json_object"})["format"] == "json"
    assert "format" not in chat(response_format={"type": "text"})
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    assert dumps_in_order(responses(text=form)["format"]) == dumps_in_order(schema)
    assert responses(text={"format": {"type": "json_object"}})["format"] == "json"


def test_tools_and_logprobs_are_carried() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}
    asked = chat(tools=[tool], logprobs=True, top_logprobs=4)
    assert dumps_in_order(asked["tools"]) == dumps_in_order([tool])
    assert (asked["logprobs"], asked["top_logprobs"]) == (True, 4)


# --- messages


def test_parts_become_a_message_each_and_images_are_bare_base64() -> None:
    parts = [
        {"type": "text", "text": "what"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": f"data:;base64,{PIXEL[:4]}\r\n{PIXEL[4:]}"},
    ]
    assert chat(messages=[{"role": "user", "content": parts}])["messages"] == [
        {"role": "user", "content": "what"},
        {"role": "user", "content": "", "images": [PIXEL]},
        {"role": "user", "content": "", "images": [PIXEL]},
    ]


def test_calls_and_their_results_find_each_other() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"z":1,"a":2}'},
    }
    given = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sun"}]},
        {"role": "tool", "tool_call_id": "c9", "name": "own", "content": "?"},
    ]
    found = chat(messages=given)["messages"]
    assert found[1] == {
        "role": "assistant",
        "content": "",
        "thinking": "hm",
        "tool_calls": [
            {"id": "c1", "function": {"name": "weather", "arguments": {"z": 1, "a": 2}}}
        ],
    }
    assert list(found[1]["tool_calls"][0]["function"]["arguments"]) == ["z", "a"]
    of_call = {"role": "tool", "tool_name": "weather", "tool_call_id": "c1"}
    assert found[2:4] == [{**of_call, "content": "rain"}, {**of_call, "content": "sun"}]
    assert found[4]["tool_name"] == "own"


def test_the_last_call_of_an_id_names_its_result() -> None:
    calls = [{"id": "c1", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    given = [*({"role": "assistant", "tool_calls": [call]} for call in calls)]
    result = {"role": "tool", "tool_call_id": "c1", "content": "x"}
    assert chat(messages=[*given, result])["messages"][-1]["tool_name"] == "g"


def test_keys_of_messages_are_read_in_any_case() -> None:
    assert chat(messages=[{"Role": "user", "CONTENT": "hi"}])["messages"] == HI


# --- embeddings


def test_inputs_of_embeddings_are_texts() -> None:
    def asked(**fields: Any) -> dict[str, Any]:
        return native_request("/v1/embeddings", fields).fields

    assert asked(input="a") == {"input": ["a"]}
    assert asked(input="") == {"input": [""]}
    assert asked(input=["a", "b"], dimensions=3) == {"input": ["a", "b"], "dimensions": 3}


# --- responses


def test_a_response_s_input_becomes_a_conversation() -> None:
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "encrypted_content": "hm", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "let me "},
                {"type": "output_text", "text": "look"},
            ],
        },
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"t":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "and here"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
            ],
        },
    ]
    assert responses(input=items, instructions="Be brief.")["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "let me look",
            "thinking": "hm",
            "tool_calls": [{"id": "c1", "function": {"name": "weather", "arguments": {"t": 1}}}],
        },
        {"role": "tool", "content": "rain", "tool_call_id": "c1", "tool_name": "weather"},
        {"role": "user", "content": "and here", "images": [PIXEL]},
    ]


def test_what_was_thought_last_is_carried_though_nothing_was_said() -> None:
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    ]
    assert responses(input=items)["messages"][1:] == [
        {"role": "assistant", "content": "", "thinking": "hm"}
    ]


def test_calls_at_once_belong_to_one_message() -> None:
    calls = [
        {"type": "function_call", "call_id": one, "name": one, "arguments": ""} for one in "ab"
    ]
    messages = responses(input=[{"role": "user", "content": "hi"}, *calls])["messages"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["a", "b"]
    assert len(messages) == 2


def test_a_response_s_options_and_tools_are_carried() -> None:
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"z": {}, "a": {}}}
    asked = responses(
        max_output_tokens=5, tools=[tool], reasoning={"effort": "low"}, top_p=0.5, stream=True
    )
    assert asked == {
        "messages": HI,
        "stream": True,
        "options": {"temperature": 1.0, "top_p": 0.5, "num_predict": 5},
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"z": {}, "a": {}}},
            }
        ],
        "think": "low",
    }
    assert "tools" not in responses(tools=[tool], tool_choice="none")
    assert "top_p" not in responses()["options"]


def test_what_changes_nothing_of_a_response_is_taken() -> None:
    assert (
        responses(
            include=["reasoning.encrypted_content"],
            store=True,
            parallel_tool_calls=False,
            tool_choice="auto",
            background=False,
            previous_response_id=None,
            metadata={"a": "b"},
        )
        == responses()
    )
