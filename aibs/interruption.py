"""Work that a person may stop: it undoes what it did, and a second Ctrl-C does not disturb that."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


async def unless_interrupted(
    work: Coroutine[Any, Any, T], on_stop: Callable[[], object]
) -> T | None:
    """What the work gives; None where SIGINT or SIGTERM cancelled it. `on_stop` is called first."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    told = False

    def stop() -> None:
        nonlocal told
        # Once: a second Ctrl-C must not interrupt the cleaning up.
        if not told:
            told = True
            on_stop()
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        return None
