"""One child: started, heard line by line, ended on every way out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from typing import TYPE_CHECKING, Self

from aibs.children.leash import TIED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

TAIL_LINES = 20
LINE_BYTES_MAX = 64 * 1024
"""A longer line is passed on in pieces."""

LAST_WORDS_S = 2.0
"""How long the rest of its output is waited for, once it ended."""


class Child:
    """`aibs <arguments>` with this whole environment in `cwd`. `hear` gets each line it prints.

    `grace_s` is how long it may take to end: told by us, or by itself where this process is gone.
    `pass_fds` are open files that it inherits.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        grace_s: float,
        hear: Callable[[str], None] = lambda _line: None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.killed = False
        self._arguments = tuple(arguments)
        self._environment = environment
        self._grace_s = grace_s
        self._hear = hear
        self._cwd = cwd
        self._pass_fds = tuple(pass_fds)
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.ReadTransport | None = None
        self._hearing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # The child holds the reading end too. Were we killed, it would else meet a broken pipe in
        # the moment before it learns that we are gone.
        reading, writing = os.pipe()
        lines = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb", buffering=0)
        )
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "aibs", *self._arguments),
                env={**self._environment, TIED: str(self._grace_s)},
                cwd=self._cwd,
                stdin=asyncio.subprocess.PIPE,
                stdout=writing,
                stderr=writing,
                pass_fds=(reading, *self._pass_fds),
                start_new_session=True,
            )
        except BaseException:
            transport.close()
            raise
        finally:
            os.close(writing)
        self._output = transport
        self._hearing = asyncio.create_task(self._listen(lines), name=f"lines of {self.name}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.end()

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended, None while it runs: its exit status, or minus the signal's number."""
        return None if self._process is None else self._process.returncode

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing where it is gone."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9` for it and its group: no chance to give anything back."""
        self.killed = self.killed or self.running
        self._kill_group()

    async def wait(self) -> int:
        """Wait until it ended and everything that it printed was heard. Returns its status."""
        assert self._process is not None
        status = await self._process.wait()
        # What it left of its group would keep its port and its output open.
        self._kill_group()
        if self._hearing is not None:
            await asyncio.wait({self._hearing}, timeout=LAST_WORDS_S)
        return status

    async def end(self) -> None:
        """SIGTERM, and where that does not end it in its time SIGKILL. May be repeated."""
        if self._process is None:
            return
        try:
            # One that was stopped would not hear of it.
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._grace_s):
                    await self._process.wait()
            except TimeoutError:
                self.kill()
            await self.wait()
        except asyncio.CancelledError:
            self.kill()
            raise
        finally:
            await self._deafen()

    def last_words(self, lines: int = 3) -> str:
        """Its last lines, for an error."""
        return " / ".join(list(self.tail)[-lines:]) or "it said nothing"

    def _kill_group(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await reader.read(LINE_BYTES_MAX):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._heard(line)
        if rest:
            self._heard(rest)

    async def _deafen(self) -> None:
        if self._hearing is not None and self._output is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
            self._output.close()

    def _heard(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self.tail.append(text)
        self._hear(text)
