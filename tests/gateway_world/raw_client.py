"""An HTTP client of plain sockets: it gets what was on the wire, and leaves as it is told.

It reads one answer a connection, chunk by chunk, and never guesses: a body that ends without its
framing's end is not `whole`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

PATIENCE_S = 30.0
"""Only a hang reaches it."""

READ = 1 << 16


@dataclass
class Answer:
    """`whole`: the framing's own end was there."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False

    def header(self, name: str) -> str | None:
        """The one header of that name; an error where there are several."""
        found = [value for key, value in self.headers if key.lower() == name]
        assert len(found) < 2, f"{name} is there {len(found)} times"
        return found[0] if found else None

    @property
    def framing(self) -> str:
        """How the body's end is told."""
        if self.header("transfer-encoding") is not None:
            return "chunked"
        return "length" if self.header("content-length") is not None else "close"


def post_bytes(
    path: str, body: bytes, headers: Sequence[tuple[str, str]] = (), *, host: str = "127.0.0.1"
) -> bytes:
    """A request on the wire."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    if not any(name.lower() == "content-type" for name, _ in headers):
        lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def direct(base_url: str, request: bytes) -> Answer:
    """The whole answer to a request."""
    with RawClient(base_url) as client:
        client.send(request)
        return client.answer()


class RawClient:
    """One connection. Left, it is closed."""

    def __init__(self, base_url: str, *, receive_bytes: int | None = None) -> None:
        parts = urlsplit(base_url)
        self._socket = socket.socket()
        if receive_bytes is not None:
            # Before the connection is made: the window is agreed on then.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(PATIENCE_S)
        try:
            self._socket.connect((parts.hostname or "", parts.port or 80))
        except BaseException:
            self._socket.close()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self._answer: Answer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def socket(self) -> socket.socket:
        """The connection itself."""
        return self._socket

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._socket.sendall(data)

    def close(self) -> None:
        """Leave, in good order."""
        self._socket.close()

    def reset(self) -> None:
        """Leave as a killed process does that had bytes unread."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def half_close(self) -> None:
        """Say that nothing more is sent, and go on reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def head(self) -> Answer:
        """Status and headers, as soon as they are there."""
        if self._answer is not None:
            return self._answer
        while b"\r\n\r\n" not in self._unread:
            if not self._more():
                raise ConnectionResetError(f"no answer, but {self._unread!r}")
        raw, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")
        pairs = [line.partition(":") for line in lines]
        headers = [(name, value.strip()) for name, _, value in pairs]
        self._answer = Answer(int(first.split(" ")[1]), headers)
        return self._answer

    def piece(self) -> bytes:
        """The next chunk, or what came of a body with a length; empty at its end."""
        answer = self.head()
        if answer.whole:
            return b""
        if answer.framing == "chunked":
            return self._chunk(answer)
        left = int(answer.header("content-length") or 1 << 62) - len(answer.body)
        if left and not self._unread and not self._more():
            answer.whole = answer.framing == "close"
            return b""
        found, self._unread = self._unread[:left], self._unread[left:]
        answer.body += found
        answer.whole = answer.framing == "length" and len(found) == left
        return found

    def until(self, size: int) -> bytes:
        """The body so far, once it has that many bytes."""
        answer = self.head()
        while len(answer.body) < size:
            if not self.piece():
                raise AssertionError(
                    f"ended after {len(answer.body)} bytes: {answer.body[-300:]!r}"
                )
        return answer.body

    def answer(self) -> Answer:
        """All of it, to its end or the connection's."""
        answer = self.head()
        while self.piece():
            pass
        return answer

    def _chunk(self, answer: Answer) -> bytes:
        while b"\r\n" not in self._unread:
            if not self._more():
                return b""
        line, _, rest = self._unread.partition(b"\r\n")
        size = int(line, 16)
        while len(rest) < size + 2:
            self._unread = b""
            if not self._more():
                # A chunk that was cut: what came of it, came.
                answer.body += rest[:size]
                return b""
            rest += self._unread
        assert rest[size : size + 2] == b"\r\n", rest[size : size + 2]
        self._unread = rest[size + 2 :]
        answer.body += rest[:size]
        answer.whole = size == 0
        return rest[:size]

    def _more(self) -> bool:
        try:
            data = self._socket.recv(READ)
        except ConnectionResetError:
            return False
        self._unread += data
        return bool(data)
