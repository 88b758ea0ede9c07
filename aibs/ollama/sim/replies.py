"""What a route can answer: a whole reply, a stream, raw bytes, or an error that becomes a reply."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import orjson

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

JSON = "application/json; charset=utf-8"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
TEXT = "text/plain"

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `path` is the node's own, without the part that chose the node."""

    method: str
    path: str
    body: bytes = b""
    host: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer whose headers go out with its first piece. `rest` has begun and must be closed."""

    content_type: str
    first: bytes
    rest: AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes put on the wire as they are; then the connection is held, closed or reset."""

    data: bytes
    then: Literal["hold", "close", "reset"]


Answer = Reply | Stream | Raw


class RequestError(Exception):
    """A request that is answered with an error: status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class GenerationFailed(Exception):
    """The runner failed while it generated. The message is the text of the error."""


def encode(document: Any) -> bytes:
    """JSON with the keys in the order given, as the server writes them."""
    return orjson.dumps(document)


def json_reply(document: Any, status: int = 200) -> Reply:
    """A JSON object as a whole answer."""
    return Reply(status, encode(document))


def native_error(error: RequestError) -> Reply:
    """An error in the shape of the native routes."""
    return json_reply({"error": error.text}, error.status)


def openai_error(error: RequestError) -> Reply:
    """An error in the shape of the OpenAI routes."""
    kinds = {400: "invalid_request_error", 404: "not_found_error"}
    kind = kinds.get(error.status, "api_error")
    return json_reply(
        {"error": {"message": error.text, "type": kind, "param": None, "code": None}},
        error.status,
    )


def not_found() -> Reply:
    """The answer where no route is."""
    return Reply(404, b"404 page not found", TEXT)


def method_not_allowed() -> Reply:
    """The answer where a route is, of another method."""
    return Reply(405, b"405 method not allowed", TEXT)


def rfc3339_nano(at_ns: int) -> str:
    """Nanoseconds since the epoch as Go prints them: up to 9 digits, no trailing zeros, Z."""
    second, fraction_ns = divmod(at_ns, 10**9)
    moment = datetime.fromtimestamp(second, UTC)
    fraction = f".{fraction_ns:09d}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def now_text() -> str:
    """This moment, for `created_at`."""
    return rfc3339_nano(time.time_ns())
