"""The residency monitor inside a gateway process, for deployments of one process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aibs import logs
from aibs.monitor.process import open_monitor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aibs.settings import Settings


@asynccontextmanager
async def monitor_inside(settings: Settings) -> AsyncIterator[None]:
    """Run the monitor as long as the block; a failure of it is told and ends no request."""
    log = logs.get("aibs.gateway.monitor")

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("monitor_died", error=repr(task.exception()))

    async with open_monitor(settings) as monitor:
        task = asyncio.create_task(monitor.run(), name="monitor")
        task.add_done_callback(ended)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
