"""One bounded HTTP exchange with a node: a deadline over all of it, a limit on the body, and every
failure as a typed error.
"""

from __future__ import annotations

import asyncio
import json
import socket
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import httpx

from aibs import __version__
from aibs.errors import InvalidResponse, NodeUnreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BODY_BYTES = 8 * 2**20
"""A list of resident or installed models is kilobytes; more is not one."""

MAX_REDIRECTS = 3

_NOTHING_SENT = "without sending a response"
"""How httpx says that a server closed before its first byte, as one does that was stopped."""

# An allow-list: a node sees nothing of ours but what an answer needs.
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"aibs/{__version__}",
}


class Answer:
    """A whole answer: status, body, and the type that the server gave it."""

    __slots__ = ("body", "content_type", "status")

    def __init__(self, status: int, body: bytes, content_type: str) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type


def new_http_client(base_url: str, connections: int = 2) -> httpx.AsyncClient:
    """A client for one node.

    Proxies and .netrc of the environment are not for boxes of the local network. A client for
    http makes no TLS context, which costs milliseconds and megabytes for each of many nodes.
    """
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.AsyncClient(
        headers=_HEADERS,
        trust_env=False,
        verify=urlsplit(base_url).scheme == "https",
        limits=limits,
        follow_redirects=False,
    )


async def exchange(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    timeout_s: float,
    document: Mapping[str, Any] | None = None,
) -> Answer:
    """Send a request and read its answer within `timeout_s`, redirects included.

    A deadline over the whole, not for each read: a server that drips bytes must not stretch a poll.
    Raises NodeUnreachable and InvalidResponse.
    """
    content = None if document is None else json.dumps(document).encode()
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(MAX_REDIRECTS + 1):
                answer, location = await _once(http, method, url, content)
                if location is None:
                    return answer
                url = _same_origin(url, location)
    except TimeoutError as error:
        raise NodeUnreachable(
            f"{url} did not answer within {timeout_s:g} s.", reason="timeout"
        ) from error
    except httpx.HTTPError as error:
        raise _typed(url, error) from error
    except (zlib.error, UnicodeError, ValueError, httpx.InvalidURL) as error:
        raise InvalidResponse(
            f"{url} sent an answer that cannot be read: {error}.", reason="invalid_response"
        ) from error
    except OSError as error:
        raise NodeUnreachable(f"{url}: {error}.", reason="connect_failed") from error
    raise InvalidResponse(f"{url} redirects in circles.", reason="redirect")


async def _once(
    http: httpx.AsyncClient, method: str, url: str, content: bytes | None
) -> tuple[Answer, str | None]:
    headers = {"Content-Type": "application/json"} if content is not None else {}
    request = http.build_request(method, url, content=content, headers=headers, timeout=None)
    response = await http.send(request, stream=True)
    try:
        if response.is_redirect:
            return Answer(response.status_code, b"", ""), response.headers.get("location", "")
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise InvalidResponse(
                    f"{url} sent more than {MAX_BODY_BYTES // 2**20} MiB.", reason="body_too_large"
                )
        kind = response.headers.get("content-type", "")
        return Answer(response.status_code, bytes(body), kind), None
    finally:
        await response.aclose()


def _same_origin(url: str, location: str) -> str:
    target = urljoin(url, location)
    here, there = urlsplit(url), urlsplit(target)
    if (here.scheme, here.netloc) != (there.scheme, there.netloc):
        # Another origin may be another server: what it holds says nothing about this node.
        raise InvalidResponse(
            f"{url} redirects to another server, {there.scheme}://{there.hostname}.",
            reason="redirect",
            mend="Configure the URL that it redirects to, if that is the node.",
        )
    return target


def _typed(url: str, error: httpx.HTTPError) -> NodeUnreachable | InvalidResponse:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return NodeUnreachable(f"{url}: the host name does not resolve.", reason="dns")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError):
        tls = "SSL" in str(error) or "certificate" in str(error).lower()
        return NodeUnreachable(
            f"{url}: {error or 'the connection failed'}.", reason="tls" if tls else "connect_failed"
        )
    if isinstance(error, httpx.RemoteProtocolError) and _NOTHING_SENT in str(error):
        return NodeUnreachable(f"{url}: the connection was closed unanswered.", reason="reset")
    if isinstance(error, httpx.RemoteProtocolError | httpx.DecodingError):
        return InvalidResponse(
            f"{url} sent an answer that breaks off or is not HTTP: {error}.",
            reason="invalid_response",
        )
    return NodeUnreachable(f"{url}: the connection was lost ({error}).", reason="reset")
