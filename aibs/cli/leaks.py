"""`aibs leaks`: leases that nobody gives back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from aibs.reports.leaks import LeaksDocument
    from aibs.settings import Settings

WATCH_EVERY_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("leaks", help=_HELP)(leaks)


_HELP = """List the leases, and those that nobody gives back.

Late: no heartbeat for three intervals. Expired: the deadline passed without a release. Compares the
live state with what the log tells, and leases with what the nodes hold. Read-only, but for --ack
and --reap.

Exit status: 0 nothing leaks; 1 a lease is late, or leaked since --since and is not acknowledged, or
the live state differs from the log; 2 usage or settings; 3 Valkey could not be reached.

Example: aibs leaks --since 1h --json
"""

_REAP = """Free this lease by hand: its holder learns it at its next heartbeat and stops; the slot
is given out again once it was returned or has drained. Asks first."""


def leaks(
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (see aibs schema leaks).")
    ] = False,
    since: Annotated[str, typer.Option(metavar="DURATION", help="Look back so far.")] = "1h",
    watch: Annotated[bool, typer.Option("--watch", help="Again every 2 s, until Ctrl-C.")] = False,
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
    from aibs.reports.durations import duration_ms

    since_ms = duration_ms(since, "--since")
    configured = settings.load()
    logs.configure(configured.log_level, configured.log_format)
    if reap is not None:
        _reap(configured, reap, reason, force=force, yes=yes)
        return
    if ack:
        _acknowledge(configured, ack)
    document = asyncio.run(_read(configured, since_ms))
    while True:
        _show(document, json_=json_)
        if not watch:
            break
        document = asyncio.run(_again(configured, since_ms))
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


def _show(document: LeaksDocument, *, json_: bool) -> None:
    if json_:
        from aibs.codec import dumps_pretty
        from aibs.reports.leaks import to_json

        typer.echo(dumps_pretty(to_json(document)))
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

    typer.echo(f"aibs: {asyncio.run(acknowledge())} newly acknowledged", err=True)


def _reap(configured: Settings, lease_id: str, why: str, *, force: bool, yes: bool) -> None:
    import asyncio

    from aibs.reports.hand import open_hand

    if not yes:
        typer.confirm(f"Take lease {lease_id} from its holder?", abort=True, err=True)

    async def take() -> int:
        async with open_hand(configured) as hand:
            return await hand.reap(
                lease_id, why, force=force, heartbeat_ms=configured.heartbeat_interval_ms
            )

    due_ms = asyncio.run(take())
    typer.echo(
        f"Lease {lease_id} is revoked: its holder learns it at its next heartbeat; in "
        f"{due_ms / 1000:.12g} s it is reaped, and its slot drains."
    )
