"""An event loop in a thread: where a test's nodes and proxies live while the test itself blocks."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

T = TypeVar("T")

HANG_S = 60.0
"""Far beyond what any call of a test takes: only a hang reaches it."""


class Yard:
    """`run` and `call` do something there and wait for it; `enter` keeps it until the end."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="yard", daemon=True)
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.run(self._stack.aclose())
        finally:
            self.run(_end_tasks())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(HANG_S)
            self.loop.close()

    def run(self, work: Coroutine[None, None, T], timeout_s: float = HANG_S) -> T:
        """What the coroutine returns."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns, called in the loop: its objects belong to that thread."""

        async def called() -> T:
            return function()

        return self.run(called())

    def enter(self, block: AbstractAsyncContextManager[T]) -> T:
        """Enter a block that is left when the yard ends."""
        return self.run(self._stack.enter_async_context(block))

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


async def _end_tasks() -> None:
    own = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not own]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
