"""Ollama's own routes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aibs.ollama.sim.body import Body
from aibs.ollama.sim.catalog import require_chat
from aibs.ollama.sim.generation import Ask, Ended, embed, generate, generate_whole
from aibs.ollama.sim.ps_view import YEAR_ONE, details
from aibs.ollama.sim.replies import (
    NDJSON,
    TEXT,
    GenerationFailed,
    Reply,
    RequestError,
    Stream,
    encode,
    json_reply,
    now_text,
    rfc3339_nano,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aibs.ollama.sim.node import SimNode
    from aibs.ollama.sim.replies import Answer, Request
    from aibs.ollama.sim.spec import SimModel

_INSTALLED_AT_NS = 1_767_225_600 * 10**9
TextRoute = Literal["generate", "chat"]


def root(_node: SimNode, _request: Request) -> Reply:
    """GET and HEAD /."""
    return Reply(200, b"Ollama is running", f"{TEXT}; charset=utf-8")


def version(node: SimNode, _request: Request) -> Reply:
    """GET and HEAD /api/version."""
    return json_reply({"version": node.profile.version})


def tags(node: SimNode, _request: Request) -> Reply:
    """GET and HEAD /api/tags: newest first, which are the ones named first."""
    return json_reply(
        {"models": [_tag(node, place, model) for place, model in enumerate(node.spec.models)]}
    )


def _tag(node: SimNode, place: int, model: SimModel) -> dict[str, Any]:
    tag: dict[str, Any] = {
        "name": model.display,
        "model": model.display,
        "modified_at": rfc3339_nano(_INSTALLED_AT_NS - place * 10**9),
        "size": model.size_bytes,
        "digest": model.shown_digest,
        "details": details(model),
    }
    if node.profile.bare_ps:
        tag["expires_at"] = YEAR_ONE
    if node.profile.since(0, 30):
        tag["capabilities"] = _capabilities(model)
        tag["details"]["context_length"] = model.max_context
    return tag


def _capabilities(model: SimModel) -> list[str]:
    return ["embedding"] if model.kind == "embedding" else ["completion", "tools"]


def ps(node: SimNode, _request: Request) -> Reply:
    """GET /api/ps, where nothing holds it up."""
    return node.ps_now()


async def show(node: SimNode, request: Request) -> Reply:
    """POST /api/show."""
    body = Body(request.body)
    model = node.catalog.find(body.text("model") or body.text("name"), "show")
    family = model.shown_family
    info: dict[str, Any] = {
        "general.architecture": family,
        f"{family}.context_length": model.max_context,
        f"{family}.embedding_length": 4096,
    }
    if model.kind == "embedding":
        info[f"{family}.pooling_type"] = 1
    shown: dict[str, Any] = {
        "modelfile": f"FROM {model.display}\n",
        "parameters": f"num_ctx                        {model.num_ctx}" if model.num_ctx else "",
        "template": "{{ .Prompt }}",
        "details": details(model),
        "model_info": info,
        "modified_at": rfc3339_nano(_INSTALLED_AT_NS),
    }
    if node.profile.since(0, 6, 4):
        shown["capabilities"] = _capabilities(model)
    return json_reply(shown)


@dataclass(frozen=True, slots=True)
class _Form:
    """How one of the two text routes writes its answers. `typed` is the name as it was asked."""

    route: TextRoute
    typed: str
    done_reasons: bool

    def piece(self, text: str, **more: Any) -> dict[str, Any]:
        """One object of an answer."""
        said: dict[str, Any] = (
            {"response": text}
            if self.route == "generate"
            else {"message": {"role": "assistant", "content": text}}
        )
        done: dict[str, Any] = {"done": False}
        return {"model": self.typed, "created_at": now_text(), **said, **done, **more}

    def without_generation(self, reason: str) -> Reply:
        """The answer of a load or unload call: one object, streamed or not."""
        done = {"done": True, **({"done_reason": reason} if self.done_reasons else {})}
        return json_reply(self.piece("", **done))

    def end(self, ended: Ended, text: str = "") -> dict[str, Any]:
        """The last object."""
        reason = {"done_reason": ended.reason} if self.done_reasons else {}
        metrics = {
            "total_duration": ended.total_ns,
            "load_duration": ended.load_ns,
            "prompt_eval_count": ended.prompt_count,
            "prompt_eval_duration": ended.prompt_ns,
            "eval_count": ended.eval_count,
            "eval_duration": ended.eval_ns,
        }
        return self.piece(text, done=True, **reason, **{k: v for k, v in metrics.items() if v})


async def generate_route(node: SimNode, request: Request) -> Answer:
    """POST /api/generate: without a prompt a load or unload call."""
    body = Body(request.body)
    return await _text(
        node, body, "generate", len(body.text("prompt").split()), body.text("prompt")
    )


async def chat_route(node: SimNode, request: Request) -> Answer:
    """POST /api/chat: without messages a load or unload call."""
    body = Body(request.body)
    messages = body.objects("messages")
    words = sum(len(str(message.get("content") or "").split()) for message in messages)
    return await _text(node, body, "chat", words, bool(messages))


async def _text(
    node: SimNode, body: Body, route: TextRoute, words: int, has_prompt: object
) -> Answer:
    typed, keep_alive_ns = body.text("model"), body.keep_alive_ns()
    options, streamed = body.options(), body.flag("stream", True)
    model = node.catalog.find(typed, route)
    form = _Form(route, typed, node.profile.since(0, 1, 35))
    if not has_prompt and node.profile.unloads(route, keep_alive_ns):
        node.scheduler.expire(model)
        return form.without_generation("unload")
    require_chat(node.profile, model, typed, route)
    if not has_prompt:
        async with node.scheduler.hold(model, options, keep_alive_ns):
            return form.without_generation("load")
    ask = Ask(model, options, keep_alive_ns, max(1, words))
    if not streamed:
        return await _whole(node, ask, form)
    lines = _lines(node, ask, form)
    try:
        return Stream(NDJSON, await anext(lines), lines)
    except GenerationFailed as error:
        if node.profile.since(0, 12, 6):
            raise RequestError(500, str(error)) from error
        return Reply(200, encode({"error": str(error)}) + b"\n", NDJSON)


async def _whole(node: SimNode, ask: Ask, form: _Form) -> Reply:
    text, ended = await generate_whole(node, ask)
    return json_reply(form.end(ended, text))


async def _lines(node: SimNode, ask: Ask, form: _Form) -> AsyncGenerator[bytes, None]:
    """NDJSON. A failure after the first line is a last line without `done`."""
    begun = False
    async with contextlib.aclosing(generate(node, ask)) as pieces:
        try:
            async for piece in pieces:
                whole = form.end(piece) if isinstance(piece, Ended) else form.piece(piece)
                yield encode(whole) + b"\n"
                begun = True
        except GenerationFailed as error:
            if not begun:
                raise
            yield encode({"error": str(error)}) + b"\n"


async def embed_route(node: SimNode, request: Request) -> Reply:
    """POST /api/embed, which has no unload branch: it loads first, whatever the keep-alive."""
    body = Body(request.body)
    typed, keep_alive_ns, texts = body.text("model"), body.keep_alive_ns(), _inputs(body)
    loads_empty = node.profile.since(0, 3, 6)
    if not loads_empty and "input" not in body:
        raise RequestError(400, "invalid input type")
    model = node.catalog.find(typed, "embed")
    if not texts and not loads_empty:
        return json_reply({"model": typed, "embeddings": []})
    ask = Ask(model, body.options(), keep_alive_ns, len(texts))
    document: dict[str, Any] = {"model": typed, "embeddings": await _vectors(node, ask, texts)}
    if texts:
        document["prompt_eval_count"] = sum(max(1, len(text.split())) for text in texts)
    return json_reply(document)


def _inputs(body: Body) -> list[str]:
    given = body.raw("input")
    if given is None or given == "":
        return []
    items = given if isinstance(given, list) else [given]
    if not all(isinstance(item, str) for item in items):
        raise RequestError(400, "invalid input type")
    return items


async def embeddings_route(node: SimNode, request: Request) -> Reply:
    """POST /api/embeddings, the older form: one text, names matched with their case."""
    body = Body(request.body)
    prompt, keep_alive_ns = body.text("prompt"), body.keep_alive_ns()
    model = node.catalog.find(body.text("model"), "embeddings")
    texts = [prompt] if prompt else []
    vectors = await _vectors(node, Ask(model, body.options(), keep_alive_ns, 1), texts)
    return json_reply({"embedding": vectors[0] if vectors else []})


async def _vectors(node: SimNode, ask: Ask, texts: list[str]) -> list[list[float]]:
    try:
        return await embed(node, ask, texts)
    except GenerationFailed as error:
        raise RequestError(500, str(error)) from error
