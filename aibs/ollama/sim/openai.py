"""The OpenAI routes: no keep-alive, no context length, streams of server-sent events."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aibs.ollama.sim.body import Body
from aibs.ollama.sim.catalog import require_chat
from aibs.ollama.sim.generation import Ask, Ended, embed, generate, generate_whole
from aibs.ollama.sim.replies import (
    SSE,
    GenerationFailed,
    RequestError,
    Stream,
    encode,
    json_reply,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aibs.ollama.sim.node import SimNode
    from aibs.ollama.sim.replies import Answer, Reply, Request

_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class _Form:
    """How one of the two text routes writes its answers."""

    route: Literal["chat", "completion"]
    typed: str
    created_s: int

    def chunk(self, text: str | None, finish: str | None = None) -> dict[str, Any]:
        """One event of a stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        if self.route == "chat":
            choice["delta"] = {"role": "assistant", "content": text or ""}
        else:
            choice["text"] = text or ""
        suffix = ".chunk" if self.route == "chat" else ""
        return self._envelope(suffix, [choice])

    def usage_chunk(self, ended: Ended) -> dict[str, Any]:
        """The event that stream_options.include_usage asks for."""
        suffix = ".chunk" if self.route == "chat" else ""
        return {**self._envelope(suffix, []), "usage": usage(ended)}

    def whole(self, text: str, ended: Ended) -> dict[str, Any]:
        """The answer where it is not streamed."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": ended.reason}
        if self.route == "chat":
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return {**self._envelope("", [choice]), "usage": usage(ended)}

    def _envelope(self, suffix: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chat = self.route == "chat"
        return {
            "id": "chatcmpl-1" if chat else "cmpl-1",
            "object": f"chat.completion{suffix}" if chat else "text_completion",
            "created": self.created_s,
            "model": self.typed,
            "system_fingerprint": "fp_ollama",
            "choices": choices,
        }


def usage(ended: Ended) -> dict[str, int]:
    """Token counts."""
    return {
        "prompt_tokens": ended.prompt_count,
        "completion_tokens": ended.eval_count,
        "total_tokens": ended.prompt_count + ended.eval_count,
    }


def models(node: SimNode, _request: Request) -> Reply:
    """GET /v1/models."""
    data = [
        {"id": model.display, "object": "model", "created": 1_767_225_600, "owned_by": "library"}
        for model in node.spec.models
    ]
    return json_reply({"object": "list", "data": data})


async def chat_completions(node: SimNode, request: Request) -> Answer:
    """POST /v1/chat/completions."""
    body = Body(request.body)
    messages = body.objects("messages")
    if not messages:
        raise RequestError(400, "[] is too short - 'messages'")
    words = sum(len(str(message.get("content") or "").split()) for message in messages)
    return await _text(node, body, "chat", words)


async def completions(node: SimNode, request: Request) -> Answer:
    """POST /v1/completions: with an empty prompt it loads and says nothing."""
    body = Body(request.body)
    prompt = body.raw("prompt")
    text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt or []))
    if text:
        return await _text(node, body, "completion", len(text.split()))
    typed = body.text("model")
    model = node.catalog.find(typed, "generate")
    require_chat(node.profile, model, typed, "generate")
    async with node.scheduler.hold(model, {}, None):
        ended = Ended("load", 0, 0, 0, 0, 0, 0)
        return json_reply(_Form("completion", typed, int(time.time())).whole("", ended))


async def _text(
    node: SimNode, body: Body, route: Literal["chat", "completion"], words: int
) -> Answer:
    typed, streamed = body.text("model"), body.flag("stream", False)
    native_route: Literal["chat", "generate"] = "chat" if route == "chat" else "generate"
    model = node.catalog.find(typed, native_route)
    require_chat(node.profile, model, typed, native_route)
    limit = body.raw("max_tokens")
    options = {"num_predict": limit} if isinstance(limit, int) else {}
    ask = Ask(model, options, None, max(1, words))
    form = _Form(route, typed, int(time.time()))
    if not streamed:
        return await _whole(node, ask, form)
    wanted = body.raw("stream_options")
    events = _events(
        node, ask, form, isinstance(wanted, dict) and bool(wanted.get("include_usage"))
    )
    try:
        return Stream(SSE, await anext(events), events)
    except GenerationFailed as error:
        raise RequestError(500, str(error)) from error


async def _whole(node: SimNode, ask: Ask, form: _Form) -> Reply:
    text, ended = await generate_whole(node, ask)
    return json_reply(form.whole(text, ended))


async def _events(
    node: SimNode, ask: Ask, form: _Form, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Server-sent events. A failure midway is swallowed, as on the real server: an empty event,
    and an end without [DONE].
    """
    begun = False
    async with contextlib.aclosing(generate(node, ask)) as pieces:
        try:
            async for piece in pieces:
                if isinstance(piece, Ended):
                    yield _event(form.chunk(None, piece.reason))
                    if with_usage:
                        yield _event(form.usage_chunk(piece))
                    yield _DONE
                else:
                    yield _event(form.chunk(piece))
                begun = True
        except GenerationFailed:
            if not begun and node.profile.since(0, 12, 6):
                raise
            yield _event(form.chunk(None))


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + encode(document) + b"\n\n"


async def embeddings(node: SimNode, request: Request) -> Reply:
    """POST /v1/embeddings."""
    body = Body(request.body)
    given = body.raw("input")
    texts = [given] if isinstance(given, str) and given else given
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise RequestError(400, "invalid input")
    typed = body.text("model")
    model = node.catalog.find(typed, "embed")
    try:
        vectors = await embed(node, Ask(model, {}, None, len(texts)), texts)
    except GenerationFailed as error:
        raise RequestError(500, str(error)) from error
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    tokens = sum(max(1, len(text.split())) for text in texts)
    return json_reply(
        {
            "object": "list",
            "data": data,
            "model": typed,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )
