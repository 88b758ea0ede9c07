"""The files of an embedded server: its data directory, its configuration, its locks."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aibs.codec import dumps_text, loads
from aibs.errors import ConfigurationError, CoordinationUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SOCKET_PATH_MAX = 100
"""Below what a socket address holds on macOS (104 bytes) and Linux (108)."""

LOG_MAX_BYTES = 10_000_000
LOCK_POLL_S = 0.05

_CONFIGURATION = """\
port 0
unixsocket {socket}
unixsocketperm 700
dir {directory}
appendonly yes
appendfsync everysec
aof-load-truncated yes
save ""
maxmemory-policy noeviction
logfile {log}
loglevel notice
daemonize no
"""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Where one embedded server keeps what it has."""

    path: Path

    @classmethod
    def of(cls, data_dir: Path) -> DataDirectory:
        """By its full path, so that holders in different working directories share it."""
        return cls(Path(data_dir).absolute())

    @property
    def configuration(self) -> Path:
        return self.path / "valkey.conf"

    @property
    def log(self) -> Path:
        return self.path / "valkey.log"

    @property
    def fifo(self) -> Path:
        """Held open for writing by every process that needs the server."""
        return self.path / "holders.fifo"

    @property
    def holders_lock(self) -> Path:
        """Locked shared by every holder: who can lock it alone is the last one."""
        return self.path / "holders.lock"

    @property
    def start_lock(self) -> Path:
        """Locked while somebody starts, joins or stops the server."""
        return self.path / "start.lock"

    @property
    def server_lock(self) -> Path:
        """Locked by the server's own processes for as long as one of them lives."""
        return self.path / "server.lock"

    @property
    def address(self) -> Path:
        """Names the socket."""
        return self.path / "server.json"

    def create(self) -> None:
        """Make the directory, readable by its owner only. Raises ConfigurationError."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise ConfigurationError(
                f"AIBS_DATA_DIR {self.path} cannot be used: {error.strerror}.",
                mend="Name a directory that this user may write to.",
            ) from error

    def socket(self) -> Path | None:
        """The socket that was last written down, None where there is none."""
        try:
            document = loads(self.address.read_bytes())
            return Path(document["socket"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def choose_socket(self) -> Path:
        """The socket to serve on: in the directory, or in a private short one where that path is
        too long for a socket address. The same again after a restart, so that clients find back.
        """
        here = self.path / "valkey.sock"
        if len(os.fsencode(here)) <= SOCKET_PATH_MAX:
            return here
        before = self.socket()
        if before is not None and _is_private(before.parent):
            return before
        return Path(tempfile.mkdtemp(prefix="aibs-")) / "valkey.sock"

    def write(self, socket: Path) -> None:
        """Write configuration and address, and bound the log. Raises ConfigurationError."""
        text = _CONFIGURATION.format(
            socket=_quoted(socket), directory=_quoted(self.path), log=_quoted(self.log)
        )
        try:
            self.configuration.write_text(text)
            self.address.write_text(dumps_text({"socket": str(socket)}))
            if self.log.exists() and self.log.stat().st_size > LOG_MAX_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))
        except OSError as error:
            raise ConfigurationError(
                f"AIBS_DATA_DIR {self.path} cannot be written: {error.strerror}.",
                mend="Free space there, or name another directory.",
            ) from error

    def forget(self) -> None:
        """Remove what only a running server needs; its data stays."""
        socket = self.socket()
        for file in (socket, self.fifo, self.address, self.configuration):
            if file is not None:
                file.unlink(missing_ok=True)
        if socket is not None and socket.parent != self.path:
            with contextlib.suppress(OSError):
                socket.parent.rmdir()

    def log_tail(self) -> str:
        """The log's last lines, for an error."""
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return " / ".join(line.strip() for line in lines[-3:])


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _is_private(directory: Path) -> bool:
    try:
        status = directory.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o077


def open_lock(path: Path) -> int:
    """A file descriptor to lock. Raises ConfigurationError where it cannot be opened."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be opened: {error.strerror}.",
            mend="Make AIBS_DATA_DIR writable for this user, or name another directory.",
        ) from error


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take the lock if nobody stands in the way."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


async def wait_lock(descriptor: int, what: str, *, timeout_s: float) -> None:
    """Take the lock alone, waiting for it. Raises CoordinationUnavailable after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not try_lock(descriptor):
        if loop.time() >= deadline:
            raise CoordinationUnavailable(
                f"{what} is still in the way after {timeout_s:g} s.",
                mend="Look at valkey.log in AIBS_DATA_DIR, or name another directory.",
            )
        await asyncio.sleep(LOCK_POLL_S)


@contextlib.asynccontextmanager
async def starting(directory: DataDirectory, *, timeout_s: float) -> AsyncIterator[None]:
    """Hold the start lock: one process at a time starts, joins or stops the server."""
    descriptor = open_lock(directory.start_lock)
    try:
        await wait_lock(descriptor, f"Another start in {directory.path}", timeout_s=timeout_s)
        yield
    finally:
        os.close(descriptor)
