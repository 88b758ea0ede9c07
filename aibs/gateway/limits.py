"""One timer for all the limits of a request, one after the other: a timer for each read and each
write would cost more than they do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_NEVER = float("inf")


class Limit:
    """Of the current task. `begin` says how long what follows may take and what its excess is;
    the task is then cancelled, and who waits there calls `convert` on the cancellation.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._due_s = _NEVER
        self._armed_s = _NEVER
        self._handle: asyncio.TimerHandle | None = None
        self._error: Callable[[], BaseException] | None = None
        self._expired = False

    def begin(self, seconds: float, error: Callable[[], BaseException]) -> None:
        """What follows may take so long; replaces what was begun before."""
        self._due_s = due_s = self._loop.time() + seconds
        self._error = error
        if due_s < self._armed_s:
            self._arm(due_s)

    def end(self) -> None:
        """What follows has no limit."""
        self._due_s = _NEVER

    def convert(self) -> None:
        """Call on a cancellation: raises the excess's error where it is only that."""
        if not self._expired or self._error is None:
            return
        self._expired = False
        if self._task.uncancel() == 0:
            raise self._error() from None

    def close(self) -> None:
        """No more limits."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_s = self._due_s = _NEVER

    def _arm(self, due_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_s = due_s
        self._handle = self._loop.call_at(due_s, self._fire)

    def _fire(self) -> None:
        self._handle, self._armed_s = None, _NEVER
        if self._due_s == _NEVER:
            return
        # Begun anew since it was armed: it was too early.
        if self._loop.time() < self._due_s:
            self._arm(self._due_s)
            return
        self._due_s = _NEVER
        self._expired = True
        self._task.cancel("a limit is over")
