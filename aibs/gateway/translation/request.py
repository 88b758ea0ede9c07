"""Which route of a node answers which of OpenAI's, and with what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.gateway.translation.chat import ChatAnswer, chat_fields, wants_usage
from aibs.gateway.translation.completion import CompletionAnswer, completion_fields
from aibs.gateway.translation.embeddings import (
    EmbeddingsAnswer,
    embeddings_fields,
    encoding_of,
)
from aibs.gateway.translation.responses import ResponsesAnswer
from aibs.gateway.translation.turns import responses_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.gateway.translation.stream import Answer, Envelope


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """What a node is asked with, but for the model and the worker's options: those come with the
    lease. `answer` begins the translation of one answer.
    """

    path: str
    fields: dict[str, Any]
    answer: Callable[[Envelope], Answer]

    @property
    def streams(self) -> bool:
        """Whether the node answers line by line."""
        return bool(self.fields.get("stream"))


def native_request(path: str, fields: dict[str, Any]) -> NativeRequest:
    """The request of one of OpenAI's routes; `fields` are the body's with folded keys. Raises
    BadBody where it cannot be carried.
    """
    match path:
        case "/v1/chat/completions":
            with_usage = wants_usage(fields)
            return NativeRequest(
                "/api/chat", chat_fields(fields), lambda e: ChatAnswer(e, with_usage=with_usage)
            )
        case "/v1/completions":
            with_usage = wants_usage(fields)
            return NativeRequest(
                "/api/generate",
                completion_fields(fields),
                lambda e: CompletionAnswer(e, with_usage=with_usage),
            )
        case "/v1/embeddings":
            encoding = encoding_of(fields)
            return NativeRequest(
                "/api/embed", embeddings_fields(fields), lambda e: EmbeddingsAnswer(e, encoding)
            )
        case "/v1/responses":
            return NativeRequest(
                "/api/chat", responses_fields(fields), lambda e: ResponsesAnswer(e, fields)
            )
    raise ValueError(f"{path} is no route of OpenAI's")
