"""Refusals in the format of the API that the client speaks, told from the path alone.

    /api/…   Ollama      {"error": sentence, "reason": code, "retry_after_ms": n|null}
    /v1/…    OpenAI      {"error": {"message", "type", "param", "code"}}
    others   the gateway {"reason": code, "detail": sentence}, with retry_after_ms where it is known
    a 503 of the Placements API has `nodes`, `retry_after_ms` and `position` always

Pure but for `send_error`. `reason` is a code of the one list of reasons, or of the gateway's own
words for requests that never came to be placed; None where the status alone says it (`CODES`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from aibs.codec import dumps
from aibs.gateway.denials import MENDED_BY_OPERATOR, NO_RETRY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Send

OPENAI_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}
"""Every other status is an `api_error`, as Ollama's own /v1 routes have it (ollama.md §1.7)."""

CODES: Final = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "too_large",
    415: "unsupported_encoding",
    431: "headers_too_large",
}
"""The code where nothing says more than the status; of every other status it is `failed`."""


def error_document(
    path: str,
    sentence: str,
    reason: str | None,
    status: int,
    retry_after_ms: int | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The refusal as a document. `more` are members of it in Ollama's format: OpenAI's clients
    know no others than its own.
    """
    # A client's text may hold a lone surrogate, which no JSON can carry.
    sentence = sentence.encode("utf-8", "replace").decode()
    reason = reason or CODES.get(status, "failed")
    if path.startswith("/v1/"):
        kind = OPENAI_TYPES.get(status, "api_error")
        return {"error": {"message": sentence, "type": kind, "param": None, "code": reason}}
    if path.startswith("/api/"):
        known: dict[str, Any] = {
            "error": sentence,
            "reason": reason,
            "retry_after_ms": retry_after_ms,
        }
        return {**known, **(more or {})}
    if status == 503 and (path == "/placements" or path.startswith("/placements/")):
        denial: dict[str, Any] = {
            "reason": reason,
            "detail": sentence,
            "nodes": [],
            "position": None,
        }
        return {**denial, "retry_after_ms": retry_after_ms}
    if retry_after_ms is None:
        return {"reason": reason, "detail": sentence}
    return {"reason": reason, "detail": sentence, "retry_after_ms": retry_after_ms}


def error_body(
    path: str, sentence: str, reason: str | None, status: int, retry_after_ms: int | None = None
) -> bytes:
    """The refusal as JSON."""
    return dumps(error_document(path, sentence, reason, status, retry_after_ms))


def retry_after_s(retry_after_ms: int) -> int:
    """As the header says it: whole seconds, at least one, so that nobody asks at once again."""
    return max(1, -(-retry_after_ms // 1000))


def error_response(
    path: str,
    sentence: str,
    reason: str | None,
    status: int,
    retry_after_ms: int | None = None,
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Response:
    """The refusal as an answer; `headers` are added, `more` as in `error_document`."""
    found = dict(headers or {})
    if retry_after_ms is not None:
        found["retry-after"] = str(retry_after_s(retry_after_ms))
    if reason in MENDED_BY_OPERATOR and path.startswith("/v1/"):
        found.update([NO_RETRY])
    body = dumps(error_document(path, sentence, reason, status, retry_after_ms, more))
    return Response(body, status, found, "application/json")


async def send_error(
    send: Send,
    path: str,
    sentence: str,
    reason: str | None,
    status: int,
    retry_after_ms: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """The refusal sent by itself, where no request object was made."""
    answer = error_response(path, sentence, reason, status, retry_after_ms, headers)
    await send(
        {"type": "http.response.start", "status": status, "headers": list(answer.raw_headers)}
    )
    await send({"type": "http.response.body", "body": bytes(answer.body)})
