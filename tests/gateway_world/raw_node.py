"""A node that answers its polls as Ollama does, and every other request with a script of bytes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from aibs.codec import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

Then = Literal["keep", "close", "reset", "hold"]

BACKLOG: Final = 64
FILLERS: Final = 8


def head(status: str = "200 OK", *, close: bool = True, **headers: str) -> bytes:
    """A status line with headers; underscores in their names are dashes."""
    lines = [f"HTTP/1.1 {status}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if close:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunked(pieces: Iterable[bytes], *, end: bool = True) -> list[bytes]:
    """Each piece as a chunk of HTTP's own; `end` with the last, empty one."""
    parts = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece]
    return [*parts, b"0\r\n\r\n"] if end else parts


def ndjson(*documents: dict[str, Any]) -> bytes:
    """Documents, one a line."""
    return b"".join(dumps(document) + b"\n" for document in documents)


@dataclass(frozen=True)
class Play:
    """What is sent, piece by piece, and what becomes of the connection. `paced`: each piece waits
    for a permit (`RawNode.permit`), so that a test decides what arrives together.
    """

    pieces: Sequence[bytes]
    then: Then = "close"
    paced: bool = False


@dataclass
class Call:
    """A request as it came, and whether the other side has left."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    gone: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)

    def header(self, name: str) -> str | None:
        """The last header of that name."""
        found = [value for key, value in self.headers if key.lower() == name]
        return found[-1] if found else None


class RawNode:
    """Lives in the loop that enters it. `calls` are the requests but for polls, oldest first."""

    def __init__(self, models: Sequence[str], size_bytes: int) -> None:
        self.calls: list[Call] = []
        self.play = Play((head("500 Internal Server Error", content_length="0"),))
        self._plays: list[Play] = []
        self._models = tuple(models)
        self._size_bytes = size_bytes
        self._permits = asyncio.Semaphore(0)
        self._socket = socket.socket()
        self._fillers: list[socket.socket] = []
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._empty()
        tasks = [*self._tasks, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    def plays(self, *plays: Play) -> None:
        """The next requests are answered with these in turn, all later ones with the last. From any
        thread.
        """
        self._plays = list(plays)
        self._permits = asyncio.Semaphore(0)

    def permit(self, pieces: int = 1) -> None:
        """Let so many more pieces of paced plays go. From any thread."""
        self.gate()(pieces)

    def gate(self) -> Callable[[int], None]:
        """`permit` for what plays now, whatever is played later."""
        loop, permits = self._loop, self._permits
        assert loop is not None

        def let(pieces: int) -> None:
            for _ in range(pieces):
                loop.call_soon_threadsafe(permits.release)

        return let

    def accept(self) -> None:
        """Take connections, again after `stop_accepting`."""
        self._empty()
        self._socket.listen(BACKLOG)
        self._accepting = asyncio.ensure_future(self._accept())

    async def stop_accepting(self) -> None:
        """From now on a connection is neither made nor refused: the system's queue is full."""
        assert self._accepting is not None
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._socket.listen(0)
        for _ in range(FILLERS):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._fillers.append(filler)

    def _empty(self) -> None:
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._socket)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.ensure_future(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 26)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._one(reader, writer):
                    pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether there may be another."""
        call = await _read(reader)
        if call is None:
            return False
        known = self._told(call)
        if known is not None:
            body = dumps(known)
            length = str(len(body))
            writer.write(head(close=False, content_type="application/json", content_length=length))
            writer.write(body)
            await writer.drain()
            return True
        self.calls.append(call)
        play = self._plays.pop(0) if len(self._plays) > 1 else (self._plays or [self.play])[0]
        return await self._play(play, call, reader, writer)

    async def _play(
        self, play: Play, call: Call, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if play.then == "keep":
            await self._send(play, call, writer)
            return True
        watching = asyncio.ensure_future(_gone(reader, call))
        sending = asyncio.ensure_future(self._send(play, call, writer))
        try:
            await asyncio.wait({watching, sending}, return_when=asyncio.FIRST_COMPLETED)
            if play.then == "hold" or not sending.done():
                await watching
            elif play.then == "reset":
                _reset(writer)
        finally:
            for task in (watching, sending):
                task.cancel()
            await asyncio.gather(watching, sending, return_exceptions=True)
        return False

    async def _send(self, play: Play, call: Call, writer: asyncio.StreamWriter) -> None:
        permits = self._permits
        for piece in play.pieces:
            if play.paced:
                await permits.acquire()
            writer.write(piece)
            await writer.drain()
        call.answered.set()

    def _told(self, call: Call) -> dict[str, Any] | None:
        if call.method != "GET":
            return None
        if call.target == "/api/version":
            return {"version": "0.32.15"}
        if call.target in ("/api/ps", "/api/tags"):
            return {"models": [self._entry(name) for name in self._models]}
        return None

    def _entry(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "model": name,
            "size": self._size_bytes,
            "size_vram": self._size_bytes,
            "digest": hashlib.sha256(name.encode()).hexdigest(),
            "details": {"format": "gguf", "family": "llama", "families": ["llama"]},
            "modified_at": "2026-01-01T00:00:00Z",
            "expires_at": "2318-01-01T00:00:00Z",
            "context_length": 4096,
        }


async def _read(reader: asyncio.StreamReader) -> Call | None:
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    call = Call(method, target, headers, b"")
    length = call.header("content-length")
    if length is not None:
        call.body = await reader.readexactly(int(length))
    elif call.header("transfer-encoding") is not None:
        call.body = await _dechunked(reader)
    return call


async def _dechunked(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


async def _gone(reader: asyncio.StreamReader, call: Call) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass
    call.gone.set()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close without an end, after what was sent arrived."""
    wire = writer.get_extra_info("socket")
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
