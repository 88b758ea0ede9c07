"""Requests of the demo, by plain HTTP as any client sends them; what the answers' headers say."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from aibs.errors import AibsError

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_TIMEOUT_S = 20.0
CROWD = 4
"""Requests at once, on fewer slots."""


class RequestFailed(AibsError):
    """The gateway refused a request of the demo."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    name: str
    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of it, as the headers say; milliseconds. `chunks` of a streamed answer."""

    name: str
    path: str
    node_id: str
    lease_id: str
    queue_ms: int
    took_ms: int
    chunks: int


MESSAGES = [{"role": "user", "content": "Are you there?"}]

ONE_BY_ONE = (
    Ask("a chat", "/api/chat", {"model": "qwen3:32b", "messages": MESSAGES, "stream": False}),
    Ask("streamed", "/api/chat", {"model": "qwen3:32b", "messages": MESSAGES}),
    Ask("an embedding", "/api/embed", {"model": "nomic-embed-text", "input": "Are you there?"}),
    Ask("OpenAI's API", "/v1/chat/completions", {"model": "qwen3:32b", "messages": MESSAGES}),
)

AT_ONCE = tuple(
    Ask(
        f"number {number}",
        "/api/chat",
        {"model": "aibs/answer", "messages": MESSAGES, "stream": False},
    )
    for number in range(1, CROWD + 1)
)


async def one_by_one(url: str) -> Sequence[Answered]:
    """Each kind of request, one after the other. Raises RequestFailed."""
    async with _client(url) as client:
        return [await _ask(client, ask) for ask in ONE_BY_ONE]


async def at_once(url: str) -> Sequence[Answered]:
    """More requests for a role than there are slots. Raises RequestFailed."""
    async with _client(url) as client:
        return await asyncio.gather(*(_ask(client, ask) for ask in AT_ONCE))


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=ANSWER_TIMEOUT_S, trust_env=False)


async def _ask(client: httpx.AsyncClient, ask: Ask) -> Answered:
    begun_s = time.monotonic()
    try:
        async with client.stream("POST", ask.path, json=ask.body) as answer:
            chunks = [chunk async for chunk in answer.aiter_bytes() if chunk]
    except httpx.HTTPError as error:
        raise RequestFailed(f"The gateway did not answer {ask.path}: {error!r}.") from error
    if answer.status_code != httpx.codes.OK:
        said = b"".join(chunks).decode("utf-8", "replace")[:300]
        raise RequestFailed(f"The gateway answered {ask.path} with {answer.status_code}: {said}")
    return Answered(
        ask.name,
        ask.path,
        answer.headers["X-AIBS-Node"],
        answer.headers["X-AIBS-Lease"],
        int(answer.headers["X-AIBS-Queue-Ms"]),
        round((time.monotonic() - begun_s) * 1000),
        len(chunks),
    )
