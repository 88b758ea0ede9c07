"""`aibs serve`: the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from aibs.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("serve", help=_HELP)(serve)


_HELP = """Serve the Ollama and OpenAI APIs: every request is placed, leased, forwarded, released.

Point OLLAMA_HOST or an OpenAI base URL (ending in /v1) at it. A request names a model of the
roster, or a role: as the model `aibs/<role>`, or in the header X-AIBS-Role. Runs until SIGTERM or
Ctrl-C, then lets requests finish for AIBS_API_DRAIN_SECONDS and gives every lease back.

With AIBS_MODEL_CLUSTER_ENABLED=false it admits requests by itself, which it refuses beside a live
fleet that another scheduler serves.

Exit status: 0 told to stop; 1 refused beside a live fleet; 2 settings, or the address is taken;
3 it cannot be known whether another scheduler serves the nodes.

Example: AIBS_MODEL_CLUSTER_ENABLED=true aibs serve --port 11500
"""


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on, instead of AIBS_API_HOST.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port, instead of AIBS_API_PORT; 0: any free one."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that share the port.")] = 1,
    local_anyway: Annotated[
        bool,
        typer.Option(
            "--local-anyway",
            help="Admit by itself even beside a live fleet: these are other nodes.",
        ),
    ] = False,
) -> None:
    """See `_HELP`, which the command prints."""
    from aibs import logs, settings
    from aibs.gateway.entry import run

    configured: Settings = settings.load()
    for warning in configured.warnings:
        typer.echo(f"aibs: {warning}", err=True)
    logs.configure(configured.log_level, configured.log_format)
    run(configured, host=host, port=port, workers=workers, local_anyway=local_anyway)
