"""/v1/embeddings by /api/embed."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Any, Final

from aibs.gateway.bodies import BadBody
from aibs.gateway.translation.fields import integer, text
from aibs.gateway.translation.stream import Envelope, Unreadable, count, error_event

ENCODINGS: Final = ("float", "base64")


def embeddings_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The native request, but for its model. Raises BadBody."""
    given = fields.get("input")
    if given is None or given == []:
        raise BadBody("invalid input: it is empty")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise BadBody("input must be a string or a list of strings: tokens are not taken")
    encoding_of(fields)
    found: dict[str, Any] = {"input": texts}
    dimensions = integer(fields, "dimensions")
    if dimensions:
        found["dimensions"] = dimensions
    return found


def encoding_of(fields: dict[str, Any]) -> str:
    """How the vectors are written. Raises BadBody."""
    wanted = text(fields, "encoding_format") or "float"
    if wanted.lower() not in ENCODINGS:
        raise BadBody(f"encoding_format is {wanted[:40]!r}: it can be float or base64")
    return wanted.lower()


class EmbeddingsAnswer:
    """One answer, which is never streamed."""

    end = b""

    def __init__(self, envelope: Envelope, encoding: str) -> None:
        self._model = envelope.model
        self._encoding = encoding

    def whole(self, document: dict[str, Any]) -> dict[str, Any]:
        """As one document. Raises Unreadable."""
        vectors = document.get("embeddings")
        if not isinstance(vectors, list):
            raise Unreadable("the answer has no embeddings")
        tokens = count(document, "prompt_eval_count")
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": self._written(vector), "index": index}
                for index, vector in enumerate(vectors)
            ],
            "model": self._model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    def events(self, document: dict[str, Any], ended: bool) -> bytes:  # noqa: ARG002
        """There are none."""
        raise Unreadable("embeddings are not streamed")

    def failed(self, sentence: str, reason: str | None) -> bytes:
        """An event with an error."""
        return error_event(sentence, reason)

    def _written(self, vector: Any) -> Any:
        if self._encoding == "float":
            return vector
        try:
            numbers = array("f", vector)
        except (TypeError, OverflowError) as error:
            raise Unreadable("an embedding is no list of numbers") from error
        if sys.byteorder == "big":
            numbers.byteswap()
        return base64.b64encode(numbers.tobytes()).decode()
