"""`aibs status`: one screen of now."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from aibs.reports.status import StatusDocument
    from aibs.settings import Settings

WATCH_EVERY_S = 2.0
SINCE_MS = 1
"""Leaks of the past are no part of now."""


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("status", help=_HELP)(status)


_HELP = """Show who owns the pool, what each node holds and has free, every lease, and who waits.

Read-only. Exit status: 0 shown; 1 there is no pool; 2 usage or settings; 3 Valkey could not be
reached.

Example: aibs status --watch
"""


def status(
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (see aibs schema status).")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Again every 2 s, until Ctrl-C; with --json one line each."),
    ] = False,
) -> None:
    """See `_HELP`, which the command prints."""
    import asyncio
    import time

    from aibs import logs, settings

    configured = settings.load()
    logs.configure(configured.log_level, configured.log_format)
    try:
        _show(asyncio.run(_read(configured)), json_=json_, watched=watch)
        while watch:
            time.sleep(WATCH_EVERY_S)
            _show(asyncio.run(_read(configured)), json_=json_, watched=True)
    except KeyboardInterrupt:
        # The way to end a watch.
        if not watch:
            raise


async def _read(configured: Settings) -> StatusDocument:
    from aibs.reports.moment import open_reader
    from aibs.reports.status import status_document

    async with open_reader(configured) as reader:
        return status_document(await reader.moment(SINCE_MS), configured)


def _show(document: StatusDocument, *, json_: bool, watched: bool) -> None:
    if json_:
        from aibs.codec import dumps_pretty, dumps_text
        from aibs.reports.status import to_json

        # Watched: one document a line, for a script that reads line by line.
        typer.echo((dumps_text if watched else dumps_pretty)(to_json(document)))
        return
    from aibs.audit.text import console_for
    from aibs.reports.text import render_status

    console = console_for(sys.stdout)
    if watched and sys.stdout.isatty():
        console.clear()
    render_status(document, console)
