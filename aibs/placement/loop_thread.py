"""An event loop with an open placer, in a daemon thread of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from aibs.placement.placer import Placer

    Opener = Callable[[], AbstractAsyncContextManager[Placer]]

T = TypeVar("T")

CLOSE_WAIT_S = 15.0
"""Longer than a placer takes to close."""


class LoopThread:
    """Runs from its making to `close`; the placer is opened in it."""

    def __init__(self, opener: Opener) -> None:
        self.loop = asyncio.new_event_loop()
        self._opener = opener
        self._stop = asyncio.Event()
        self._ready: Future[Placer] = Future()
        self._thread = threading.Thread(target=self._run, name="aibs placer", daemon=True)
        self._thread.start()

    def placer(self) -> Placer:
        """The placer, once it is open. Raises what opening raised."""
        return self._ready.result()

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """End the placer and the thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:  # noqa: BLE001 - told to the thread that waits
                if not self._ready.done():
                    self._ready.set_exception(error)

    async def _serve(self) -> None:
        async with self._opener() as placer:
            self._ready.set_result(placer)
            await self._stop.wait()
