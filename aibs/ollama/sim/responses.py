"""/v1/responses: text only, told as named events where it is streamed."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from aibs.ollama.sim.body import Body
from aibs.ollama.sim.catalog import require_chat
from aibs.ollama.sim.generation import Ask, Ended, generate, generate_whole
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
    from aibs.ollama.sim.replies import Answer, Request

MESSAGE_ID = "msg_1"


async def responses(node: SimNode, request: Request) -> Answer:
    """POST /v1/responses."""
    body = Body(request.body)
    typed, limit = body.text("model"), body.raw("max_output_tokens")
    words = len(" ".join(_texts(body.raw("input"))).split())
    model = node.catalog.find(typed, "chat")
    require_chat(node.profile, model, typed, "chat")
    options = {"num_predict": limit} if isinstance(limit, int) else {}
    ask = Ask(model, options, None, max(1, words))
    reply = _Reply(typed)
    if not body.flag("stream", False):
        reply.text, ended = await generate_whole(node, ask)
        return json_reply(reply.ended(ended))
    events = _events(node, ask, reply)
    try:
        return Stream(SSE, await anext(events), events)
    except GenerationFailed as error:
        raise RequestError(500, str(error)) from error


def _texts(given: Any) -> list[str]:
    """What was said, of a text or a list of messages."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise RequestError(400, "json: input must be a string or array")
    said = []
    for item in given:
        content = item.get("content") if isinstance(item, dict) else None
        if isinstance(content, str):
            said.append(content)
        elif isinstance(content, list):
            said += [str(part.get("text") or "") for part in content if isinstance(part, dict)]
    return said


async def _events(node: SimNode, ask: Ask, reply: _Reply) -> AsyncGenerator[bytes, None]:
    """The events of a stream, which ends without a [DONE]; of one that fails, in the middle."""
    begun = False
    async with contextlib.aclosing(generate(node, ask)) as pieces:
        try:
            async for piece in pieces:
                if not begun:
                    begun = True
                    yield reply.begin()
                if isinstance(piece, Ended):
                    yield reply.close(piece)
                else:
                    yield reply.say(piece)
        except GenerationFailed:
            if not begun:
                raise


class _Reply:
    """One response as far as it was told."""

    def __init__(self, typed: str) -> None:
        self.text = ""
        self._typed = typed
        self._created_s = int(time.time())
        self._number = 0

    def begin(self) -> bytes:
        """What is told before the first token."""
        begun = self._document("in_progress", [], None)
        return b"".join(
            (
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
                self._event(
                    "response.output_item.added",
                    output_index=0,
                    item={**self._message("in_progress"), "content": []},
                ),
                self._part("response.content_part.added", part=_part("")),
            )
        )

    def say(self, piece: str) -> bytes:
        """A token."""
        self.text += piece
        return self._part("response.output_text.delta", delta=piece, logprobs=[])

    def close(self, ended: Ended) -> bytes:
        """The text again, and the whole response, which is completed even where it was cut."""
        return b"".join(
            (
                self._part("response.output_text.done", text=self.text, logprobs=[]),
                self._part("response.content_part.done", part=_part(self.text)),
                self._event(
                    "response.output_item.done", output_index=0, item=self._message("completed")
                ),
                self._event("response.completed", response=self.ended(ended)),
            )
        )

    def ended(self, ended: Ended) -> dict[str, Any]:
        """The response as one document."""
        usage = {
            "input_tokens": ended.prompt_count,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": ended.eval_count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": ended.prompt_count + ended.eval_count,
        }
        return self._document("completed", [self._message("completed")], usage)

    def _document(
        self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": self._created_s,
            "status": status,
            "incomplete_details": None,
            "model": self._typed,
            "output": output,
            "error": None,
            "usage": usage,
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
        }

    def _message(self, status: str) -> dict[str, Any]:
        return {
            "id": MESSAGE_ID,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [_part(self.text)],
        }

    def _part(self, kind: str, **members: Any) -> bytes:
        return self._event(kind, item_id=MESSAGE_ID, output_index=0, content_index=0, **members)

    def _event(self, kind: str, **members: Any) -> bytes:
        document = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + encode(document) + b"\n\n"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
