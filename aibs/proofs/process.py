"""The proof as a process: on Ctrl-C and SIGTERM the children end and the namespace goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aibs.interruption import unless_interrupted
from aibs.proofs.ground import configured, self_contained
from aibs.proofs.service import prove

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.proofs.service import ProofOptions, Proved
    from aibs.settings import Settings


def run(settings: Settings, options: ProofOptions, tell: Callable[[str], None]) -> Proved | None:
    """Prove; None where it was interrupted. Raises as `prove` does."""
    return asyncio.run(
        unless_interrupted(
            _prove(settings, options, tell),
            lambda: tell("Stopping: the monitors end, and the namespace is deleted ..."),
        )
    )


async def _prove(settings: Settings, options: ProofOptions, tell: Callable[[str], None]) -> Proved:
    ground = self_contained() if options.self_contained else configured(settings)
    async with ground as found:
        return await prove(found, options, tell)
