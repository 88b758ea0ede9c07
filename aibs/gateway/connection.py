"""A client's connection: the ASGI server's HTTP protocol, with what it leaves to others.

It tells every request of a connection that its client left, not the newest alone: a client that
sends a second request behind the first and leaves has left both. It goes on reading behind such a
request, for a connection that is not read does not show that it was closed. It bounds the head of a
request, in time and in size; bodies are bounded where they are read (body_guard.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from aibs.gateway.access import HEADER_BYTES_MAX
from aibs.gateway.routes import DROP
from aibs.gateway.watch import DEPARTURE, Departure

if TYPE_CHECKING:
    import asyncio

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

KEEP_ALIVE_S: Final = 75
"""How long an idle client's connection is kept, and how long a request's head may take."""

HEAD_BYTES_MAX: Final = 2 * HEADER_BYTES_MAX
"""Of a head that is not whole: more than what a whole one is refused for in the client's format."""

PIPELINED_MAX: Final = 16
"""Requests that wait behind another of their connection; behind more of them nothing is read."""

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Headers Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class ClientConnection(HttpToolsProtocol):
    """One of a server's connections. Applications are offered, as extensions of ASGI, `drop` and
    the departure of their client.
    """

    _running: RequestResponseCycle | None = None
    _head_since_s: float | None = None
    _head_bytes = 0
    _begins = False

    def overdue(self, now_s: float) -> bool:
        """Whether its client keeps the server waiting for a request; times of the loop's clock."""
        since_s = self._head_since_s
        if since_s is None or now_s - since_s <= KEEP_ALIVE_S:
            return False
        return self._running is None or self._running.response_complete

    def drop(self) -> None:
        """Close it, whatever is still to be sent."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since_s = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
            cast("dict[str, Any]", running.scope)["extensions"][DEPARTURE].told()
        # Those behind it never begin.
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._begins = False
        super().data_received(data)
        # Of a piece in which a request begins, what went before it is not its head.
        if self._begins or self._head_since_s is None:
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            if self._running is None or self._running.response_complete:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["extensions"] = {
            DROP: self.drop,
            DEPARTURE: Departure(),
        }
        self._begins, self._head_since_s, self._head_bytes = True, self.loop.time(), 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head_since_s = None
        if self.pipeline and len(self.pipeline) <= PIPELINED_MAX:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and self.cycle.response_complete:
            self._head_since_s, self._head_bytes = self.loop.time(), 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)
