"""Answers of nodes on their native routes, and what the gateway's translation makes of them."""

from __future__ import annotations

from typing import Any, Final

from openai.types.chat import ChatCompletionChunk

from aibs.codec import dumps_in_order, loads
from aibs.gateway.translation import Envelope, NativeStream, native_request

ENVELOPE: Final = Envelope("model:1b", "abcdef012345", 1_700_000_000)
CHAT: Final = "/v1/chat/completions"
HI: Final = [{"role": "user", "content": "hi"}]
COUNTS: Final[dict[str, Any]] = {"prompt_eval_count": 5, "eval_count": 3}
CREATED: Final = "2026-01-01T00:00:00.123456789Z"


def stream_of(path: str = CHAT, **fields: Any) -> NativeStream:
    body = {"messages": HI, "prompt": "hi", "input": "hi", "stream": True, **fields}
    if path != "/v1/completions":
        del body["prompt"]
    return NativeStream(native_request(path, body).answer(ENVELOPE))


def whole_of(document: dict[str, Any], path: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = {"messages": HI, "input": "hi", **fields}
    return native_request(path, body).answer(ENVELOPE).whole(document)


def line(content: str = "", *, message: Any = None, **more: Any) -> bytes:
    message = {"role": "assistant", "content": content, **(message or {})}
    return dumps_in_order({"message": message, "done": False, **more}) + b"\n"


END: Final = line(done=True, done_reason="stop", **COUNTS)


def events(text: bytes) -> list[Any]:
    found = []
    for one in text.decode().split("\n\n"):
        if one:
            data = one.splitlines()[-1].removeprefix("data: ")
            found.append(data if data == "[DONE]" else loads(data))
    return found


def chunks(text: bytes) -> list[ChatCompletionChunk]:
    return [ChatCompletionChunk.model_validate(one) for one in events(text) if one != "[DONE]"]


def call(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {"z": 1, "a": 2}}, **more}
