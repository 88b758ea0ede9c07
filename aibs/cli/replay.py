"""`aibs replay`: the log, on the server or from a file."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from aibs.replay.entries import Item
    from aibs.replay.request import Asked, Options
    from aibs.replay.source import Source
    from aibs.reports.part import Part
    from aibs.settings import Settings

FLUSH_BYTES = 262_144


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("replay", help=_HELP)(replay)


_HELP = """Read the log: what happened, the state at any moment, why a request
waited, whether all of it adds up. Reads the running pool, or a file that
--export wrote. Read-only.

Moments are times with a zone (2026-12-01T12:03:04Z), so long ago (-15m;
in a file, before its last event), `now`, or event IDs. Filters may be
repeated: one of each kind must match, and all kinds.

--what-if runs the recorded requests through the placement rules, with the
recorded fleet and with the changed one, and says how far the first agrees
with what was recorded. It does not know which requests would have come,
asked again or given up otherwise, nor how long a model would load that
never was loaded; trips of nodes and moments without an owner are left out.

Exit status: 0 good; 1 --verify found a problem, a file is cut or damaged,
or there is no such lease; 2 usage or settings; 3 Valkey could not be
reached.

\b
Examples:
  aibs replay --since -15m --node box-c
  aibs replay --as-of 2026-12-01T12:03:04Z
  aibs replay --diff -1h now
  aibs replay --explain 3f2a9c0d1e4b5a67
  aibs replay --follow --type LeaseDenied --json
  aibs replay --export incident.ndjson.gz --since -2h
  aibs replay --from incident.ndjson.gz --verify
  aibs replay --since -24h --what-if box-c.vram_gb=110
"""


def replay(
    since: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="From here on, inclusive.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="Up to here, inclusive.")
    ] = None,
    node: Annotated[list[str] | None, typer.Option(help="Events of this node.")] = None,
    lease: Annotated[list[str] | None, typer.Option(help="Events of this lease.")] = None,
    request: Annotated[
        list[str] | None, typer.Option(help="Events of this request: its id, or its whole key.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="Events of this model.")] = None,
    holder: Annotated[list[str] | None, typer.Option(help="Events of this holder.")] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="Events of this type (docs/events.md).")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Events as they come, until Ctrl-C.")
    ] = False,
    speed: Annotated[
        str | None, typer.Option(metavar="10x", help="Play back at this multiple of real time.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="MOMENT", help="The state then.")
    ] = None,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="MOMENT MOMENT", help="What changed between the two."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="LEASE|REQUEST", help="The whole story of one.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Whether the log, and the live state, add up."),
    ] = False,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="The recorded requests on another fleet: box-c.vram_gb=110, box-c.slots=2, "
            "box-c=off, worker.answer.resident_weight_gb=24; repeat for more.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the log: NDJSON, .gz or .zst compressed."),
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Read a file that --export wrote.")
    ] = None,
    json_: Annotated[
        bool,
        typer.Option("--json", help="One event a line, or one document (see aibs schema)."),
    ] = False,
) -> None:
    """See `_HELP`, which the command prints."""
    import asyncio

    from aibs import logs
    from aibs.replay.request import Options, understood

    options = Options(
        since=since,
        until=until,
        nodes=node or (),
        leases=lease or (),
        requests=request or (),
        models=model or (),
        holders=holder or (),
        types=type_ or (),
        follow=follow,
        speed=speed,
        as_of=as_of,
        diff=diff,
        explain=explain,
        verify=verify,
        what_if=what_if or (),
        export=export,
        source=from_,
        json=json_,
    )
    asked = understood(options)
    configured = None
    if from_ is None:
        from aibs import settings

        configured = settings.load()
        logs.configure(configured.log_level, configured.log_format)
    status = asyncio.run(_answer(options, asked, configured))
    raise typer.Exit(status)


async def _answer(options: Options, asked: Asked, configured: Settings | None) -> int:
    from aibs.replay.answers import open_source

    async with open_source(options.source, configured) as source:
        status = await _put(source, options, asked, configured)
        if source.fault is not None and not options.verify:
            typer.echo(f"aibs: {source.fault}", err=True)
            status = max(status, 1)
        return status


async def _put(source: Source, options: Options, asked: Asked, configured: Settings | None) -> int:
    from aibs.clock import SystemClock
    from aibs.replay import answers

    clock = SystemClock()
    if asked.as_of is not None:
        from aibs.replay.text import render_as_of

        _show(await answers.as_of(source, asked.as_of, clock), render_as_of, json_=options.json)
    elif asked.diff is not None:
        from aibs.replay.text import render_diff

        _show(await answers.diff_of(source, asked.diff, clock), render_diff, json_=options.json)
    elif options.explain is not None:
        from aibs.replay.text import render_explain

        story = await answers.explained(source, options.explain, clock)
        _show(story, render_explain, json_=options.json)
    elif options.verify:
        from aibs.replay.text import render_verify

        verdict = await answers.verified(source, clock)
        _show(verdict, render_verify, json_=options.json)
        return 0 if verdict.ok else 1
    elif options.what_if:
        from aibs.replay.text import render_what_if

        supposed = await answers.supposed(source, asked, clock)
        _show(supposed, render_what_if, json_=options.json)
    elif options.export is not None:
        header = await answers.exported(source, asked, options.export)
        typer.echo(
            f"aibs: {header.count} events ({header.first_id or 'none'} to "
            f"{header.last_id or 'none'}) are in {options.export}",
            err=True,
        )
    elif options.follow:
        from aibs.replay.source import LiveSource

        assert isinstance(source, LiveSource)
        assert configured is not None
        printer = _Printer(json_=options.json)
        await answers.show_followed(source, configured, asked, printer, _tell)
    else:
        await answers.show_events(source, asked, _Printer(json_=options.json))
    return 0


def _tell(sentence: str) -> None:
    typer.echo(f"aibs: {sentence}", err=True)


class _Printer:
    """Items on standard output, many at a time: a long log is millions of lines."""

    def __init__(self, *, json_: bool) -> None:
        from aibs.replay.entries import as_line
        from aibs.replay.lines import line_of

        encoding = sys.stdout.encoding or "utf-8"

        def line(item: Item) -> bytes:
            return f"{line_of(item)}\n".encode(encoding, "replace")

        self._line = as_line if json_ else line
        self._held: list[bytes] = []
        self._size = 0

    def show(self, item: Item) -> None:
        line = self._line(item)
        self._held.append(line)
        self._size += len(line)
        if self._size >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        sys.stdout.buffer.write(b"".join(self._held))
        sys.stdout.buffer.flush()
        self._held, self._size = [], 0


def _show(document: Part, render: Callable[[Any, Console], None], *, json_: bool) -> None:
    if json_:
        from aibs.codec import dumps_pretty
        from aibs.replay.answers import to_json

        typer.echo(dumps_pretty(to_json(document)))
        return
    from aibs.audit.text import console_for

    render(document, console_for(sys.stdout))
