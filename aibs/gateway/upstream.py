"""The HTTP client towards the nodes, on the data path. Bytes pass as they come.

aiohttp, chosen by measurement (docs/decisions); httpx stays for polls, warm-ups and commands.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

import aiohttp

from aibs import __version__
from aibs.gateway.failures import NodeAnswer, NodeFailure
from aibs.gateway.limits import Limit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable
    from types import TracebackType

    from aibs.gateway.context import FailureKind

    Headers = list[tuple[bytes, bytes]]

READ_BUFFER_BYTES: Final = 1 << 16
"""Of one answer, unread; twice as much stops the reading from the node."""

HEADER_BYTES_MAX: Final = 1 << 16
FETCHED_MAX: Final = 1 << 24
IDLE_S: Final = 30.0
"""How long an unused connection to a node is kept."""

PASSED_ON: Final = frozenset(
    {b"content-type", b"accept", b"user-agent", b"traceparent", b"tracestate"}
)
"""Of a request's headers. Host and Origin would be answered 403, Authorization is not the node's
(ollama.md §1.9); the body was read here, so its length and coding are ours."""

_UNSAID: Final = (
    ("content-type", "application/json"),
    ("accept", "*/*"),
    ("user-agent", f"aibs/{__version__}"),
)
"""What a node gets where the client said nothing of it."""

NOT_PASSED_BACK: Final = frozenset(
    {
        b"connection",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"server",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Of an answer's headers: what belongs to one connection. Its framing is kept: a length stays a
length, chunks stay chunks."""


class Upstream:
    """Connections to all nodes. `connect_s` is the limit to make one, in seconds."""

    def __init__(self, *, connect_s: float) -> None:
        self._connect_s = connect_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Placement bounds what runs on a node; a second bound here would be a hidden queue.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=READ_BUFFER_BYTES,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    def answer(
        self,
        node_id: str,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
        limit: Limit,
        *,
        first_byte_s: float,
    ) -> NodeExchange:
        """The node's answer from its first byte on, as `async with`. Entering raises NodeFailure.

        Left early, the connection to the node is closed, which ends the work there.
        """

        def too_late() -> NodeFailure:
            return NodeFailure(node_id, "timeout", f"no first byte within {first_byte_s:g} s")

        limit.begin(first_byte_s + self._connect_s, too_late)
        request = self._request(node_id, method, url, headers, body, limit)
        return NodeExchange(node_id, request, limit)

    async def _request(
        self,
        node_id: str,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
        limit: Limit,
    ) -> aiohttp.ClientResponse:
        assert self._session is not None
        try:
            return await self._session.request(
                method, url, headers=headers, data=body, allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self._failure(node_id, error) from error
        except asyncio.CancelledError:
            limit.convert()
            raise

    async def fetch(
        self, node_id: str, method: str, url: str, body: bytes | None, *, limit_s: float
    ) -> NodeAnswer:
        """A small whole answer of a route that needs no lease. Raises NodeFailure."""
        limit = Limit()
        try:
            async with self.answer(
                node_id, method, url, forwarded(()), body, limit, first_byte_s=limit_s
            ) as response:
                whole = await response.whole(FETCHED_MAX, limit_s)
        finally:
            limit.close()
        if whole is None:
            raise NodeFailure(node_id, "http_5xx", f"{url} answers more than {FETCHED_MAX} bytes")
        return NodeAnswer(response.status, response.content_type or "text/plain", whole)

    def _failure(self, node_id: str, error: Exception) -> NodeFailure:
        kind, detail = kind_of(error)
        if kind == "connect" and isinstance(error, TimeoutError):
            detail = f"no connection within {self._connect_s:g} s"
        return NodeFailure(node_id, kind, detail)


class NodeExchange:
    """A request to a node, made on entering, and the reading of its answer."""

    __slots__ = ("_limit", "_node_id", "_raw", "_request")

    def __init__(
        self, node_id: str, request: Awaitable[aiohttp.ClientResponse], limit: Limit
    ) -> None:
        self._node_id = node_id
        self._request = request
        self._limit = limit
        self._raw: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> NodeResponse:
        try:
            self._raw = raw = await self._request
            response = NodeResponse(self._node_id, raw, self._limit)
            await response.first_chunk()
        except BaseException:
            self._over()
            raise
        return response

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over()

    def _over(self) -> None:
        if self._raw is not None:
            # Not given back to the pool unless it was read to its end.
            self._raw.close()
        # What follows is no more this answer: a release, another attempt, its load.
        self._limit.end()


class NodeResponse:
    """An answer that is being read. `status` and `headers` as the node sent them."""

    def __init__(self, node_id: str, raw: aiohttp.ClientResponse, limit: Limit) -> None:
        self.node_id = node_id
        self._limit = limit
        self.status = raw.status
        self._raw = raw
        self._content = raw.content
        self._first = b""
        self._silence_s = 0.0
        self.end: None = None

    @property
    def model_missing(self) -> bool:
        """Whether the node has not the model: a missing route is told as text."""
        return self.status == 404 and self.content_type == "application/json"

    @property
    def content_type(self) -> str:
        """In lower case, without parameters."""
        return self._raw.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def headers(self) -> Headers:
        """What may be passed back."""
        return passed_back(self._raw.raw_headers)

    async def first_chunk(self) -> None:
        """Wait for the first bytes of the body. Raises NodeFailure."""
        try:
            self._first = await self._content.readany()
        except asyncio.CancelledError:
            self._limit.convert()
            raise
        except (aiohttp.ClientError, OSError) as error:
            self._first = self._unread()
            if not self._first:
                raise NodeFailure(self.node_id, *kind_of(error)) from error

    @property
    def first(self) -> bytes:
        """The first bytes of the body; empty where it has none."""
        return self._first

    async def next_chunk(self, silence_s: float) -> bytes:
        """What came since; empty at the end. Raises NodeFailure of the kinds stalled, truncated."""
        if self._content.exception() is not None and (rest := self._unread()):
            return rest
        self._silence_s = silence_s
        self._limit.begin(silence_s, self._stalled)
        try:
            return await self._content.readany()
        except asyncio.CancelledError:
            self._limit.convert()
            raise
        except (aiohttp.ClientError, OSError) as error:
            if rest := self._unread():
                return rest
            raise NodeFailure(
                self.node_id, "truncated", f"the answer broke off: {_said(error)}"
            ) from error

    def _stalled(self) -> NodeFailure:
        silence = f"no byte for {self._silence_s:g} s in the middle of an answer"
        return NodeFailure(self.node_id, "stalled", silence)

    def _unread(self) -> bytes:
        """What came before the connection broke: the reader itself would lose it."""
        return self._content._read_nowait(-1)

    async def whole(self, limit: int, silence_s: float) -> bytes | None:
        """The rest with the first chunk, None where it is more than `limit` bytes."""
        parts, size = [self._first], len(self._first)
        while size <= limit:
            chunk = await self.next_chunk(silence_s)
            if not chunk:
                return b"".join(parts)
            parts.append(chunk)
            size += len(chunk)
        return None


def forwarded(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Of a request's headers what a node gets."""
    found = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in headers
        if name in PASSED_ON
    }
    found["accept-encoding"] = "identity"
    # All that the library would add by itself: to have it left out costs more than to say it.
    for name, value in _UNSAID:
        found.setdefault(name, value)
    return found


def passed_back(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Of an answer's headers what the client gets."""
    found, dropped = [], NOT_PASSED_BACK
    for name, value in headers:
        lower = name.lower()
        if lower == b"connection":
            # Whatever that names is of this connection too (RFC 9110, 7.6.1).
            dropped = dropped | {one.strip().lower() for one in value.split(b",")}
    for name, value in headers:
        lower = name.lower()
        # A node that is a gateway itself says these of its own leases.
        if lower not in dropped and not lower.startswith(b"x-aibs-"):
            found.append((lower, value))
    return found


def kind_of(error: Exception) -> tuple[FailureKind, str]:
    """The kind of a failure before the first byte, and what to say of it."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return "connect", "the connection was not made in time"
        case aiohttp.ClientConnectorError():
            return "connect", f"no connection: {_said(error)}"
        case TimeoutError():
            return "timeout", "no answer in time"
        case aiohttp.ServerDisconnectedError():
            return "reset", "the connection was closed before an answer"
        case aiohttp.ClientResponseError() | aiohttp.InvalidURL() | ValueError():
            return "reset", f"the answer is no HTTP: {_said(error)}"
    return "reset", f"the connection broke: {_said(error)}"


def _said(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__)[:200]
