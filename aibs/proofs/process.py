"""The proof as a process: on Ctrl-C and SIGTERM the children end and the namespace goes."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from aibs.proofs.ground import configured, self_contained
from aibs.proofs.service import prove

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.proofs.service import ProofOptions, Proved
    from aibs.settings import Settings


def run(settings: Settings, options: ProofOptions, tell: Callable[[str], None]) -> Proved | None:
    """Prove; None where it was interrupted. Raises as `prove` does."""
    return asyncio.run(_guarded(settings, options, tell))


async def _guarded(
    settings: Settings, options: ProofOptions, tell: Callable[[str], None]
) -> Proved | None:
    loop = asyncio.get_running_loop()
    work = asyncio.ensure_future(_prove(settings, options, tell))
    told = False

    def stop() -> None:
        nonlocal told
        # Once: a second Ctrl-C must not interrupt the cleaning up.
        if not told:
            told = True
            tell("Stopping: the monitors end, and the namespace is deleted ...")
            work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        return await work
    except asyncio.CancelledError:
        return None


async def _prove(settings: Settings, options: ProofOptions, tell: Callable[[str], None]) -> Proved:
    ground = self_contained() if options.self_contained else configured(settings)
    async with ground as found:
        return await prove(found, options, tell)
