"""Notices that a client left while its request is worked on, and ends the work.

Ollama ends a request when its client's connection closes, a half-close included (ollama.md §1.9);
so does the gateway. The ASGI server tells it by `http.disconnect`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from types import TracebackType
    from typing import Any

    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientLeft(BaseException):
    """The client's connection is closed: there is nobody to answer.

    No Exception: as a cancellation, it ends the lease as cancelled and not as failed.
    """


class ClientWatch:
    """`async with ClientWatch(receive)`: the block is cancelled when the client leaves, and raises
    ClientLeft. To be entered when the request's body was read.

    While `holding`, a leaving client only sets `left`: what runs then is not the client's alone.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._struck = False
        self._holding = False
        self._cancelled_before = 0
        self.left = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelled_before = self._task.cancelling()
        self._watcher = asyncio.create_task(self._watch(), name="client watch")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        watcher, task = self._watcher, self._task
        assert watcher is not None
        assert task is not None
        watcher.cancel()
        if not self._struck:
            return
        self._struck = False
        others = task.uncancel() > self._cancelled_before
        if isinstance(error, asyncio.CancelledError) and not others:
            raise ClientLeft from error

    def hold(self) -> None:
        """From now on a client that leaves ends nothing."""
        self._holding = True

    def rest(self) -> None:
        """The answer is on its way to its end: what the server says of the client from now on is
        of the connection, which may serve its next request.
        """
        assert self._watcher is not None
        self._watcher.cancel()

    def let_go(self) -> None:
        """Back to ending the block. Raises ClientLeft where the client left meanwhile."""
        self._holding = False
        if self.left.is_set():
            raise ClientLeft

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left.set()
        if not self._holding and self._task is not None:
            self._struck = True
            self._task.cancel("the client left")
