"""`aibs up`: the whole scheduler on one machine."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("up", help=_HELP)(up)


_HELP = """Run monitor and gateway on this machine, and a Valkey where none is configured.

The Valkey is an embedded, persistent one in AIBS_DATA_DIR; on it the scheduler is enabled, because
one machine runs everything. A child that dies is started again. Ctrl-C and SIGTERM end all in
order: the gateway finishes or cancels its requests, then the monitor, then the server. The
children's log goes to standard error.

Exit status: 0 stopped in good order; 1 a child ended otherwise, or died again and again;
2 settings, the port or the data directory cannot be used; 3 the server could not be reached.

Example: aibs up --port 11434
"""


def up(
    host: Annotated[
        str | None, typer.Option(help="Address of the gateway, before AIBS_API_HOST.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Its port, before AIBS_API_PORT.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes of the gateway, which share the port.")
    ] = 1,
    exit_after: Annotated[
        float | None,
        typer.Option(metavar="S", min=0, help="End so many seconds after it was ready: a trial."),
    ] = None,
) -> None:
    """See `_HELP`, which the command prints."""
    from aibs.up.process import run

    raise typer.Exit(run(host, port, workers, exit_after, typer.echo))
