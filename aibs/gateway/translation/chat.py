"""/v1/chat/completions by /api/chat."""

from __future__ import annotations

from typing import Any

from aibs.codec import dumps_in_order
from aibs.gateway.translation.fields import flag, integer, items, record
from aibs.gateway.translation.messages import native_messages
from aibs.gateway.translation.options import chat_options, effort_of, format_of, think_of
from aibs.gateway.translation.stream import (
    DONE,
    Envelope,
    created_of,
    error_event,
    event,
    reason_of,
    said,
    usage_of,
)


def chat_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The native request, but for its model. Raises BadBody."""
    found: dict[str, Any] = {
        "messages": native_messages(fields.get("messages")),
        "stream": flag(fields, "stream"),
        "options": chat_options(fields),
    }
    tools = items(fields, "tools")
    if tools:
        found["tools"] = tools
    form = format_of(record(fields, "response_format"))
    if form is not None:
        found["format"] = form
    think = think_of(effort_of(fields))
    if think is not None:
        found["think"] = think
    if flag(fields, "logprobs"):
        found["logprobs"] = True
    top = integer(fields, "top_logprobs")
    if top:
        found["top_logprobs"] = top
    return found


def wants_usage(fields: dict[str, Any]) -> bool:
    """Whether a stream ends with its counts. Raises BadBody."""
    options = record(fields, "stream_options")
    return options is not None and flag(options, "include_usage")


class ChatAnswer:
    """One answer."""

    end = DONE

    def __init__(self, envelope: Envelope, *, with_usage: bool) -> None:
        self._envelope = envelope
        self._with_usage = with_usage
        self._calls = 0

    def whole(self, document: dict[str, Any]) -> dict[str, Any]:
        """As one document."""
        message = message_of(document)
        told: dict[str, Any] = {
            "role": said(message, "role") or "assistant",
            "content": said(message, "content"),
        }
        thinking, calls = said(message, "thinking"), self._tool_calls(message)
        if thinking:
            told["reasoning"] = thinking
        if calls:
            told["tool_calls"] = calls
        reason = "tool_calls" if calls else reason_of(document, document.get("done") is True)
        choice = {"index": 0, "message": told, "finish_reason": reason, **_logprobs(document)}
        created_s = created_of(document, self._envelope)
        base = self._document("chat.completion", created_s, [choice])
        return {**base, "usage": usage_of(document)}

    def events(self, document: dict[str, Any], ended: bool) -> bytes:
        """A chunk for each object; two where it thinks and says in one."""
        message = message_of(document)
        content, thinking = said(message, "content"), said(message, "thinking")
        calls = self._tool_calls(message)
        reason = reason_of(document, ended)
        if reason is not None and self._calls:
            reason = "tool_calls"
        found = b""
        logprobs = _logprobs(document)
        if thinking and (content or calls):
            found = self._chunk({"content": "", "reasoning": thinking}, None, logprobs)
            thinking, logprobs = "", {}
        delta: dict[str, Any] = {"content": content}
        if thinking:
            delta["reasoning"] = thinking
        if calls:
            delta["tool_calls"] = calls
        found += self._chunk(delta, reason, logprobs)
        if ended and self._with_usage:
            chunk = self._document("chat.completion.chunk", self._envelope.created_s, [])
            found += event({**chunk, "usage": usage_of(document)})
        return found

    def failed(self, sentence: str, reason: str | None) -> bytes:
        """An event with an error, which every client of OpenAI's raises."""
        return error_event(sentence, reason)

    def _chunk(self, delta: dict[str, Any], reason: str | None, logprobs: dict[str, Any]) -> bytes:
        choice = {
            "index": 0,
            "delta": {"role": "assistant", **delta},
            "finish_reason": reason,
            **logprobs,
        }
        created_s = self._envelope.created_s
        return event(self._document("chat.completion.chunk", created_s, [choice]))

    def _document(self, kind: str, created_s: int, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._envelope.token}",
            "object": kind,
            "created": created_s,
            "model": self._envelope.model,
            "system_fingerprint": "fp_ollama",
            "choices": choices,
        }

    def _tool_calls(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        found = openai_calls(message, self._envelope, self._calls)
        self._calls += len(found)
        return found


def message_of(document: dict[str, Any]) -> dict[str, Any]:
    """The message of a native object."""
    message = document.get("message")
    return message if isinstance(message, dict) else {}


def openai_calls(message: dict[str, Any], envelope: Envelope, before: int) -> list[dict[str, Any]]:
    """The calls of a native message; each is whole, so their indices count up, whatever a release
    says. `before`: how many there were. Releases before 0.13 give them no id.
    """
    given = message.get("tool_calls")
    found = []
    for place, call in enumerate(given if isinstance(given, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        index = before + place
        arguments = function.get("arguments")
        found.append(
            {
                "id": said(call, "id") or f"call_{envelope.token[:8]}{index}",
                "index": index,
                "type": "function",
                "function": {
                    "name": said(function, "name"),
                    "arguments": dumps_in_order({} if arguments is None else arguments).decode(),
                },
            }
        )
    return found


def _logprobs(document: dict[str, Any]) -> dict[str, Any]:
    given = document.get("logprobs")
    if not isinstance(given, list) or not given:
        return {}
    # Ollama leaves out an empty list, which OpenAI's clients require.
    content = [{"top_logprobs": [], **one} for one in given if isinstance(one, dict)]
    return {"logprobs": {"content": content}}
