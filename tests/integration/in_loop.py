"""Runs an async test in a loop of its own, with a bound that only a hang reaches."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")

HANG_S = 150.0


def in_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """The test as a plain function."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(HANG_S):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other tasks of this loop bring about."""
    while not condition():  # noqa: ASYNC110 - the condition is anything, and has no event
        await asyncio.sleep(0.002)
