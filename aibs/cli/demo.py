"""`aibs demo`: the whole system on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("demo", help=_HELP)(demo)


_HELP = """Show the whole system on this machine, with nothing configured and no network.

Starts a Valkey in a temporary directory, two simulated Ollama nodes and two monitors; audits the
fleet, kills the monitor that owns the term and watches the other take over; then sends requests
through the gateway, more than there are slots, and prints the log. Needs about 10 seconds. Leaves
nothing behind.

Example: aibs demo --exit
"""


def demo(
    exit_: Annotated[
        bool, typer.Option("--exit", help="End when everything was shown; else run until Ctrl-C.")
    ] = False,
) -> None:
    """See `_HELP`, which the command prints."""
    from aibs import logs
    from aibs.audit.text import console_for
    from aibs.demo.process import run

    logs.configure("error", "auto")
    raise typer.Exit(run(console_for(sys.stdout), exit_when_done=exit_))
