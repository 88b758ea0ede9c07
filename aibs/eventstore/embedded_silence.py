"""Whether somebody listens at a Unix socket who does not answer: a paused server is no absent one.

A connection to a socket is taken up by the kernel, whatever the process behind it does.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import TYPE_CHECKING

from aibs.errors import CoordinationUnavailable

if TYPE_CHECKING:
    from pathlib import Path

MACOS_SOL_LOCAL = 0
MACOS_LOCAL_PEERPID = 2


def refusal(path: Path, data_dir: Path, waited_s: float) -> CoordinationUnavailable | None:
    """What to raise where a server listens there and answered nothing; None where none listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            # Its queue is full of others who wait for an answer.
            pid = 0
        except OSError:
            return None
        else:
            pid = _listener(probe)
    which = f" (process {pid})" if pid else ""
    if not pid:
        look = f"Look for its process: it serves {path}."
    else:
        look = (
            f"`ps -o stat= -p {pid}` shows T where it is paused: `kill -CONT {pid}` resumes it. "
            f"`kill -KILL {pid}` ends it, and whoever needs it starts it anew."
        )
    return CoordinationUnavailable(
        f"The embedded Valkey of {data_dir} runs{which} and did not answer within {waited_s:g} s.",
        mend=f"{look} Its log is {data_dir / 'valkey.log'}.",
    )


def _listener(connected: socket.socket) -> int:
    """The process that listens at the other end; 0 where the system does not tell."""
    try:
        if sys.platform == "darwin":
            return connected.getsockopt(MACOS_SOL_LOCAL, MACOS_LOCAL_PEERPID)
        told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, _, _ = struct.unpack("3i", told)
    except (OSError, AttributeError):
        return 0
    return int(pid)
