"""A real Valkey that a test may kill, pause, restart, flush and set back."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from redis import Redis
from redis.exceptions import BusyLoadingError, RedisError

from aibs.eventstore.embedded_binary import find_binary

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

READY_S = 20.0
START_ATTEMPTS = 3


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _call(client: Redis, *command: str | int) -> Any:
    # redis-py leaves the method unannotated.
    return cast("Any", client).execute_command(*command)


class ValkeyServer:
    """One server process on a TCP port, append-only, in a directory of its own."""

    def __init__(self, *, cluster: bool = False, options: Sequence[str] = ()) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="aibs-valkey-"))
        self._options = tuple(options)
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def __enter__(self) -> Self:
        for attempt in range(START_ATTEMPTS):
            try:
                self.start()
            except AssertionError:
                # Between our look and the server's, another process may have taken the port.
                self.kill()
                if attempt + 1 == START_ATTEMPTS or "Address already in use" not in self.log():
                    raise
                self.port = free_port()
            else:
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        scheme = "redis+cluster" if self._cluster else "redis"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self) -> Redis:
        """A plain client of this very server."""
        return Redis(host="127.0.0.1", port=self.port, socket_timeout=10)

    def start(self) -> None:
        """Start it and wait until it answers."""
        arguments = [
            str(find_binary()),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
            *("--logfile", str(self._directory / "log"), "--daemonize", "no"),
        ]
        if self._cluster:
            # Its own bus port: the default, 10,000 above, may lie beyond the last port.
            arguments += ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
        self._process = subprocess.Popen(
            [*arguments, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait_ready()
        if self._cluster:
            self._take_all_slots()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        with contextlib.closing(self.client()) as client:
            while True:
                assert self._process is not None
                assert self._process.poll() is None, self.log()
                try:
                    client.ping()
                except (RedisError, BusyLoadingError):
                    assert time.monotonic() < deadline, f"no answer: {self.log()}"
                    time.sleep(0.01)
                else:
                    return

    def _take_all_slots(self) -> None:
        with contextlib.closing(self.client()) as client:
            if _call(client, "CLUSTER INFO")["cluster_slots_assigned"] != "16384":
                _call(client, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            deadline = time.monotonic() + READY_S
            while _call(client, "CLUSTER INFO")["cluster_state"] != "ok":
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def log(self) -> str:
        """What the server wrote into its log."""
        path = self._directory / "log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def kill(self) -> None:
        """SIGKILL: no chance to write anything."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait: the file is complete afterwards."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(READY_S)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """End it in good order and start it on the same data and port."""
        self.stop()
        self.start()

    def save_files(self) -> Path:
        """A copy of the append-only files as they are, to be restored later."""
        with contextlib.closing(self.client()) as client:
            _call(client, "WAITAOF", 1, 0, 5000)
        kept = self._directory / "kept"
        shutil.copytree(self._directory / "appendonlydir", kept, dirs_exist_ok=True)
        return kept

    def restore_files(self, kept: Path) -> None:
        """End it, put the older files in place, start it: a restore from a backup."""
        self.kill()
        shutil.rmtree(self._directory / "appendonlydir")
        shutil.copytree(kept, self._directory / "appendonlydir")
        self.start()
