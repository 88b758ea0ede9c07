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

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


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

Ctrl-C ends the waiting and leaves the node cordoned.

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
    json_: Json = False,
) -> None:
    """See `_CORDON`, which the command prints."""
    from aibs.reports.durations import duration_ms

    for_ms = 0 if for_ is None else duration_ms(for_, "--for")

    async def work(hand: Hand) -> tuple[bool, int]:
        return await hand.cordon(node_id, reason, for_ms=for_ms), await hand.now_ms()

    done, now_ms = _run(work)
    if json_:
        _print_document(now_ms, node_id, changed=done)
        return
    typer.echo(
        f"{node_id} is cordoned{'' if done else ' already'}: it takes no new leases"
        f"{'' if for_ is None else f' for {for_}'}."
    )


def uncordon(node_id: NodeId) -> None:
    """See `_UNCORDON`, which the command prints."""
    done = _run(lambda hand: hand.uncordon(node_id))
    typer.echo(f"{node_id} takes leases again." if done else f"{node_id} was not cordoned.")


def drain(
    node_id: NodeId,
    reason: Reason = "draining",
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Wait so long at most.")] = "15m",
    json_: Json = False,
) -> None:
    """See `_DRAIN`, which the command prints."""
    from aibs.reports.durations import duration_ms

    timeout_s = duration_ms(timeout, "--timeout") / 1000
    cordoned = False

    async def work(hand: Hand) -> tuple[bool, int, int]:
        nonlocal cordoned
        done = await hand.cordon(node_id, reason)
        cordoned = True
        typer.echo(f"{node_id} is cordoned; waiting for its leases to end.", err=True)
        left = await hand.drain(node_id, timeout_s=timeout_s)
        return done, left, await hand.now_ms()

    try:
        done, left, now_ms = _run(work)
    except KeyboardInterrupt:
        if cordoned:
            typer.echo(
                f"aibs: {node_id} stays cordoned; `aibs node uncordon {node_id}` opens it again.",
                err=True,
            )
        raise
    rest = "no lease is" if not left else "1 lease is" if left == 1 else f"{left} leases are"
    if json_:
        _print_document(now_ms, node_id, changed=done, leases_left=left)
    else:
        typer.echo(f"{node_id} is cordoned, and {rest} left on it.", err=bool(left))
    if left:
        raise typer.Exit(1)


def forget(node_id: NodeId) -> None:
    """See `_FORGET`, which the command prints."""
    count = _run(lambda hand: hand.forget(node_id))
    if not count:
        typer.echo(f"No model was seen to weigh anything on {node_id}: nothing to forget.")
        return
    weights = "1 observed weight" if count == 1 else f"{count} observed weights"
    typer.echo(f"Forgotten: {weights} of {node_id}.")


def _print_document(
    now_ms: int, node_id: str, *, changed: bool, leases_left: int | None = None
) -> None:
    from aibs.codec import dumps_pretty
    from aibs.reports.hand_document import hand_document, to_json

    document = hand_document(now_ms, node_id, changed=changed, leases_left=leases_left)
    typer.echo(dumps_pretty(to_json(document)))


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
