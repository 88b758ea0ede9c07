"""A time limit for a block of every request: as asyncio.timeout, at a third of its cost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class within:  # noqa: N801 - read as the statement that it makes
    """`with within(seconds):` cancels what its block waits for then, and raises TimeoutError.

    For a task of a running loop; a cancellation by others stays one.
    """

    __slots__ = ("_before", "_expired", "_handle", "_seconds", "_task")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling()
        self._handle = task.get_loop().call_later(self._seconds, self._expire)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handle.cancel()
        if not self._expired:
            return
        others = self._task.uncancel() > self._before
        if kind is asyncio.CancelledError and not others:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()
