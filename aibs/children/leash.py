"""The child's side: it ends when its standard input closes, as it does when the parent is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

TIED = "_AIBS_ENDS_WITH_STDIN"
"""Tells the child that it is tied, and how many seconds it has to end. No setting: nobody else
may write it, and no child of the child inherits it.
"""

STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = 0, 1, 2
READ_BYTES = 4096


def tie(environ: MutableMapping[str, str] = os.environ) -> None:
    """Watch the parent from now on, where it asks for that; else nothing."""
    grace = environ.pop(TIED, None)
    if grace is not None:
        threading.Thread(
            target=_end_with_parent, args=(float(grace),), name="leash", daemon=True
        ).start()


def _end_with_parent(grace_s: float) -> None:
    while _still_open():
        pass
    # Nobody reads our lines any more: a write that fails must not disturb the way out.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STANDARD_OUTPUT)
    os.dup2(nowhere, STANDARD_ERROR)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _still_open() -> bool:
    try:
        return bool(os.read(STANDARD_INPUT, READ_BYTES))
    except OSError:
        return False
