"""A real `aibs serve` process, with what it logs and what it holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from aibs.codec import loads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

READY_S = 40.0
LOOK_EVERY_S = 0.01


class ServeProcess:
    """Killed, whatever state it is in, at the end of its block; a traceback in its log is a fault.

    `expected` are texts of lines that may hold one; `module` has the command.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        directory: Path,
        name: str = "gateway",
        arguments: Sequence[str] = (),
        *,
        wait: bool = True,
        expected: Sequence[str] = (),
        module: str = "aibs",
    ) -> None:
        self._settings = dict(settings)
        self._directory = directory
        self._log = directory / f"{name}.log"
        self._arguments = tuple(arguments)
        self._wait = wait
        self._expected = tuple(expected)
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None

    def __enter__(self) -> Self:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIBS_")}
        if self._module != "aibs":
            inherited["PYTHONPATH"] = str(Path(__file__).parents[2])
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, "serve", "--port", "0", *self._arguments],
                env={**inherited, **self._settings},
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if self._wait:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        assert not self.tracebacks(), self.tracebacks()

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        assert self._process is not None
        return self._process.poll() is None

    @property
    def url(self) -> str:
        """Where it serves."""
        assert self._port is not None
        return f"http://127.0.0.1:{self._port}"

    def wait_ready(self) -> None:
        """Until it listens."""
        deadline = time.monotonic() + READY_S
        while True:
            started = [line for line in self.lines() if line.get("event") == "gateway_started"]
            if started:
                self._port = int(started[0]["port"])
                return
            assert self.running, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(LOOK_EVERY_S)

    def signal(self, number: signal.Signals) -> None:
        """Send it one."""
        assert self._process is not None
        self._process.send_signal(number)

    def ended(self, timeout_s: float = READY_S) -> int:
        """Its exit status, once it ended by itself."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, whether it runs or stands."""
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def output(self) -> str:
        """All that it printed."""
        return self._log.read_text("utf-8", "replace")

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """Its log lines; those of one event only."""
        found = []
        for text in self.output().splitlines():
            try:
                line = loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and event in (None, line.get("event")):
                found.append(line)
        return found

    def tracebacks(self) -> list[str]:
        """Lines that should not be."""
        return [
            text
            for text in self.output().splitlines()
            if ("Traceback" in text or "never retrieved" in text)
            and not any(one in text for one in self._expected)
        ]

    def rss_bytes(self) -> int:
        """What of its memory is resident."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def files(self) -> int:
        """How many files and sockets it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
