"""`aibs audit`: may the global scheduler be enabled?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.audit.document import AuditDocument
    from aibs.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("audit", help=_HELP)(audit)


_HELP = """Say whether the global scheduler may be enabled, and what is missing.

Compares the roster with what the nodes hold now, reads the pool, judges every gate, and suggests
resident weights for roster models that are loaded. Read-only: it writes no key, starts no server
and moves no model, unless --warmup is given; --record notes in the log what that measured.

Exit status: 0 every gate passed (with --node-url and no configured node: every node answered);
1 a gate says no, or a warm-up was cancelled; 2 usage or settings; 3 Valkey or a node could not be
reached.

Example: aibs audit --node-url http://10.4.3.16:11434
"""

_WARMUP = """Load each worker's model on each node that its roles allow, measure it, unload it
again. Takes minutes, and may evict models that are loaded now. Ctrl-C unloads what was loaded."""


def audit(
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (see aibs schema audit).")
    ] = False,
    node_url: Annotated[
        list[str] | None,
        typer.Option("--node-url", metavar="URL", help="Look at this Ollama server too; repeat."),
    ] = None,
    warmup: Annotated[bool, typer.Option("--warmup", help=_WARMUP)] = False,
    warmup_node_id: Annotated[
        list[str] | None,
        typer.Option(
            "--warmup-node-id", metavar="ID", help="Warm up on this node only; repeat for more."
        ),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Note in the pool's log what --warmup measured.")
    ] = False,
) -> None:
    """See `_HELP`, which the command prints."""
    from aibs import logs, settings
    from aibs.audit.process import run
    from aibs.audit.service import AuditOptions, exit_status
    from aibs.errors import ConfigurationError

    configured = settings.load()
    logs.configure(configured.log_level, configured.log_format)
    for warning in configured.warnings:
        typer.echo(f"aibs: {warning}", err=True)
    if record and not warmup:
        raise ConfigurationError("--record is given without --warmup.", mend="Add --warmup.")
    options = AuditOptions(tuple(node_url or ()), warmup, tuple(warmup_node_id or ()))
    document = run(configured, options, _progress())
    if json_:
        from aibs.audit.document import to_json
        from aibs.codec import dumps_pretty

        typer.echo(dumps_pretty(to_json(document)))
    else:
        from aibs.audit.text import console_for, render

        render(document, console_for(sys.stdout))
    if record:
        _record(configured, document)
    raise typer.Exit(exit_status(document))


def _record(configured: Settings, document: AuditDocument) -> None:
    import asyncio

    from aibs.audit.warmup import recordable
    from aibs.reports.hand import open_hand

    measured = recordable(document)

    async def note() -> int:
        async with open_hand(configured) as hand:
            return await hand.record(measured)

    count = asyncio.run(note()) if measured else 0
    typer.echo(f"aibs: {count} measurements are in the log", err=True)


def _progress() -> Callable[[str], None]:
    """Lines on standard error while a person watches; nothing into files and pipes."""
    if not sys.stderr.isatty():
        return _nothing
    from aibs.audit.wording import printable

    return lambda line: typer.echo(printable(line), err=True)


def _nothing(line: str) -> None:
    pass
