"""Something that costs, made once for all who ask at a time, and kept a moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aibs.clock import Clock

T = TypeVar("T")


class Once(Generic[T]):
    """`get` gives what is at most `keep_s` old. One making at a time; who leaves ends it for none.

    `limit_s` bounds one making; None leaves that to it. A making that fails fails for those who
    waited for it, and is not kept.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[T]],
        clock: Clock,
        *,
        keep_s: float,
        limit_s: float | None,
    ) -> None:
        self._make = make
        self._clock = clock
        self._keep_ms = round(keep_s * 1000)
        self._limit_s = limit_s
        self._made: tuple[int, T] | None = None
        self._making: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Raises what the making raises; TimeoutError where that takes too long."""
        if self._made is not None and self._clock.boottime_ms() - self._made[0] < self._keep_ms:
            return self._made[1]
        if self._making is None:
            self._making = asyncio.create_task(self._run(), name="made once")
            self._making.add_done_callback(self._done)
        making = self._making
        await asyncio.wait({making})
        if making.cancelled():
            raise TimeoutError("it was given up")
        return making.result()

    async def close(self) -> None:
        """Give up what is being made."""
        making = self._making
        if making is not None:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)

    async def _run(self) -> T:
        began_ms = self._clock.boottime_ms()
        async with asyncio.timeout(self._limit_s):
            value = await self._make()
        self._made = (began_ms, value)
        return value

    def _done(self, making: asyncio.Task[T]) -> None:
        self._making = None
        if not making.cancelled():
            # Asked for here: it may be that nobody waits any more.
            making.exception()
