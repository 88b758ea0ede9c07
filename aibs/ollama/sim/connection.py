"""One HTTP/1.1 connection: requests in, answers out, and what happens when the client leaves.

A client that closes, its sending side alone included, ends the inference it asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

import h11

from aibs import logs
from aibs.ollama.sim.replies import (
    Answer,
    Raw,
    Reply,
    Request,
    RequestError,
    Stream,
    not_found,
)
from aibs.ollama.sim.routes import answer, error_reply

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aibs.ollama.sim.node import SimNode

MAX_REQUEST_BYTES = 64 * 2**20
CLIENT_LEFT = RequestError(499, "request canceled")


class Host(Protocol):
    """What a connection asks of its server."""

    on_loopback: bool

    def locate(self, target: str) -> tuple[SimNode, str] | None:
        """The node that a request is for, and the path there."""
        ...

    def joined(self, connection: Connection) -> None:
        """A connection was made."""
        ...

    def left(self, connection: Connection) -> None:
        """A connection is gone."""
        ...

    def die(self) -> None:
        """The server is gone from one moment to the next."""
        ...


class Connection(asyncio.Protocol):
    """Serves one connection, a request at a time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._http = h11.Connection(h11.SERVER)
        self._transport: asyncio.Transport | None = None
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._held = False
        self._peer_left = False
        self._served = 0
        self._polled = b""
        self._polled_request: h11.Request | None = None
        self._repeated = False
        self._writable = asyncio.Event()
        self._writable.set()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._host.joined(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client: a request, or the next one already."""
        idle = self._is_idle()
        if idle and data == self._polled and self._polled_request is not None:
            # A poll is the same bytes each time: what they mean is known, and h11 stays idle.
            self._request, self._body, self._repeated = self._polled_request, bytearray(), True
            self._respond()
            return
        served = self._served
        try:
            self._http.receive_data(data)
            self._advance()
        except h11.RemoteProtocolError as error:
            self._refuse(error)
            return
        request = self._request
        whole = idle and self._served == served + 1 and self._is_idle()
        if whole and request is not None and request.method == b"GET":
            self._polled, self._polled_request = data, request

    def _is_idle(self) -> bool:
        """Whether nothing is under way and nothing is left unread."""
        http = self._http
        return (
            self._task is None
            and not self._held
            and http.our_state is h11.IDLE
            and http.their_state is h11.IDLE
            and not http.trailing_data[0]
        )

    def eof_received(self) -> bool:
        """The client sends no more, which to the server is as good as gone."""
        self._peer_left = True
        if self._task is None:
            return False
        if self._request is not None and self._request.method == b"POST":
            self._task.cancel()
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The client is gone."""
        self._writable.set()
        if self._task is not None:
            self._task.cancel()
        self._host.left(self)

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It caught up."""
        self._writable.set()

    # What the server calls.

    def abort(self) -> None:
        """Reset the connection: without lingering, a close is a reset and not an end."""
        wire = self._wire.get_extra_info("socket")
        with contextlib.suppress(OSError):  # a client that was reset first, on some systems
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._wire.abort()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The request under way, where it is not answered at once."""
        return self._task

    @property
    def _wire(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _advance(self) -> None:
        """Serve what has arrived whole, until there is nothing or an answer takes its time."""
        while self._task is None and not self._held and not self._wire.is_closing():
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    self._write(h11.InformationalResponse(status_code=100, headers=[]))
                return
            if event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                self._request, self._body, self._repeated = event, bytearray(), False
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > MAX_REQUEST_BYTES:
                    self.abort()
            elif isinstance(event, h11.EndOfMessage):
                self._respond()
            else:
                self._wire.close()

    def _respond(self) -> None:
        assert self._request is not None
        self._served += 1
        located = self._host.locate(self._request.target.decode("ascii", "replace"))
        if located is None:
            self._give(not_found())
            return
        node, path = located
        headers = {name: value.decode("latin-1") for name, value in self._request.headers}
        request = Request(
            method=self._request.method.decode("ascii"),
            path=path,
            body=bytes(self._body),
            host=headers.get(b"host", ""),
            origin=headers.get(b"origin", ""),
        )
        result = answer(node, request, on_loopback=self._host.on_loopback)
        if node.faults.die:
            if not isinstance(result, Answer):
                result.close()
            self._host.die()
        elif isinstance(result, Reply):
            self._give(result)
        elif isinstance(result, Raw):
            self._give_raw(result)
        else:
            assert not isinstance(result, Stream)
            self._task = asyncio.get_running_loop().create_task(self._later(path, result))

    async def _later(self, path: str, result: Coroutine[Any, Any, Answer]) -> None:
        """An answer that takes its time."""
        try:
            try:
                given = await result
            except asyncio.CancelledError:
                if not self._peer_left or self._wire.is_closing():
                    raise
                given = error_reply(path, CLIENT_LEFT)
            except Exception:  # noqa: BLE001 - as the real server: a handler that fails is a 500
                logs.get("aibs.ollama.sim").exception("handler_failed", path=path)
                given = Reply(500)
            if isinstance(given, Stream):
                await self._give_stream(given)
            elif isinstance(given, Raw):
                self._give_raw(given)
            else:
                self._give(given)
        finally:
            self._task = None
        if self._peer_left:
            self._wire.close()
            return
        try:
            self._advance()
        except h11.RemoteProtocolError as error:
            self._refuse(error)

    def _give(self, reply: Reply) -> None:
        if self._repeated:
            self._wire.write(_on_wire(reply))
            return
        headers = [
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(reply.body))),
            *reply.headers,
        ]
        head = self._request is not None and self._request.method == b"HEAD"
        parts = [self._http.send(_head_event(reply.status, headers))]
        if reply.body and not head:
            parts.append(self._http.send(h11.Data(data=reply.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._wire.write(b"".join(part for part in parts if part))
        self._next()

    def _give_raw(self, raw: Raw) -> None:
        if raw.data:
            self._wire.write(raw.data)
        if raw.then == "hold":
            self._held = True
        elif raw.then == "close":
            self._wire.close()
        else:
            self.abort()

    async def _give_stream(self, stream: Stream) -> None:
        """Headers with the first piece, never before."""
        headers = [("Content-Type", stream.content_type)]
        async with contextlib.aclosing(stream.rest) as rest:
            self._write(_head_event(200, headers), h11.Data(data=stream.first))
            try:
                async for piece in rest:
                    await self._writable.wait()
                    self._write(h11.Data(data=piece))
            except asyncio.CancelledError:
                # The generation ends with its client; a client that still reads sees a whole
                # answer that lacks its last line.
                if not self._peer_left or self._wire.is_closing():
                    raise
        self._write(h11.EndOfMessage())
        self._next()

    def _write(self, *events: h11.Event) -> None:
        self._wire.write(b"".join(self._http.send(event) or b"" for event in events))

    def _next(self) -> None:
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self._wire.close()

    def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Something that is not HTTP."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._give(Reply(error.error_status_hint, b"400 Bad Request", "text/plain"))
        self._wire.close()


def _reason(status: int) -> str:
    """The words behind the status, empty for those that no standard names, such as 499."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _head_event(status: int, headers: list[tuple[str, str]]) -> h11.Response:
    return h11.Response(status_code=status, headers=headers, reason=_reason(status).encode())


def _on_wire(reply: Reply) -> bytes:
    """A whole reply to a GET, without the bookkeeping of a connection's state."""
    more = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
    head = (
        f"HTTP/1.1 {reply.status} {_reason(reply.status)}\r\nContent-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(reply.body)}\r\n{more}\r\n"
    )
    return head.encode("latin-1") + reply.body
