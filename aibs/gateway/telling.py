"""What a client is told beside its answer, each by a task of its own: the places in the queue while
it waits, and the end of the answer once its lease is given back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aibs.gateway.exchange import Exchange

RELEASE_FIRST_S: Final = 0.05
"""How long the end of an answer waits for the release: who asks again at once then finds the slot
free. A slow coordination server delays no answer by more."""


class PlacesTold:
    """Tells a client its places in the queue, one after the other, until it is closed."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._places: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(), name="places told")

    def tell(self, position: int, reason: str) -> None:
        """The request stands there now."""
        self._places.put_nowait((position, reason))

    async def close(self) -> None:
        """Nothing is told any more, and nothing is half told."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            position, reason = await self._places.get()
            await self._exchange.tell_place(position, reason)


class LastWord:
    """The end of an answer: said when the lease is given back, or when that takes too long."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(RELEASE_FIRST_S, self._say_early)

    def _say_early(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._exchange.finish_apart())

    async def say(self) -> None:
        """Say it now, unless it is said."""
        self._timer.cancel()
        if self._task is not None:
            await self._task
        await self._exchange.finish()
