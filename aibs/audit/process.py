"""The audit as a process: signals in, the document out."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from aibs.audit.service import audit
from aibs.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.audit.document import AuditDocument
    from aibs.audit.service import AuditOptions
    from aibs.settings import Settings


def run(settings: Settings, options: AuditOptions, tell: Callable[[str], None]) -> AuditDocument:
    """Audit, and return the document.

    During a warm-up SIGINT and SIGTERM unload what was loaded and still give the document; a
    second one ends the process at once. `tell` gets the warm-up's progress.
    """
    return asyncio.run(_run(settings, options, tell))


async def _run(
    settings: Settings, options: AuditOptions, tell: Callable[[str], None]
) -> AuditDocument:
    stop = asyncio.Event()
    if options.warmup:
        _stop_on_signals(stop, tell)
    return await audit(settings, options, SystemClock(), stop=stop, tell=tell)


def _stop_on_signals(stop: asyncio.Event, tell: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def told() -> None:
        tell("stopping: unloading what was loaded")
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, told)
