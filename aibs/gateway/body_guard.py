"""Bounds a request's body while it is read: its size, the time between two pieces, and the whole.

The guard answers by itself when a bound is broken, and the application behind it sees its client
leave: whichever way it reads, it ends as for any client that leaves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aibs.gateway.replies import error_response
from aibs.timeouts import within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Message, Receive, Send

SILENCE_S: Final = 60.0
"""A body of which nothing came for so long is given up."""

WHOLE_S: Final = 300.0
"""A body that is not whole by then is given up, however steadily it trickles."""

LINGER_S: Final = 1.0
LINGER_BYTES: Final = 1 << 22
"""What a refused client still sends is read so long and so far: closing on unread bytes resets the
connection, and the client would lose the answer."""

_LEFT: Final[Mapping[str, Any]] = {"type": "http.disconnect"}


class BodyGuard:
    """`receive` and `send` of one request, bounded. `refused` once it answered by itself."""

    __slots__ = (
        "_deadline",
        "_limit",
        "_loop",
        "_path",
        "_receive",
        "_send",
        "_size",
        "_started",
        "_whole",
        "refused",
    )

    def __init__(self, path: str, receive: Receive, send: Send, limit: int) -> None:
        self._path = path
        self._receive = receive
        self._send = send
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + WHOLE_S
        self._size = 0
        self._whole = False
        self._started = False
        self.refused = False

    async def receive(self) -> Message:
        """The next piece, or that the client left."""
        if self._whole:
            return await self._receive()
        if self.refused:
            return dict(_LEFT)
        try:
            with within(min(SILENCE_S, self._deadline - self._loop.time())):
                message = await self._receive()
        except TimeoutError:
            sentence = f"The request's body did not come within {SILENCE_S:g} s"
            if self._loop.time() >= self._deadline:
                sentence = f"The request's body was not whole after {WHOLE_S:g} s"
            return await self._refuse(f"{sentence}.", "timeout", 408, linger=False)
        if message["type"] != "http.request":
            self._whole = True
            return message
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            return await self._refuse(too_large(self._limit), "too_large", 413, linger=True)
        self._whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Pass on what the application answers, unless the client has its answer."""
        if not self.refused:
            self._started = True
            await self._send(message)

    async def _refuse(self, sentence: str, reason: str, status: int, *, linger: bool) -> Message:
        self.refused = True
        if not self._started:
            await refuse(
                self._receive,
                self._send,
                self._path,
                sentence,
                reason,
                status,
                close=True,
                linger=linger,
            )
        return dict(_LEFT)


def too_large(limit: int) -> str:
    """The sentence for a body over the limit."""
    return f"The request's body is larger than {limit} bytes, which AIBS_API_MAX_BODY_BYTES allows."


async def refuse(
    receive: Receive,
    send: Send,
    path: str,
    sentence: str,
    reason: str,
    status: int,
    *,
    retry_after_ms: int | None = None,
    headers: Mapping[str, str] | None = None,
    close: bool,
    linger: bool,
) -> None:
    """Answer with an error in the client's format. `close` ends the connection; `linger` takes from
    the client what it is still sending before that.
    """
    more = {**(headers or {}), "connection": "close"} if close else headers
    answer = error_response(path, sentence, reason, status, retry_after_ms, more)
    start = {"type": "http.response.start", "status": status, "headers": list(answer.raw_headers)}
    await send(start)
    await send({"type": "http.response.body", "body": bytes(answer.body), "more_body": linger})
    if not linger:
        return
    read = 0
    try:
        async with asyncio.timeout(LINGER_S):
            while read < LINGER_BYTES:
                message = await receive()
                read += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    break
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})
