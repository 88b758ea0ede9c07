"""The monitor as a process: settings in, signals out."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aibs import logs
from aibs.clock import SystemClock
from aibs.monitor.connections import Connections
from aibs.monitor.service import Monitor, MonitorTiming
from aibs.monitor.term import TIMEOUT_RATIO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aibs.settings import Settings

STATUS_EVERY_S = 1.0


def timing_of(settings: Settings) -> MonitorTiming:
    """The monitor's times, out of the settings."""
    return MonitorTiming(
        lease_ttl_ms=settings.monitor_lease_ttl_ms,
        standby_retry_ms=settings.standby_retry_ms,
        poll_interval_ms=settings.poll_interval_ms,
        poll_timeout_ms=settings.poll_timeout_ms,
        staleness_ms=settings.max_residency_staleness_ms,
        failure_threshold=settings.model_cluster_residency_monitor_failure_threshold,
        telemetry_ttl_ms=settings.telemetry_ttl_ms,
        history_ttl_ms=settings.health_history_ttl_ms,
        load_timeout_ms=settings.load_timeout_ms,
        swap_min_ms=settings.swap_min_residency_ms,
        swap_max_ms=settings.swap_max_wait_ms,
        log_retention_ms=settings.log_retention_ms,
        log_max_bytes=settings.model_cluster_log_max_bytes,
    )


@asynccontextmanager
async def open_monitor(settings: Settings) -> AsyncIterator[Monitor]:
    """A monitor to be run, and its connections, closed after the block."""
    clock = SystemClock()
    timing = timing_of(settings)
    connections = Connections(
        settings.model_pool_url,
        Path(settings.data_dir),
        clock,
        timeout_s=timing.lease_ttl_ms * TIMEOUT_RATIO / 1000,
    )
    try:
        yield Monitor(
            settings.fleet(),
            settings.model_cluster_namespace,
            timing,
            connections,
            clock,
            recovery_ms=settings.recovery_ms,
        )
    finally:
        await connections.close()


async def run_until_told(
    settings: Settings, *, on_status: Callable[[str], None] | None = None
) -> None:
    """Run the monitor until SIGTERM or SIGINT. A second signal ends it without resigning."""
    async with open_monitor(settings) as monitor:
        await _run(settings, monitor, on_status)


async def _run(
    settings: Settings, monitor: Monitor, on_status: Callable[[str], None] | None
) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    log = logs.get("aibs.monitor", owner=monitor.owner)

    def tell(name: str) -> None:
        log.info("told_to_stop", signal=name)
        told.set()
        # A second one takes the default action, for a person who does not want to wait.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell, number.name)
    running = asyncio.create_task(monitor.run(), name="monitor")
    waiting = asyncio.create_task(told.wait(), name="signals")
    line = asyncio.create_task(_status_lines(monitor, on_status), name="status line")
    log.info("monitor_started", nodes=len(settings.fleet().nodes))
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (line, waiting, running):
            task.cancel()
        for task in (line, waiting):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        with contextlib.suppress(asyncio.CancelledError):
            await running
    log.info("monitor_stopped")


async def _status_lines(monitor: Monitor, show: Callable[[str], None] | None) -> None:
    while show is not None:
        show(monitor.status_line())
        await asyncio.sleep(STATUS_EVERY_S)
