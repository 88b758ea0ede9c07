"""`aibs` in a process that tells which tasks its loop has: python -m tests.drills.counted_gateway.

They stand in the file `tasks` of the working directory, one a line, written anew all the time.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aibs import cli
from aibs.gateway import server

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S = 0.2
TASKS = Path("tasks")


def main() -> None:
    """Run the command."""
    made = server._loop_factory()

    def recorded() -> Any:
        loop = made()
        threading.Thread(target=_tell, args=(loop,), daemon=True).start()
        return loop

    def factory() -> Callable[[], Any]:
        return recorded

    server._loop_factory = factory
    cli.main()


def _tell(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        time.sleep(EVERY_S)
        names = sorted(task.get_name() for task in asyncio.all_tasks(loop))
        beside = TASKS.with_suffix(f".{os.getpid()}")
        beside.write_text("\n".join(names))
        beside.replace(TASKS)


if __name__ == "__main__":
    main()
