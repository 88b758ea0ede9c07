"""`aibs config check`: each effective setting, where it came from, and what is wrong."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to the tree."""
    config = typer.Typer(help="Look at the settings.", no_args_is_help=True)
    config.command("check", help=_HELP)(check)
    app.add_typer(config, name="config")


_HELP = """Show each effective setting and where it came from; list every fault at once.

Reads the environment and .env, opens no connection, prints no secret.
Exit status: 0 the settings can be used; 2 they cannot (with --strict: or something is odd).

Example: aibs config check --strict
"""


def check(
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (see aibs schema config_check).")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Unknown names and other warnings are faults too.")
    ] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="Show the settings left at their defaults too.")
    ] = False,
) -> None:
    """See `_HELP`, which the command prints."""
    from pathlib import Path

    from aibs.clock import SystemClock
    from aibs.settings.document import config_document, to_json

    document = config_document(None, Path(".env"), strict=strict, now_ms=SystemClock().wall_ms())
    if json_:
        from aibs.codec import dumps_pretty

        typer.echo(dumps_pretty(to_json(document)))
    else:
        from aibs.cli.config_text import render

        render(document, show_defaults=all_)
    raise typer.Exit(0 if document.ok else 2)
