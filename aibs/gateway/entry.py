"""How a gateway starts: checked, bound, then one process or several."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from aibs.errors import ConfigurationError, Fault
from aibs.gateway import server
from aibs.gateway import workers as worker_processes
from aibs.gateway.rival import require_no_rival

if TYPE_CHECKING:
    from aibs.settings import Settings


def run(
    settings: Settings,
    *,
    host: str | None = None,
    port: int | None = None,
    workers: int = 1,
    local_anyway: bool = False,
) -> None:
    """Serve until told to stop.

    Raises ConfigurationError for settings that cannot serve and an address that cannot be had,
    Refused and CoordinationUnavailable as `require_no_rival`.
    """
    inherited = os.environ.pop(worker_processes.LISTENING, None)
    monitors = os.environ.pop(worker_processes.MONITORS, None)
    if inherited is not None:
        with_monitor = settings.model_cluster_residency_monitor_run_in_api and monitors is not None
        with socket.socket(fileno=int(inherited)) as sock:
            sock.setblocking(False)
            server.run(settings, sock, with_monitor=with_monitor)
        return
    _require_servable(settings)
    if not settings.model_cluster_enabled:
        if workers > 1:
            raise ConfigurationError(
                f"{workers} workers would each admit requests to the same nodes by themselves.",
                mend="Set AIBS_MODEL_CLUSTER_ENABLED=true, or start one worker.",
            )
        if not local_anyway:
            asyncio.run(require_no_rival(settings))
    with server.bind(
        settings.api_host if host is None else host, settings.api_port if port is None else port
    ) as sock:
        if workers > 1:
            worker_processes.run(settings, sock, workers, arguments=["serve"])
        else:
            server.run(
                settings, sock, with_monitor=settings.model_cluster_residency_monitor_run_in_api
            )


def _require_servable(settings: Settings) -> None:
    fleet = settings.fleet()
    faults = []
    if not fleet.nodes:
        faults.append(
            Fault(
                "AIBS_MODEL_CLUSTER_NODE_IDS",
                "is empty, so there is no node to forward to",
                "List the nodes there and their URLs in AIBS_MODEL_CLUSTER_NODE_URLS.",
            )
        )
    if not fleet.workers:
        faults.append(
            Fault(
                "AIBS_MODEL_ADMISSION_WORKER_ROSTER",
                "is empty, so no request could name a model",
                "List the models there; `aibs audit` suggests their sizes.",
            )
        )
    if faults:
        raise ConfigurationError(faults=tuple(faults))
