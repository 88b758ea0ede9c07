"""The processes of the gateway's benchmark: a node that costs little, and proxies without leases.

python benchmarks/gateway_parts.py node PORT        answers as Ollama does, from constants
python benchmarks/gateway_parts.py proxy PORT URL   forwards to URL: starlette, uvicorn, aiohttp
python benchmarks/gateway_parts.py httpx PORT URL   the same with httpx towards the node
python benchmarks/gateway_parts.py floor PORT URL   the least that forwards: no starlette
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import httptools
import httpx
import uvicorn
import uvloop
from starlette.responses import StreamingResponse
from starlette.routing import Route, Router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

MODEL = "llama3:8b"
WEIGHT_BYTES = 7 * 10**9
DIGEST = "1" * 64
TOKENS_A_SECOND = 50
TOKENS = 150
"""Of a streamed answer: three seconds."""

_OWN = ("connection", "date", "server", "transfer-encoding")
"""Headers of an answer that are its connection's."""

_ENTRY = (
    f'{{"name":"{MODEL}","model":"{MODEL}","size":{WEIGHT_BYTES},"digest":"{DIGEST}",'
    f'"size_vram":{WEIGHT_BYTES},"details":{{}},"expires_at":"2318-01-01T00:00:00Z",'
    '"context_length":8192,"modified_at":"2026-01-01T00:00:00Z"}'
)
_WHOLE = (
    f'{{"model":"{MODEL}","created_at":"2026-01-01T00:00:00Z","message":{{"role":"assistant",'
    '"content":"a short answer"},"done":true,"done_reason":"stop","total_duration":1000,'
    '"prompt_eval_count":5,"eval_count":3}'
).encode()
_TOKEN = (
    f'{{"model":"{MODEL}","created_at":"2026-01-01T00:00:00Z","message":{{"role":"assistant",'
    '"content":" token"},"done":false}\n'
).encode()


def _json(body: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )


_ANSWERS = {
    b"/api/ps": _json(f'{{"models":[{_ENTRY}]}}'.encode()),
    b"/api/tags": _json(f'{{"models":[{_ENTRY}]}}'.encode()),
    b"/api/version": _json(b'{"version":"0.32.15"}'),
}
_ANSWER = _json(_WHOLE)
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
)


class _Node(asyncio.Protocol):
    """One connection to the node."""

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.WriteTransport
        self._url = b""
        self._body = b""
        self._streaming: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._url == b"/api/chat" and b'"stream":false' not in self._body:
            self._streaming = asyncio.ensure_future(self._stream())
        else:
            self._transport.write(_ANSWERS.get(self._url, _ANSWER))

    async def _stream(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        self._transport.write(_HEAD)
        chunk = b"%x\r\n%s\r\n" % (len(_TOKEN), _TOKEN)
        for _ in range(TOKENS):
            self._transport.write(chunk)
            due_s += 1 / TOKENS_A_SECOND
            await asyncio.sleep(max(0.0, due_s - loop.time()))
        last = _WHOLE + b"\n"
        self._transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(last), last))


async def _node(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Node, "127.0.0.1", port)
    await server.serve_forever()


def _kept(headers: Any) -> dict[str, str]:
    """Of an answer's headers what is not the connection's."""
    return {name: value for name, value in headers.items() if name.lower() not in _OWN}


class _AiohttpProxy:
    """A streaming proxy as one writes it: starlette's request and its streaming response."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, request: Request) -> StreamingResponse:
        if self._session is None:
            self._session = _session()
        body = await request.body()
        upstream = await self._session.post(self._url + request.url.path, data=body)

        async def pieces() -> AsyncIterator[bytes]:
            async with upstream:
                async for chunk in upstream.content.iter_any():
                    yield chunk

        return StreamingResponse(pieces(), upstream.status, _kept(upstream.headers))


class _HttpxProxy:
    """The same with httpx."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.AsyncClient(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None), timeout=60
        )

    async def __call__(self, request: Request) -> StreamingResponse:
        body = await request.body()
        asked = self._client.build_request("POST", self._url + request.url.path, content=body)
        upstream = await self._client.send(asked, stream=True)

        async def pieces() -> AsyncIterator[bytes]:
            async with contextlib.aclosing(upstream):
                async for chunk in upstream.aiter_raw():
                    yield chunk

        return StreamingResponse(pieces(), upstream.status_code, _kept(upstream.headers))


class _Floor:
    """The least that carries a request: bare ASGI, and nobody looks whether the client is there."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._session is None:
            self._session = _session()
        body = await _body(receive)
        async with self._session.post(self._url + scope["path"], data=body) as response:
            headers = [
                (name.lower(), value)
                for name, value in response.raw_headers
                if name.lower() != b"transfer-encoding"
            ]
            await send(
                {"type": "http.response.start", "status": response.status, "headers": headers}
            )
            async for chunk in response.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)


async def _body(receive: Any) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _proxy(kind: str, port: int, url: str) -> None:
    endpoint: Any = _Floor(url) if kind == "floor" else None
    if endpoint is None:
        endpoint = (_AiohttpProxy(url) if kind == "proxy" else _HttpxProxy(url)).__call__
    app = Router([Route("/api/chat", endpoint, methods=["POST"])])
    uvicorn.run(
        app,
        port=port,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    if sys.argv[1] == "node":
        uvloop.run(_node(int(sys.argv[2])))
    else:
        _proxy(sys.argv[1], int(sys.argv[2]), sys.argv[3])
