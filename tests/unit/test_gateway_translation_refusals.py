"""What of OpenAI's requests a node cannot do: refused by its name."""

from __future__ import annotations

from typing import Any, Final

import pytest

from aibs.gateway.bodies import BadBody
from aibs.gateway.translation import native_request

CHAT: Final = "/v1/chat/completions"
HI: Final = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": []}]}, "messages"),
        (CHAT, {"messages": ["hi"]}, "messages[0]"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": 1, "content": "a"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0]",
        ),
        (
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (CHAT, {"messages": HI, "max_tokens": 1.5}, "max_tokens"),
        (CHAT, {"messages": HI, "max_tokens": True}, "max_tokens"),
        (CHAT, {"messages": HI, "temperature": "hot"}, "temperature"),
        (CHAT, {"messages": HI, "stop": [1]}, "stop"),
        (CHAT, {"messages": HI, "stream": "yes"}, "stream"),
        (CHAT, {"messages": HI, "tools": {}}, "tools"),
        (CHAT, {"messages": HI, "stream_options": 1}, "stream_options"),
        (CHAT, {"messages": HI, "reasoning_effort": "extreme"}, "effort"),
        ("/v1/completions", {"prompt": [1, 2]}, "prompt"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt"),
        ("/v1/completions", {"prompt": "a", "suffix": 1}, "suffix"),
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": [[1, 2]]}, "input"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/responses", {}, "input"),
        ("/v1/responses", {"input": "", "instructions": "a"}, "input"),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type"),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
        ),
        ("/v1/responses", {"input": "a", "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {"input": "a", "conversation": "c"}, "conversation"),
        ("/v1/responses", {"input": "a", "prompt": {"id": "p"}}, "prompt"),
        ("/v1/responses", {"input": "a", "background": True}, "background"),
        ("/v1/responses", {"input": "a", "include": ["file_search_call.results"]}, "include"),
        ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ("/v1/responses", {"input": "a", "tool_choice": "required"}, "tool_choice"),
        ("/v1/responses", {"input": "a", "top_logprobs": 2}, "top_logprobs"),
        ("/v1/responses", {"input": "a", "text": {"format": {"type": "x"}}}, "text.format"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_its_name(
    path: str, body: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadBody) as refused:
        native_request(path, body)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        None,
        "http://a.example/a.png",
        "data:image/gif;base64,AAAA",
        "data:image/png;base64,A*AAA",
        "file:///a.png",
    ],
)
def test_an_image_that_is_not_in_the_request_is_refused(url: str | None) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(BadBody, match=r"messages\[0\]\.content\[0\]"):
        native_request(CHAT, {"messages": [{"role": "user", "content": [part]}]})


def test_an_image_by_url_is_refused_with_what_to_send_instead() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://a.example/a.png"}}
    with pytest.raises(BadBody, match="send the image itself"):
        native_request(CHAT, {"messages": [{"role": "user", "content": [part]}]})
