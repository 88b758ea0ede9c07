"""The answer of /api/chat as one of /v1/responses."""

from __future__ import annotations

from typing import Any

from aibs.codec import dumps_in_order
from aibs.gateway.replies import error_document
from aibs.gateway.translation.chat import message_of, openai_calls
from aibs.gateway.translation.fields import record
from aibs.gateway.translation.output import Output, Told
from aibs.gateway.translation.stream import Envelope, count, created_of, reason_of, said


class ResponsesAnswer:
    """One answer. `fields` are the request's, which the answer repeats."""

    end = b""

    def __init__(self, envelope: Envelope, fields: dict[str, Any]) -> None:
        self._envelope = envelope
        self._asked = repeated(fields)
        self._output = Output(envelope.token)
        self._number = 0
        self._calls = 0

    def whole(self, document: dict[str, Any]) -> dict[str, Any]:
        """As one document."""
        message = message_of(document)
        self._take(message)
        if not self._calls and not said(message, "content"):
            # A response has a message or calls, though it be empty.
            self._output.say("")
        self._output.close()
        created_s = created_of(document, self._envelope)
        return {**self._ended(document), "created_at": created_s}

    def events(self, document: dict[str, Any], ended: bool) -> bytes:
        """What an object adds, and at the end all of it again."""
        told: Told = []
        if not self._number:
            begun = self._response("in_progress", [])
            told += [
                (f"response.{kind}", {"response": begun}) for kind in ("created", "in_progress")
            ]
        told += self._take(message_of(document))
        if ended:
            told += self._output.close()
            response = self._ended(document)
            told.append((f"response.{response['status']}", {"response": response}))
        return b"".join(self._event(kind, members) for kind, members in told)

    def failed(self, sentence: str, reason: str | None) -> bytes:
        """An event with an error, which every client of OpenAI's raises."""
        return self._event("error", error_document("/v1/", sentence, reason, 500))

    def _take(self, message: dict[str, Any]) -> Told:
        told: Told = []
        thinking, content = said(message, "thinking"), said(message, "content")
        if thinking:
            told += self._output.think(thinking)
        if content:
            told += self._output.say(content)
        for call in openai_calls(message, self._envelope, self._calls):
            self._calls += 1
            told += self._output.call(call)
        return told

    def _ended(self, document: dict[str, Any]) -> dict[str, Any]:
        cut = reason_of(document, True) == "length"
        response = self._response("incomplete" if cut else "completed", self._output.items)
        given, made = count(document, "prompt_eval_count"), count(document, "eval_count")
        response["usage"] = {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + made,
        }
        if cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = created_of(document, self._envelope)
        return response

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"resp_{self._envelope.token}",
            "object": "response",
            "created_at": self._envelope.created_s,
            "completed_at": None,
            "status": status,
            "incomplete_details": None,
            "model": self._envelope.model,
            "output": list(output),
            "error": None,
            "usage": None,
            **self._asked,
        }

    def _event(self, kind: str, members: dict[str, Any]) -> bytes:
        document = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + dumps_in_order(document) + b"\n\n"


def repeated(fields: dict[str, Any]) -> dict[str, Any]:
    """What a response says of its request; the rest as Ollama says it, which knows no other."""
    reasoning = record(fields, "reasoning") or {}
    text = record(fields, "text") or {}
    effort, summary = reasoning.get("effort"), reasoning.get("summary")
    temperature, top_p = fields.get("temperature"), fields.get("top_p")
    return {
        "previous_response_id": None,
        "instructions": fields.get("instructions") or None,
        "tools": [
            {"description": None, "strict": None, "parameters": None, **tool}
            for tool in fields.get("tools") or ()
        ],
        "tool_choice": fields.get("tool_choice") or "auto",
        "truncation": fields.get("truncation") or "disabled",
        "parallel_tool_calls": True,
        "text": {"format": text.get("format") or {"type": "text"}},
        "top_p": 1.0 if top_p is None else top_p,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_logprobs": 0,
        "temperature": 1.0 if temperature is None else temperature,
        "reasoning": {"effort": effort, "summary": summary} if effort or summary else None,
        "max_output_tokens": fields.get("max_output_tokens"),
        "max_tool_calls": None,
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    }
