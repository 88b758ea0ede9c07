"""Who a holder is: a process on a host, told apart from its successors and its neighbours."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aibs.errors import AibsError
from aibs.placement.values import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PROC = Path("/proc")
_HAS_PROC = (_PROC / "self/stat").exists()
_COMMAND_TIMEOUT_S = 5.0
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's fixed number of the first pid namespace."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._:/\[\]-]")
_STARTTIME = 19
"""Place of `starttime` behind the command's closing parenthesis in /proc/<pid>/stat (field 22)."""

_DEAD_STATES = ("Z", "X")


class UnknownProcess(AibsError):
    """This machine does not say when a process began."""


def open_identity(environment: str, role: str) -> Session:
    """The session of this process, with a holder name that no restart and no fork repeats.

    Raises UnknownProcess where the machine hides this process's own start.
    """
    host, pid = host_name(), os.getpid()
    started = process_start(pid)
    if started is None:
        raise UnknownProcess(
            f"The start time of process {pid} cannot be read on {host}.",
            mend="Mount /proc, or install ps.",
        )
    return Session(
        holder=f"{host.partition('/')[0]}:{pid}:{role}:{secrets.token_hex(4)}",
        environment=environment,
        host=host,
        boot_id=boot_id(),
        pid=pid,
        pid_start=started,
    )


def is_dead(
    session: Session,
    here: Session,
    *,
    start_of: Callable[[int], int | None] | None = None,
    exists: Callable[[int], bool] | None = None,
) -> bool:
    """Whether the holder of `session` is surely gone, as seen from the process of `here`.

    Only of the same host is anything known: another boot, no such process, or one that began at
    another time. What cannot be read is not dead: its leases end by their deadlines.
    """
    if session.host != here.host or session.holder == here.holder:
        return False
    if session.boot_id != here.boot_id:
        return True
    if not (exists or process_exists)(session.pid):
        return True
    started = (start_of or process_start)(session.pid)
    return started is not None and started != session.pid_start


def dead_among(sessions: Iterable[Session], here: Session) -> tuple[str, ...]:
    """The holders that are surely gone, of those that the pool knows."""
    return tuple(session.holder for session in sessions if is_dead(session, here))


def host_name() -> str:
    """The host, with the pid namespace where that is not the machine's first.

    Containers may share a host name and not see each other's processes: to one the other would
    look dead.
    """
    name = _UNSAFE.sub("-", socket.gethostname()) or "localhost"
    try:
        namespace = str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return name
    return name if namespace == _INITIAL_PID_NAMESPACE else f"{name}/{namespace}"


def boot_id() -> str:
    """What changes with each boot. Raises UnknownProcess where the machine does not tell."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        pass
    for name in ("kern.bootsessionuuid", "kern.boottime"):
        told = _output(["sysctl", "-n", name])
        if told:
            # kern.boottime ends in a date for people, in the zone of the moment.
            return told.partition("}")[0].replace(" ", "")
    raise UnknownProcess("This machine has no boot id.", mend="Mount /proc, or install sysctl.")


def process_exists(pid: int) -> bool:
    """Whether a living process has that number; one of another user's counts."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    # One that ended and was not waited for keeps its number, and does nothing any more.
    return _state(pid) not in _DEAD_STATES


def process_start(pid: int) -> int | None:
    """When a process began: clock ticks since the boot on Linux, seconds since the epoch
    elsewhere; None where it cannot be read.
    """
    if _HAS_PROC:
        fields = _stat(pid)
        return int(fields[_STARTTIME]) if len(fields) > _STARTTIME else None
    return _parse_lstart(_output(["ps", "-o", "lstart=", "-p", str(pid)]))


def _parse_lstart(text: str) -> int | None:
    """`Tue Dec  1 16:34:29 2026`, in UTC, as seconds since the epoch."""
    import calendar

    try:
        return calendar.timegm(time.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from `state` on: the command before them may hold anything."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _state(pid: int) -> str:
    if _HAS_PROC:
        return (_stat(pid) or [""])[0]
    return _output(["ps", "-o", "state=", "-p", str(pid)])[:1]


def _output(command: list[str]) -> str:
    """What a command of the system prints; empty where it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands, a number for an argument
            command,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=True,
            # Names of days and the zone as _parse_lstart reads them.
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
