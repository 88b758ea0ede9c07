"""The demo's monitors: real processes, ended on every way out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

GRACE_S = 3.0


class MonitorProcess:
    """One `aibs monitor` as a child. Its log goes to a file of the demo's directory."""

    def __init__(self, name: str, environment: Mapping[str, str], log_file: Path) -> None:
        self.name = name
        self._environment = environment
        self._log_file = log_file
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._log_file.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "aibs",
                "monitor",
                env=self._whole_environment(),
                cwd=self._log_file.parent,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C in the terminal is for the demo, which ends its children itself.
                start_new_session=True,
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(GRACE_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _whole_environment(self) -> dict[str, str]:
        # This machine's own settings may name a real pool, where the demo has no business.
        inherited = {n: v for n, v in os.environ.items() if not n.startswith("AIBS_")}
        return {**inherited, **self._environment}

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._process is not None
        return self._process.pid

    async def kill(self) -> None:
        """`kill -9`: no chance to give the term back."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def failure(self) -> str | None:
        """The last lines of a child that ended by itself, None while it runs."""
        if self._process is None or self._process.returncode is None:
            return None
        tail = self._log_file.read_text("utf-8", "replace").strip().splitlines()[-3:]
        return f"monitor {self.name} ended with {self._process.returncode}: " + " / ".join(tail)
