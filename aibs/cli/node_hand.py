"""`aibs node cordon|uncordon|drain|forget`: an operator's hand on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aibs.reports.hand import Hand

T = TypeVar("T")

NodeId = Annotated[str, typer.Argument(metavar="NODE", help="The node's id.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the log and for others.")]


def register(node: typer.Typer) -> None:
    """Add the commands to `aibs node`."""
    node.command("cordon", help=_CORDON)(cordon)
    node.command("uncordon", help=_UNCORDON)(uncordon)
    node.command("drain", help=_DRAIN)(drain)
    node.command("forget", help=_FORGET)(forget)


_CORDON = """Take no new leases on a node; those that are held go on.

Exit status: 0 done, or so already; 1 refused; 2 usage or settings; 3 Valkey could not be reached.

Example: aibs node cordon box-c --reason "new fans" --for 2h
"""

_UNCORDON = """Take leases on a node again.

Example: aibs node uncordon box-c
"""

_DRAIN = """Cordon a node, and wait until no lease is left on it.

Exit status: 0 empty; 1 leases are left when the time is over, or refused; 2 usage or settings;
3 Valkey could not be reached.

Example: aibs node drain box-c --reason "new kernel" --timeout 15m
"""

_FORGET = """Drop what models were seen to weigh on a node: the declared weights count again.

Example: aibs node forget box-c
"""


def cordon(
    node_id: NodeId,
    reason: Reason = "by hand",
    for_: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Open again after so long.")
    ] = None,
) -> None:
    """See `_CORDON`, which the command prints."""
    import time

    from aibs.reports.durations import duration_ms

    until_ms = 0 if for_ is None else int(time.time() * 1000) + duration_ms(for_, "--for")
    done = _run(lambda hand: hand.cordon(node_id, reason, until_ms=until_ms))
    typer.echo(f"{node_id} is cordoned{'' if done else ' already'}: it takes no new leases.")


def uncordon(node_id: NodeId) -> None:
    """See `_UNCORDON`, which the command prints."""
    done = _run(lambda hand: hand.uncordon(node_id))
    typer.echo(f"{node_id} takes leases again." if done else f"{node_id} was not cordoned.")


def drain(
    node_id: NodeId,
    reason: Reason = "draining",
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Wait so long at most.")] = "15m",
) -> None:
    """See `_DRAIN`, which the command prints."""
    from aibs.reports.durations import duration_ms

    timeout_s = duration_ms(timeout, "--timeout") / 1000
    left = _run(lambda hand: hand.drain(node_id, reason, timeout_s=timeout_s))
    if left:
        typer.echo(f"{node_id} is cordoned, and {left} leases are left on it.", err=True)
        raise typer.Exit(1)
    typer.echo(f"{node_id} is cordoned, and no lease is left on it.")


def forget(node_id: NodeId) -> None:
    """See `_FORGET`, which the command prints."""
    count = _run(lambda hand: hand.forget(node_id))
    typer.echo(f"{count} observed weights of {node_id} are forgotten.")


def _run(work: Callable[[Hand], Awaitable[T]]) -> T:
    import asyncio

    from aibs import logs, settings
    from aibs.reports.hand import open_hand

    configured = settings.load()
    logs.configure(configured.log_level, configured.log_format)

    async def run() -> T:
        async with open_hand(configured) as hand:
            return await work(hand)

    return asyncio.run(run())
