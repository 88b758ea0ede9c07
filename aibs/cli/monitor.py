"""`aibs monitor`: the standalone residency monitor."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("monitor", help=_HELP)(monitor)


_HELP = """Watch the nodes: stand for election, and as owner record what every node holds.

Runs until SIGTERM or Ctrl-C, then gives its term back so that a standby takes over at once.
Run it on two machines: one is elected, the other stands by.

Example: AIBS_MODEL_CLUSTER_NODE_IDS=box-c AIBS_MODEL_CLUSTER_NODE_URLS=http://10.4.3.16:11434
aibs monitor
"""


def monitor() -> None:
    """See `_HELP`, which the command prints."""
    from aibs import logs, settings
    from aibs.errors import ConfigurationError, Fault

    configured = settings.load()
    for warning in configured.warnings:
        typer.echo(f"aibs: {warning}", err=True)
    faults = []
    if not configured.model_cluster_residency_monitor_enabled:
        faults.append(
            Fault(
                "AIBS_MODEL_CLUSTER_RESIDENCY_MONITOR_ENABLED",
                "is false, so there is nothing to run",
                "Set it to true, or do not start the monitor.",
            )
        )
    if configured.coordination_backend != "valkey":
        faults.append(
            Fault(
                "AIBS_COORDINATION_BACKEND",
                f"is {configured.coordination_backend}, which no other process could read",
                "Set it to valkey.",
            )
        )
    if not configured.fleet().nodes:
        faults.append(
            Fault(
                "AIBS_MODEL_CLUSTER_NODE_IDS",
                "is empty, so there is no node to watch",
                "List the nodes there and their URLs in AIBS_MODEL_CLUSTER_NODE_URLS.",
            )
        )
    if faults:
        raise ConfigurationError(faults=tuple(faults))
    if sys.stderr.isatty() and configured.log_format != "json":
        from aibs.cli.monitor_line import live_line

        with live_line() as line:
            logs.configure(configured.log_level, configured.log_format)
            _run(configured, line)
    else:
        logs.configure(configured.log_level, configured.log_format)
        _run(configured, None)


def _run(configured: Settings, line: Callable[[str], None] | None) -> None:
    import asyncio

    from aibs.monitor.process import run_until_told

    asyncio.run(run_until_told(configured, on_status=line))
