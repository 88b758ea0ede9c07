"""`aibs prove-takeover`: kill the owner, and show that nothing stale was trusted."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from aibs.proofs.service import Proved

INTERRUPTED = 130


class Variant(StrEnum):
    """How the owner goes."""

    kill = "kill"
    pause = "pause"


class Gate(StrEnum):
    """Whether a long handover fails the proof."""

    strict = "strict"
    report_only = "report-only"


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command("prove-takeover", help=_HELP)(prove_takeover)


_HELP = """Prove that the elected monitor can die without anything stale being trusted.

Starts two real monitors in an isolated namespace of the configured Valkey, against the configured
nodes (which are only read), kills the owner without warning, and waits for the standby. The verdict
is read from the log, in the server's time. The namespace is deleted in every case; a proof that was
itself killed is cleaned up by the next one.

Exit status: 0 passed; 1 a gate failed; 2 usage or settings; 3 the server could not be reached.

Examples:
  aibs prove-takeover --self-contained
  aibs prove-takeover --json --repeat 3
  aibs prove-takeover --variant pause --keep-log takeover.ndjson.gz
"""


def prove_takeover(
    json_: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON document (see aibs schema prove-takeover)."),
    ] = False,
    repeat: Annotated[int, typer.Option(metavar="N", help="Run it so often; each must pass.")] = 1,
    variant: Annotated[
        Variant,
        typer.Option(help="kill: kill -9. pause: stopped through the takeover, then resumed."),
    ] = Variant.kill,
    handover_gate: Annotated[
        Gate,
        typer.Option(help="report-only: a long handover is a finding and fails nothing."),
    ] = Gate.strict,
    self_contained: Annotated[
        bool,
        typer.Option("--self-contained", help="On a Valkey and nodes made for the proof alone."),
    ] = False,
    keep_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Export the proof's log before it goes (aibs replay)."),
    ] = None,
) -> None:
    """See `_HELP`, which the command prints."""
    from aibs import logs, settings
    from aibs.proofs.process import run
    from aibs.proofs.service import ProofOptions

    configured = settings.load({} if self_contained else None)
    logs.configure(configured.log_level, configured.log_format)
    options = ProofOptions(
        repeat=repeat,
        variant=variant.value,
        gate=handover_gate.value,
        keep_log=keep_log,
        self_contained=self_contained,
    )
    proved = run(configured, options, lambda line: typer.echo(line, err=json_))
    if proved is None:
        raise typer.Exit(INTERRUPTED)
    _show(proved, json_=json_)
    if proved.document.passed:
        return
    raise typer.Exit(3 if proved.unreachable else 1)


def _show(proved: Proved, *, json_: bool) -> None:
    if json_:
        from aibs.codec import dumps_pretty
        from aibs.proofs.document import to_json

        typer.echo(dumps_pretty(to_json(proved.document)))
        return
    from aibs.proofs.text import lines_of

    for line in lines_of(proved.document):
        typer.echo(line)
