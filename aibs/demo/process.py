"""The demo as a process: it undoes everything on Ctrl-C, SIGTERM and failure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aibs.audit.text import render
from aibs.demo.report import (
    answered_line,
    event_line,
    how_to_use,
    takeover_line,
    where_to_look,
)
from aibs.demo.scenario import Demo
from aibs.interruption import unless_interrupted

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130


def run(console: Console, *, exit_when_done: bool) -> int:
    """Run the demo. Returns the exit status: 0, 1 when a gate failed, 130 when interrupted."""
    return asyncio.run(_guarded(console, exit_when_done))


async def _guarded(console: Console, exit_when_done: bool) -> int:
    shown = asyncio.Event()
    status = await unless_interrupted(
        _play(console, exit_when_done, shown),
        lambda: console.print("Stopping: undoing everything ..."),
    )
    if status is not None:
        return status
    # Ctrl-C is how the demo ends once everything was shown.
    return 0 if shown.is_set() else INTERRUPTED


async def _play(console: Console, exit_when_done: bool, shown: asyncio.Event) -> int:
    def tell(line: str) -> None:
        console.print(line, soft_wrap=True)

    async with Demo(tell) as demo:
        old = await demo.elect()
        tell("")
        document = await demo.audit()
        render(document, console)
        tell("")
        tell(takeover_line(await demo.take_over(old)))
        tell("")
        async for answered in demo.ask():
            tell(answered_line(answered))
        tell("")
        tell("The end of the log:")
        for event in await demo.last_events():
            tell(f"  {event_line(event)}")
        if not exit_when_done:
            tell("")
            for line in (*how_to_use(demo.url), *where_to_look(demo.environment, demo.url)):
                tell(line)
            tell("The demo goes on until Ctrl-C; new events follow.")
            shown.set()
            await demo.follow()
    return 0 if document.ready_to_enable_global_scheduler else 1
