"""From a request to its answer: who is let in, what is spoiled, and which route it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.ollama.sim import native, openai
from aibs.ollama.sim.access import host_allowed, origin_allowed
from aibs.ollama.sim.control import PREFIX, control
from aibs.ollama.sim.replies import (
    TEXT,
    Reply,
    RequestError,
    method_not_allowed,
    native_error,
    not_found,
    openai_error,
)
from aibs.ollama.sim.responses import responses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from aibs.ollama.sim.node import SimNode
    from aibs.ollama.sim.profile import Profile
    from aibs.ollama.sim.replies import Answer, Request

_READS: dict[str, tuple[Callable[[SimNode, Request], Reply], bool]] = {
    "/": (native.root, True),
    "/api/version": (native.version, True),
    "/api/tags": (native.tags, True),
    "/api/ps": (native.ps, False),
    "/v1/models": (openai.models, False),
}
"""GET routes, and whether HEAD is one too."""

_WRITES: dict[str, Callable[[SimNode, Request], Awaitable[Answer]]] = {
    "/api/show": native.show,
    "/api/generate": native.generate_route,
    "/api/chat": native.chat_route,
    "/api/embed": native.embed_route,
    "/api/embeddings": native.embeddings_route,
    "/v1/chat/completions": openai.chat_completions,
    "/v1/completions": openai.completions,
    "/v1/embeddings": openai.embeddings,
    "/v1/responses": responses,
}
"""POST routes."""

_SINCE = {
    "/api/ps": (0, 1, 38),
    "/v1/models": (0, 2, 0),
    "/v1/completions": (0, 2, 0),
    "/v1/embeddings": (0, 2, 0),
    "/v1/responses": (0, 13, 3),
    "/api/embed": (0, 2, 6),
}


def answer(
    node: SimNode, request: Request, *, on_loopback: bool
) -> Answer | Coroutine[None, None, Answer]:
    """The answer, at once where it needs no waiting.

    `on_loopback`: the server listens there only, and so minds the Host header.
    """
    path = request.path
    if path.startswith(PREFIX):
        return control(node, request)
    node.stats.request(request.method, path)
    spoiled = node.faults.spoil(path)
    if spoiled is not None:
        return spoiled
    if (on_loopback and not host_allowed(request.host)) or not origin_allowed(request.origin):
        return Reply(403, b"", TEXT)
    if not _exists(node.profile, path):
        return not_found()
    read = _READS.get(path)
    if read is not None:
        handler, has_head = read
        if request.method == "GET" or (has_head and request.method == "HEAD"):
            if path == "/api/ps" and node.ps_waits():
                return node.ps_later()
            return handler(node, request)
    elif request.method == "POST":
        return _written(node, request)
    return method_not_allowed() if node.profile.since(0, 7) else not_found()


def _exists(profile: Profile, path: str) -> bool:
    known = path in _READS or path in _WRITES
    return known and profile.since(*_SINCE.get(path, (0, 0, 0)))


async def _written(node: SimNode, request: Request) -> Answer:
    try:
        return await _WRITES[request.path](node, request)
    except RequestError as error:
        return error_reply(request.path, error)


def error_reply(path: str, error: RequestError) -> Reply:
    """The error in the shape of its route."""
    return openai_error(error) if path.startswith("/v1/") else native_error(error)
