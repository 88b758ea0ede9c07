"""`aibs leaks`: leases that nobody gives back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from aibs.reports.hand import Taken
    from aibs.reports.leaks import LeaksDocument
    from aibs.settings import Settings

WATCH_EVERY_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("leaks", help=_HELP)(leaks)


_HELP = """List the leases, and those that nobody gives back.

Late: no heartbeat for three intervals. Expired: the deadline passed without
a release; it is told until --ack, however long ago it was. --since is for the
rest: what was revoked or reaped, and releases that came late or twice.
Compares the live state with what the log tells, and leases with what the
nodes hold. Read-only, but for --ack and --reap.

Exit status: 0 nothing leaks; 1 a lease is late, or expired and is not
acknowledged, or was reaped since --since because its holder was gone and is
not acknowledged, or the live state differs from the log; 2 usage or settings;
3 Valkey could not be reached.

Example: aibs leaks --since 1h --json
"""

_SINCE = """So far back it counts what was revoked, reaped, or released late or twice, and lists
what was reaped or is acknowledged."""

_REAP = """Free this lease by hand: its holder learns it at its next heartbeat and stops; the slot
is given out again once it was returned or has drained. Asks first."""


def leaks(
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (see aibs schema leaks).")
    ] = False,
    since: Annotated[str, typer.Option(metavar="DURATION", help=_SINCE)] = "1h",
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Again every 2 s, until Ctrl-C; with --json one line each."),
    ] = False,
    ack: Annotated[
        list[str] | None,
        typer.Option("--ack", metavar="LEASE", help="This leak is known; repeat for more."),
    ] = None,
    reap: Annotated[str | None, typer.Option("--reap", metavar="LEASE", help=_REAP)] = None,
    reason: Annotated[str, typer.Option(help="Why it is reaped, for the log.")] = "by hand",
    force: Annotated[
        bool, typer.Option("--force", help="Reap even a lease that was renewed just now.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """See `_HELP`, which the command prints."""
    import asyncio

    from aibs import logs, settings
    from aibs.errors import ConfigurationError
    from aibs.reports.durations import duration_ms

    since_ms = duration_ms(since, "--since")
    if reap is not None and (ack or watch or json_):
        raise ConfigurationError("--reap goes alone, without --ack, --watch or --json.")
    if reap is None and (force or yes):
        raise ConfigurationError("--force and --yes say how to --reap a lease, and none is named.")
    configured = settings.load()
    logs.configure(configured.log_level, configured.log_format)
    if reap is not None:
        _reap(configured, reap, reason, force=force, yes=yes)
        return
    if ack:
        _acknowledge(configured, ack)
    document = asyncio.run(_read(configured, since_ms))
    try:
        _show(document, json_=json_, watched=watch)
        while watch:
            document = asyncio.run(_again(configured, since_ms))
            _show(document, json_=json_, watched=True)
    except KeyboardInterrupt:
        # The way to end a watch: what was read last is the verdict.
        if not watch:
            raise
    raise typer.Exit(1 if document.leaking or document.differences else 0)


async def _read(configured: Settings, since_ms: int) -> LeaksDocument:
    from aibs.reports.leaks import leaks_document
    from aibs.reports.moment import open_reader

    async with open_reader(configured) as reader:
        return leaks_document(
            await reader.moment(since_ms), heartbeat_ms=configured.heartbeat_interval_ms
        )


async def _again(configured: Settings, since_ms: int) -> LeaksDocument:
    import asyncio

    await asyncio.sleep(WATCH_EVERY_S)
    return await _read(configured, since_ms)


def _show(document: LeaksDocument, *, json_: bool, watched: bool) -> None:
    if json_:
        from aibs.codec import dumps_pretty, dumps_text
        from aibs.reports.leaks import to_json

        # Watched: one document a line, for a script that reads line by line.
        typer.echo((dumps_text if watched else dumps_pretty)(to_json(document)))
        return
    from aibs.audit.text import console_for
    from aibs.reports.text import moment_ms, render_leaks

    render_leaks(document, console_for(sys.stdout), now_ms=moment_ms(document.generated_at))


def _acknowledge(configured: Settings, lease_ids: list[str]) -> None:
    import asyncio

    from aibs.reports.hand import open_hand

    async def acknowledge() -> int:
        async with open_hand(configured) as hand:
            return await hand.acknowledge(lease_ids)

    count = asyncio.run(acknowledge())
    typer.echo(f"aibs: {count} newly acknowledged, {len(set(lease_ids)) - count} before", err=True)


def _reap(configured: Settings, lease_id: str, why: str, *, force: bool, yes: bool) -> None:
    import asyncio

    from aibs.reports.hand import open_hand

    async def look() -> dict[str, Any]:
        async with open_hand(configured) as hand:
            return await hand.lease(lease_id)

    if not yes:
        from aibs.audit.wording import printable

        lease = asyncio.run(look())
        what = f"{printable(lease['model'])} on {lease['node_id']}"
        question = f"Take lease {lease_id} ({what}) from {printable(lease['holder'])}?"
        try:
            agreed = typer.confirm(question, err=True)
        except typer.Abort:
            agreed = False
        if not agreed:
            typer.echo("aibs: Nothing was taken. --yes answers where nobody can.", err=True)
            raise typer.Exit(1)

    async def take() -> Taken:
        async with open_hand(configured) as hand:
            return await hand.reap(
                lease_id, why, force=force, heartbeat_ms=configured.heartbeat_interval_ms
            )

    taken = asyncio.run(take())
    typer.echo(
        f"Lease {lease_id} {'was revoked already' if taken.already else 'is revoked'}: its holder "
        f"learns it at its next heartbeat; in {taken.due_ms / 1000:.12g} s it is reaped, and its "
        "slot drains."
    )
