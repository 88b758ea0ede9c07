"""`aibs smoke`: a few real requests through the gateway, judged from the log."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from aibs.proofs.smoke.document import SmokeDocument

INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("smoke", help=_HELP)(smoke)


_HELP = """Send a few real requests through the gateway, and show from the log that all went well.

Run it after the scheduler was enabled and the gateway restarted, with the gateway's own settings:
the audit; one narrow request; a broad one (every role at once); two broad ones at the same time;
one whose client leaves; and that afterwards no lease is left. Answers are a few tokens long. Models
that are cold are loaded, which takes its time. Other traffic is not looked at.

The API key: the first line of --key-file, else the first of AIBS_API_KEYS.

Exit status: 0 passed; 1 a step failed; 2 usage or settings; 3 the gateway, Valkey or a node could
not be reached.

Examples:
  aibs smoke
  aibs smoke --url http://10.4.3.2:11500 --key-file key.txt --json
"""


def smoke(
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (see aibs schema smoke).")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(help="The gateway, before AIBS_API_HOST and AIBS_API_PORT.", metavar="URL"),
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with an API key of the gateway.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="S", min=0.1, help="How long one request may take; else by the settings."
        ),
    ] = None,
) -> None:
    """See `_HELP`, which the command prints."""
    from aibs import logs, settings
    from aibs.proofs.smoke.process import SmokeOptions, run

    configured = settings.load()
    logs.configure(configured.log_level, configured.log_format)
    for warning in configured.warnings:
        typer.echo(f"aibs: {warning}", err=True)
    tested = run(
        configured, SmokeOptions(url, key_file, timeout), lambda line: typer.echo(line, err=True)
    )
    if tested is None:
        raise typer.Exit(INTERRUPTED)
    _show(tested.document, json_=json_)
    if not tested.document.passed:
        raise typer.Exit(3 if tested.unreachable else 1)


def _show(document: SmokeDocument, *, json_: bool) -> None:
    if json_:
        from aibs.codec import dumps_pretty
        from aibs.proofs.smoke.document import to_json

        typer.echo(dumps_pretty(to_json(document)))
        return
    from aibs.audit.text import console_for
    from aibs.proofs.smoke.text import render

    render(document, console_for(sys.stdout))
