"""A client's connection: how long and how large the head of a request may be."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from aibs.gateway.connection import HEAD_BYTES_MAX, KEEP_ALIVE_S, ClientConnection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
SOON_S = 10.0


class Held:
    """An application that answers when it may."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def __call__(self, _: Any, __: Any, send: Any) -> None:
        self.asked.set()
        await self.may_answer.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


class Line:
    """A client and the server's side of it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: ServerState
    ) -> None:
        self.reader, self.writer, self.state = reader, writer, state

    @property
    def server_side(self) -> ClientConnection:
        (only,) = self.state.connections
        return cast("ClientConnection", only)

    def overdue(self, later_s: float) -> bool:
        return self.server_side.overdue(asyncio.get_running_loop().time() + later_s)

    async def sent(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        await asyncio.sleep(0.05)


@asynccontextmanager
async def line(app: Any) -> AsyncIterator[Line]:
    config, state = uvicorn.Config(app, lifespan="off", log_config=None), ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientConnection(config, state, {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await asyncio.sleep(0.05)
        try:
            yield Line(reader, writer, state)
        finally:
            writer.close()
            for task in list(state.tasks):
                task.cancel()


@pytest.mark.parametrize(
    "sent", [b"", REQUEST[:-2], b"\r\n" * 5, REQUEST[:20]], ids=["nothing", "head", "lines", "name"]
)
def test_a_client_that_sends_no_whole_head_does_not_keep_its_connection(sent: bytes) -> None:
    async def run() -> None:
        async with line(Held()) as one:
            await one.sent(sent)
            assert not one.overdue(KEEP_ALIVE_S - 1)
            assert one.overdue(KEEP_ALIVE_S + 1)
            one.server_side.drop()
            async with asyncio.timeout(SOON_S):
                with contextlib.suppress(ConnectionResetError):
                    assert await one.reader.read() == b""
            assert not one.state.connections

    asyncio.run(run())


def test_a_request_that_runs_long_is_no_client_that_sends_nothing() -> None:
    async def run() -> None:
        held = Held()
        async with line(held) as one:
            await one.sent(REQUEST + REQUEST[:10])
            await held.asked.wait()
            assert not one.overdue(10 * KEEP_ALIVE_S)
            held.may_answer.set()
            async with asyncio.timeout(SOON_S):
                await one.reader.readuntil(b"ok")
            assert one.overdue(KEEP_ALIVE_S + 1)
            await one.sent(REQUEST[10:])
            async with asyncio.timeout(SOON_S):
                await one.reader.readuntil(b"ok")

    asyncio.run(run())


def test_a_head_without_end_is_refused_before_it_fills_the_memory() -> None:
    async def run() -> None:
        held = Held()
        async with line(held) as one:
            one.writer.write(b"GET / HTTP/1.1\r\nx-long: " + b"x" * (8 * HEAD_BYTES_MAX))
            async with asyncio.timeout(SOON_S):
                answer = await one.reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 431 ")
            assert not held.asked.is_set()
            assert not one.state.connections

    asyncio.run(run())


def test_bytes_before_a_head_are_not_counted_as_its_own() -> None:
    async def run() -> None:
        held = Held()
        held.may_answer.set()
        body = b"x" * (HEAD_BYTES_MAX + 1000)
        post = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        async with line(held) as one:
            await one.sent(post + REQUEST[:10])
            await one.sent(REQUEST[10:])
            async with asyncio.timeout(SOON_S):
                for _ in range(2):
                    await one.reader.readuntil(b"ok")

    asyncio.run(run())
