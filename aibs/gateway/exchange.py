"""One request and its client: what was sent so far, and how a failure is still told.

Before the first byte a failure is a status with a body in the client's format. After it, a stream
gets a last line or event that says so; an answer in one piece can only be broken off, so that its
client does not take a part for the whole.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aibs.codec import dumps
from aibs.gateway.endings import (
    Ending,
    NdjsonEnd,
    SseEnd,
    WholeEnd,
    native_ending,
    openai_ending,
)
from aibs.gateway.failures import error_text
from aibs.gateway.limits import Limit
from aibs.gateway.pieces import empty_piece
from aibs.gateway.replies import error_document, error_response
from aibs.gateway.watch import ClientLeft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from aibs.gateway.context import Caller
    from aibs.gateway.endings import Format
    from aibs.gateway.failures import NodeAnswer
    from aibs.gateway.translated import ReadEnd, TranslatedResponse
    from aibs.gateway.upstream import Headers, NodeResponse

    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_TYPES: Final = {
    "ndjson": b"application/x-ndjson",
    "sse": b"text/event-stream",
    "whole": b"application/json",
}


class Exchange:
    """`path` is the route's; `model` what the client asked for, as its stream's lines name it;
    `format` what it expects; `stall_s` how long it may take nothing of what is sent.
    """

    def __init__(
        self, send: Send, path: str, model: str, format_: Format, caller: Caller, *, stall_s: float
    ) -> None:
        self.path = path
        self.model = model
        self.format: Format = format_
        self.caller = caller
        self.began_s = time.monotonic()
        self.status = 0
        self._extra: dict[bytes, bytes] = {}
        self.limit = Limit()
        self._send = send
        self._stall_s = stall_s
        self._end: NdjsonEnd | SseEnd | WholeEnd | ReadEnd = _end_for(format_, path)
        self._left: int | None = None
        self._head: MutableMapping[str, Any] | None = None
        self._held = b""
        self._finished = False

    @property
    def started(self) -> bool:
        """Whether anything was passed to the client."""
        return self.status != 0

    @property
    def finished(self) -> bool:
        """Whether the end of the answer was passed on, or is on its way."""
        return self._finished

    def add_header(self, name: str, value: str) -> None:
        """A header of ours, on whatever answer there will be."""
        self._extra[name.encode("latin-1")] = value.encode("latin-1", "replace")

    def start(self, response: NodeResponse | TranslatedResponse) -> None:
        """Pass a node's status and headers on, with what is next sent of the body: a small answer
        then goes in one piece.
        """
        headers = response.headers()
        length = next((value for name, value in headers if name == b"content-length"), None)
        self._left = int(length) if length is not None and length.isdigit() else None
        self._end = response.end or self._end
        if self.started:
            return
        if self.format != "whole" and response.content_type == "application/json":
            # One object where a stream was asked for: a load, or an error.
            self._end = _end_for("whole", self.path)
        self._head = self._head_of(response.status, headers)

    async def pass_on(self, chunk: bytes) -> None:
        """Pass bytes of the body on. The last ones of a known length wait for `finish`, so that
        the client has its answer no earlier than the lease is given back.
        """
        self._end.feed(chunk)
        if self._left is not None:
            self._left -= len(chunk)
            if self._left <= 0:
                self._held += chunk
                return
        await self._body(chunk, more=True)

    def ending(self) -> Ending:
        """What the node said of the answer's end."""
        return self._end.ending()

    def said_all(self) -> bool:
        """Whether the last word of a stream was passed on to its end, whatever may follow it."""
        if self._in_one_piece or (self._left is not None and self._left > 0):
            return False
        # An event that ends an answer is known by its name, which comes before what it holds.
        return self._end.at_line_start and self._end.ending().complete

    async def finish(self) -> None:
        """The answer is whole. May be repeated."""
        if self._unfinished:
            self._finished = True
            await self._body(self._held, more=False)

    async def finish_apart(self) -> None:
        """As finish, from another task than the request's."""
        if self._unfinished:
            self._finished = True
            await self._body_apart(self._held, more=False)

    async def answer(self, told: NodeAnswer) -> None:
        """Pass on what a node said instead of serving."""
        if self.started:
            await self.fail(error_text(told.body), None, told.status)
            return
        headers = [(b"content-type", told.content_type.encode("latin-1", "replace"))]
        headers.append((b"content-length", b"%d" % len(told.body)))
        self._head = self._head_of(told.status, headers)
        self._finished = True
        await self._body(told.body, more=False)

    async def fail(
        self,
        sentence: str,
        reason: str | None,
        status: int,
        *,
        retry_after_ms: int | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        """Tell a failure in the client's format, `more` as in `error_document`."""
        if self._finished:
            return
        if self.started:
            document = error_document(self.path, sentence, reason, status, retry_after_ms)
            await self._break_off(document)
            return
        response = error_response(self.path, sentence, reason, status, retry_after_ms, more=more)
        self._head = self._head_of(status, list(response.raw_headers))
        self._finished = True
        await self._body(bytes(response.body), more=False)

    async def tell_place(self, position: int, reason: str) -> None:
        """Say in the stream where the request stands; the stream then has begun. From another task
        than the request's.
        """
        if self.format == "whole":
            return
        if not self.started:
            self._head = self._head_of(200, [(b"content-type", _TYPES[self.format])])
        if self.format == "sse":
            # A comment, which every reader of events passes over.
            line = f": aibs position={position} reason={reason}\n\n".encode()
        else:
            place = {"position": position, "reason": reason}
            line = dumps(empty_piece(self.path, self.model, done=False, aibs=place)) + b"\n"
        await self._body_apart(line, more=True)

    @property
    def _unfinished(self) -> bool:
        return not self._finished and (self.started or self._head is not None)

    @property
    def _in_one_piece(self) -> bool:
        return self.format == "whole" or isinstance(self._end, WholeEnd)

    async def _break_off(self, document: dict[str, Any]) -> None:
        if self._in_one_piece or self._left is not None:
            # Without its end, the framing itself tells the client that it has not all.
            raise BrokenOff
        before = b""
        if not self._end.at_line_start:
            before = b"\n\n" if self.format == "sse" else b"\n"
        text = dumps(document)
        line = b"data: " + text + b"\n\n" if self.format == "sse" else text + b"\n"
        self._finished = True
        await self._body(before + line, more=False)

    def _head_of(self, status: int, headers: Headers) -> MutableMapping[str, Any]:
        return {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, *self._extra.items()],
        }

    async def _body(self, data: bytes, *, more: bool) -> None:
        # One that reads no more has left: what it holds of the fleet is given to others.
        self.limit.begin(self._stall_s, ClientLeft)
        try:
            await self._send_on(data, more=more)
        except asyncio.CancelledError:
            self.limit.convert()
            raise
        self.limit.end()

    async def _body_apart(self, data: bytes, *, more: bool) -> None:
        """With a limit of its own: the request's is its task's."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stall_s):
                await self._send_on(data, more=more)

    async def _send_on(self, data: bytes, *, more: bool) -> None:
        head = self._head
        if head is not None:
            self._head, self.status = None, head["status"]
            try:
                await self._send(head)
            except BaseException:
                # The server waits before it writes: the client has nothing of it.
                self._head, self.status = head, 0
                raise
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


class BrokenOff(Exception):
    """The answer ends in the middle, and the connection with it."""


def _end_for(format_: Format, path: str) -> NdjsonEnd | SseEnd | WholeEnd:
    if format_ == "ndjson":
        return NdjsonEnd()
    if format_ == "sse":
        return SseEnd()
    if path.startswith("/v1/"):
        return WholeEnd(lambda document: openai_ending(document, Ending(False)))
    return WholeEnd(native_ending)
