"""/v1/completions by /api/generate. An empty prompt loads the model, as on Ollama's own route."""

from __future__ import annotations

from typing import Any

from aibs.gateway.bodies import BadBody
from aibs.gateway.translation.fields import flag, integer, text
from aibs.gateway.translation.options import completion_options
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


def completion_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The native request, but for its model. Raises BadBody."""
    found: dict[str, Any] = {
        "prompt": _prompt(fields.get("prompt")),
        "stream": flag(fields, "stream"),
        "options": completion_options(fields),
    }
    suffix = text(fields, "suffix")
    if suffix:
        found["suffix"] = suffix
    top = integer(fields, "logprobs")
    if top is not None and top > 0:
        found |= {"logprobs": True, "top_logprobs": top}
    return found


def _prompt(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise BadBody("prompt must be one string: neither several prompts nor tokens are taken")
    return value


class CompletionAnswer:
    """One answer."""

    end = DONE

    def __init__(self, envelope: Envelope, *, with_usage: bool) -> None:
        self._envelope = envelope
        self._with_usage = with_usage
        self._offset = 0

    def whole(self, document: dict[str, Any]) -> dict[str, Any]:
        """As one document."""
        created_s = created_of(document, self._envelope)
        choice = self._choice(document, document.get("done") is True)
        return {**self._document(created_s, [choice]), "usage": usage_of(document)}

    def events(self, document: dict[str, Any], ended: bool) -> bytes:
        """A chunk for each object."""
        created_s = self._envelope.created_s
        found = event(self._document(created_s, [self._choice(document, ended)]))
        if ended and self._with_usage:
            found += event({**self._document(created_s, []), "usage": usage_of(document)})
        return found

    def failed(self, sentence: str, reason: str | None) -> bytes:
        """An event with an error, which every client of OpenAI's raises."""
        return error_event(sentence, reason)

    def _choice(self, document: dict[str, Any], ended: bool) -> dict[str, Any]:
        return {
            "text": said(document, "response"),
            "index": 0,
            "finish_reason": reason_of(document, ended),
            **self._logprobs(document),
        }

    def _document(self, created_s: int, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self._envelope.token}",
            "object": "text_completion",
            "created": created_s,
            "model": self._envelope.model,
            "system_fingerprint": "fp_ollama",
            "choices": choices,
        }

    def _logprobs(self, document: dict[str, Any]) -> dict[str, Any]:
        """In the older form, which this route's clients read; Ollama's own answers have none."""
        given = document.get("logprobs")
        if not isinstance(given, list) or not given:
            return {}
        found: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for one in (one for one in given if isinstance(one, dict)):
            token = said(one, "token")
            others = one.get("top_logprobs")
            found["tokens"].append(token)
            found["token_logprobs"].append(one.get("logprob"))
            found["top_logprobs"].append(
                {said(other, "token"): other.get("logprob") for other in others or ()}
            )
            found["text_offset"].append(self._offset)
            self._offset += len(token)
        return {"logprobs": found}
