"""A TCP proxy in front of a server, which loses what a network loses."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from types import TracebackType

Mode = Literal["pass", "drop_replies", "cut", "hold"]

CHUNK = 65_536


class TcpProxy:
    """Passes bytes both ways. `mode` may be changed at any moment; `upstream`, the server's port,
    counts for new connections.

    `drop_replies`: requests arrive, answers do not; the connection closes with the first one lost.
    `cut`: every connection closes and new ones are refused at once.
    `hold`: nothing passes in either direction, and connections stay open.
    `reply_delay_s` slows every answer.
    """

    def __init__(self, port: int) -> None:
        self.upstream = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._mode: Mode = "pass"
        self._gate = _open_gate()
        self.replies_dropped = 0
        self.reply_delay_s = 0.0
        self.held = 0
        self._reply_bytes_left: int | None = None
        self._replies_go_on = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_all()

    @property
    def url(self) -> str:
        """The proxy's address as a coordination URL."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "hold":
            self._passing.clear()
        else:
            self._passing.set()
        if mode == "cut":
            self._close_all()

    def hold_present(self) -> asyncio.Event:
        """Hold the connections that there are; later ones pass, and overtake. Set it to end that.

        `held` counts the pieces that wait.
        """
        gate, self._gate = self._gate, _open_gate()
        gate.clear()
        return gate

    def hold_replies_after(self, count: int) -> asyncio.Event:
        """Pass so many bytes of replies from now on, then none. Set it to end that."""
        self._reply_bytes_left = count
        self._replies_go_on = asyncio.Event()
        return self._replies_go_on

    def _close_all(self) -> None:
        for writer in tuple(self._writers):
            writer.close()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "cut":
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:
            writer.close()
            self._tasks.discard(task)
            return
        self._writers.add(up_writer)
        gate = self._gate
        pumps = (
            asyncio.ensure_future(self._pump(reader, up_writer, gate, replies=False)),
            asyncio.ensure_future(self._pump(up_reader, writer, gate, replies=True)),
        )
        try:
            # Ended by a cancellation as by anything else: the streams' own callback would log it.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, up_writer):
                end.close()
                self._writers.discard(end)
            self._tasks.discard(task)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        gate: asyncio.Event,
        *,
        replies: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                self.held += 1
                try:
                    await self._passing.wait()
                    await gate.wait()
                finally:
                    self.held -= 1
                if replies and self._mode == "drop_replies":
                    self.replies_dropped += 1
                    return
                if replies and self.reply_delay_s:
                    await asyncio.sleep(self.reply_delay_s)
                if replies and self._reply_bytes_left is not None:
                    passed, data = data[: self._reply_bytes_left], data[self._reply_bytes_left :]
                    self._reply_bytes_left -= len(passed)
                    sink.write(passed)
                    if data:
                        await self._replies_go_on.wait()
                        self._reply_bytes_left = None
                sink.write(data)
                await sink.drain()


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate
