"""`aibs up` as a process: signals in, the tree ended in its order, one stream of lines out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aibs import logs
from aibs.clock import SystemClock
from aibs.up.no_nodes import no_nodes
from aibs.up.place import check_address, only_one
from aibs.up.plan import plan_of
from aibs.up.readiness import wait_ready
from aibs.up.tree import Tree
from aibs.up.wording import beginning, ending, ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.clock import Clock
    from aibs.up.plan import Plan

ENV_FILE = Path(".env")
NAME_WIDTH = 7


def run(
    host: str | None,
    port: int | None,
    workers: int,
    exit_after_s: float | None,
    echo: Callable[[str], None],
) -> int:
    """Run until told to stop. Returns the exit status: 0, or 1 after a disorderly end.

    Raises ConfigurationError, CoordinationUnavailable, ChildGivenUp; by then all has ended.
    """
    plan = plan_of(
        os.environ,
        ENV_FILE,
        host=host,
        port=port,
        workers=workers,
        terminal=sys.stderr.isatty(),
    )
    logs.configure(plan.settings.log_level, plan.settings.log_format)
    if not plan.settings.fleet().nodes:
        raise asyncio.run(no_nodes())

    def tell(line: str) -> None:
        # A terminal that was closed takes nothing down.
        with contextlib.suppress(OSError):
            echo(line)

    with contextlib.ExitStack() as stack:
        if plan.embedded:
            stack.enter_context(only_one(Path(plan.settings.data_dir)))
        check_address(plan.settings.api_host, plan.settings.api_port)
        for warning in plan.settings.warnings:
            tell(f"aibs: {warning}")
        return asyncio.run(_guarded(plan, exit_after_s, tell))


async def _guarded(plan: Plan, exit_after_s: float | None, tell: Callable[[str], None]) -> int:
    loop = asyncio.get_running_loop()
    tree = Tree(plan, SystemClock(), prefixed(plan))
    work = asyncio.ensure_future(_run(tree, plan, exit_after_s, tell))
    told = 0

    def stop(name: str) -> None:
        nonlocal told
        told += 1
        if told == 1:
            tell(f"{name}: the gateway ends, then the monitor; a second one ends them at once.")
            work.cancel()
        else:
            tree.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whoever started us with `nohup` wants us to stay.
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stop, number.name)
    with contextlib.suppress(asyncio.CancelledError):
        await work
    tell(ending(clean=tree.clean))
    return 0 if tree.clean else 1


async def _run(
    tree: Tree, plan: Plan, exit_after_s: float | None, tell: Callable[[str], None]
) -> None:
    clock = SystemClock()
    for line in beginning(plan):
        tell(line)
    async with tree:
        keeping = asyncio.create_task(tree.run(), name="the tree")
        announcing = asyncio.create_task(
            _announce(plan, clock, exit_after_s, tell), name="readiness"
        )
        try:
            await asyncio.wait({keeping, announcing}, return_when=asyncio.FIRST_COMPLETED)
            if announcing.done() and announcing.exception() is None and exit_after_s is not None:
                return
            await keeping
        finally:
            for task in (keeping, announcing):
                task.cancel()
            await asyncio.gather(keeping, announcing, return_exceptions=True)


async def _announce(
    plan: Plan, clock: Clock, exit_after_s: float | None, tell: Callable[[str], None]
) -> None:
    await wait_ready(plan.url, clock, tell)
    for line in ready(plan):
        tell(line)
    if exit_after_s is not None:
        await clock.sleep(exit_after_s)


def prefixed(plan: Plan) -> Callable[[str, str], None]:
    """What passes the children's lines on to standard error: JSON as it is, for each line names
    its component; else with the child's name before it.
    """
    as_json = plan.settings.log_format == "json"

    def hear(name: str, line: str) -> None:
        text = line if as_json else f"{name:{NAME_WIDTH}} | {line}"
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)  # noqa: T201 - the children's own log

    return hear
