"""The embedded server: a real Valkey of one data directory, alive while somebody holds it.

A small supervisor starts the server and reads a FIFO that every holder keeps open for writing. The
kernel closes the files of a dead process, so at the FIFO's end no holder is left, however they
ended, and the supervisor stops the server. The last holder to leave in good order records the
clean stop in each pool and stops the server itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError

from aibs.errors import CoordinationUnavailable
from aibs.eventstore.cancellation import ValkeyClient
from aibs.eventstore.clean_stop import record_clean_stop
from aibs.eventstore.commands import commands
from aibs.eventstore.embedded_binary import find_binary
from aibs.eventstore.embedded_files import (
    DataDirectory,
    open_lock,
    starting,
    try_lock,
    wait_lock,
)
from aibs.eventstore.embedded_silence import refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aibs.eventstore.commands import Commands

START_TIMEOUT_S = 60.0
"""A long log takes a while to load."""

STOP_TIMEOUT_S = 20.0
PING_TIMEOUT_S = 2.0
POLL_S = 0.02

# Standard input is the FIFO. A background job would lose it, so it moves to 3; the server must not
# have it, or its own end would never be seen by joiners. 9 is the server lock, kept by all.
_SUPERVISOR = """
exec 3<&0
"$1" "$2" </dev/null 3<&- &
server=$!
( cat <&3 >/dev/null; kill -TERM "$server" 2>/dev/null ) 9<&- &
reader=$!
exec 3<&-
wait "$server"
status=$?
kill "$reader" 2>/dev/null
exit "$status"
"""


def _client(socket: Path) -> ValkeyClient:
    client = ValkeyClient(
        unix_socket_path=str(socket),
        protocol=2,
        socket_timeout=None,
        socket_connect_timeout=PING_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        single_connection_client=False,
    )
    client.answer_timeout_s = PING_TIMEOUT_S
    return client


async def _answers(socket: Path) -> str:
    """`ready`, `loading`, or empty where nobody answers at the socket."""
    client = _client(socket)
    try:
        await client.ping()
    except BusyLoadingError:
        return "loading"
    except (RedisError, OSError, TimeoutError):
        return ""
    finally:
        await client.aclose()
    return "ready"


async def find(data_dir: Path) -> Path | None:
    """The socket of the server that runs for a data directory; None where none does.

    Starts nothing, writes nothing, and believes no file that is left over: it asks the server.
    Raises CoordinationUnavailable where one runs and does not answer.
    """
    directory = DataDirectory.of(data_dir)
    socket = directory.socket()
    if socket is None:
        return None
    if not await _answers(socket):
        silent = refusal(socket, directory.path, PING_TIMEOUT_S)
        if silent is not None:
            raise silent
        return None
    return socket


_supervisors: list[subprocess.Popen[bytes]] = []
"""Those that this process started. They may outlive their holder, and are reaped at the next."""


class EmbeddedValkey:
    """A hold on the embedded server of a data directory."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._fifo: int | None = None
        self._holders: int | None = None
        self._reviving = asyncio.Lock()
        self.socket_path = Path()

    @classmethod
    async def ensure(cls, data_dir: Path) -> EmbeddedValkey:
        """Start the server, or join the one that runs; held until `close` or the process's end.

        Raises ConfigurationError (no server binary, an unusable directory),
        CoordinationUnavailable (the server does not come up).
        """
        directory = DataDirectory.of(data_dir)
        directory.create()
        held = cls(directory)
        await held._hold()
        return held

    async def revive(self) -> None:
        """Start or join again where the server died, or another holder has started it anew."""
        async with self._reviving:
            if not self._held_now() or not await _answers(self.socket_path):
                self._drop()
                await self._hold()

    def _held_now(self) -> bool:
        """Whether the running server is the one that our hold keeps alive."""
        if self._fifo is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._fifo), self._directory.fifo.stat())
        except OSError:
            return False

    async def close(
        self, before_stop: Callable[[Commands], Awaitable[None]] = record_clean_stop
    ) -> None:
        """Let go. The last holder runs `before_stop`, stops the server and removes its files."""
        if self._holders is None:
            return
        async with starting(self._directory, timeout_s=STOP_TIMEOUT_S):
            # A shared lock turns into an exclusive one only where no other holder has it.
            last = try_lock(self._holders)
            try:
                if last and await _answers(self.socket_path) == "ready":
                    await self._stop(before_stop)
            finally:
                self._drop()
            if last:
                await self._wait_stopped()
                self._directory.forget()

    async def _stop(self, before_stop: Callable[[Commands], Awaitable[None]]) -> None:
        client = _client(self.socket_path)
        try:
            await before_stop(commands(client))
            await client.shutdown(nosave=True)
        except (RedisError, OSError, TimeoutError) as error:
            raise CoordinationUnavailable(
                f"The embedded Valkey in {self._directory.path} does not stop cleanly: {error}."
            ) from error
        finally:
            await client.aclose()

    async def _wait_stopped(self) -> None:
        descriptor = open_lock(self._directory.server_lock)
        try:
            await wait_lock(
                descriptor,
                f"The embedded Valkey in {self._directory.path}",
                timeout_s=STOP_TIMEOUT_S,
            )
        finally:
            os.close(descriptor)

    async def _hold(self) -> None:
        started = False
        async with starting(self._directory, timeout_s=START_TIMEOUT_S):
            try:
                if not await self._join():
                    started = True
                    await self._start()
                self._holders = open_lock(self._directory.holders_lock)
                try_lock(self._holders, shared=True)
            except BaseException:
                self._drop()
                if started:
                    # Cut short, by a Ctrl-C say: what was begun is undone before we go.
                    with contextlib.suppress(CoordinationUnavailable):
                        await self._wait_stopped()
                        self._directory.forget()
                raise

    async def _join(self) -> bool:
        socket = self._directory.socket()
        if socket is None:
            return False
        try:
            self._fifo = os.open(self._directory.fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # Nobody reads it. A server that answers all the same lost its supervisor: it stops.
            if await _answers(socket):
                self.socket_path = socket
                await self._stop(record_clean_stop)
            return False
        if not await self._wait_ready(socket):
            self._drop()
            return False
        self.socket_path = socket
        return True

    async def _wait_ready(self, socket: Path) -> bool:
        """Wait while the server loads its log; False where it does not answer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while loop.time() < deadline:
            answer = await _answers(socket)
            if answer != "loading":
                return answer == "ready"
            await asyncio.sleep(POLL_S)
        return False

    async def _start(self) -> None:
        binary = find_binary()
        directory = self._directory
        server_lock = open_lock(directory.server_lock)
        reader: int | None = None
        try:
            await self._outlive(server_lock)
            socket = directory.choose_socket()
            directory.write(socket)
            directory.fifo.unlink(missing_ok=True)
            os.mkfifo(directory.fifo, 0o600)
            # Reader first, then writer, in this process: were we killed here, the supervisor would
            # find the FIFO at its end instead of waiting for a holder that never comes.
            reader = os.open(directory.fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._fifo = os.open(directory.fifo, os.O_WRONLY | os.O_CLOEXEC)
            os.set_blocking(reader, True)
            supervisor = _spawn(binary, directory, reader, server_lock)
        finally:
            os.close(server_lock)
            if reader is not None:
                os.close(reader)
        await self._wait_up(socket, supervisor)
        self.socket_path = socket

    async def _outlive(self, server_lock: int) -> None:
        """Wait until an older server is gone. Raises CoordinationUnavailable where it stays."""
        directory = self._directory
        try:
            await wait_lock(
                server_lock, f"An older server of {directory.path}", timeout_s=STOP_TIMEOUT_S
            )
        except CoordinationUnavailable as error:
            socket = directory.socket()
            silent = None if socket is None else refusal(socket, directory.path, STOP_TIMEOUT_S)
            if silent is not None:
                raise silent from error
            raise

    async def _wait_up(self, socket: Path, supervisor: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while await _answers(socket) != "ready":
            status = supervisor.poll()
            if status is not None or loop.time() >= deadline:
                how = "did not start" if status is not None else "takes too long to start"
                raise CoordinationUnavailable(
                    f"The embedded Valkey in {self._directory.path} {how}: "
                    f"{self._directory.log_tail()}.",
                    mend=f"Look at {self._directory.log}.",
                )
            await asyncio.sleep(POLL_S)

    def _drop(self) -> None:
        for descriptor in (self._fifo, self._holders):
            if descriptor is not None:
                os.close(descriptor)
        self._fifo = self._holders = None


def _spawn(
    binary: Path, directory: DataDirectory, reader: int, server_lock: int
) -> subprocess.Popen[bytes]:
    """Start the supervisor in a session of its own: a Ctrl-C in the terminal is not for it."""
    lock = 9

    def place_lock() -> None:
        os.dup2(server_lock, lock, inheritable=True)

    _supervisors[:] = [older for older in _supervisors if older.poll() is None]
    supervisor = subprocess.Popen(  # noqa: S603 - our own script and the binary that we found
        ["/bin/sh", "-c", _SUPERVISOR, "aibs-embedded", str(binary), str(directory.configuration)],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(lock,),
        preexec_fn=place_lock,  # noqa: PLW1509 - only dup2, before exec
        cwd=directory.path,
    )
    _supervisors.append(supervisor)
    return supervisor
