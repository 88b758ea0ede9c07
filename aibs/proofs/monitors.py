"""The monitors of a proof: real `aibs monitor` processes, killed, stopped and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Self

from aibs.errors import AibsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

GRACE_S = 5.0


class MonitorEnded(AibsError):
    """A monitor of the proof ended by itself."""


class Monitor:
    """One monitor with this whole environment, whose log goes into `directory`; it runs in `cwd`,
    whose .env it reads. Ended on every way out.
    """

    def __init__(
        self, name: str, environment: Mapping[str, str], directory: Path, cwd: Path
    ) -> None:
        self.name = name
        self.environment = environment
        self._cwd = cwd
        self._stderr = directory / f"monitor-{name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self.killed = False

    async def __aenter__(self) -> Self:
        with self._stderr.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "aibs", "monitor"),
                env=dict(self.environment),
                cwd=self._cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
                # A Ctrl-C in the terminal is for the proof, which ends its children itself.
                start_new_session=True,
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.running:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE_S):
                await self._wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._wait()

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing where it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def kill(self) -> None:
        """`kill -9`: it has no chance to give the term back."""
        self.killed = True
        self.signal(signal.SIGKILL)
        await self._wait()

    def lines(self) -> list[str]:
        """What it wrote so far."""
        try:
            return self._stderr.read_text("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []

    def check(self) -> None:
        """Raises MonitorEnded where it ended without being killed."""
        if self._process is None or self._process.returncode is None or self.killed:
            return
        tail = " / ".join(self.lines()[-3:]) or "it said nothing"
        raise MonitorEnded(f"Monitor {self.name} ended with {self._process.returncode}: {tail}.")

    async def _wait(self) -> None:
        assert self._process is not None
        await self._process.wait()
