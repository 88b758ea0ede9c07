"""Notices that a client left while its request is worked on, and ends the work.

Ollama ends a request when its client's connection closes, a half-close included (ollama.md §1.9);
so does the gateway. The server tells it by an extension of ASGI: to wait for `http.disconnect`
would take one more task a request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any

DEPARTURE: Final = "aibs.departure"
"""The extension: a Departure."""


class Departure:
    """Of the client of one request. `told` by the server once it left, and not twice."""

    __slots__ = ("_call", "_left")

    def __init__(self) -> None:
        self._call: Callable[[], object] | None = None
        self._left = False

    def await_by(self, call: Callable[[], object] | None) -> None:
        """Have that called then, at once where it was; None takes it back."""
        self._call = call
        if call is not None and self._left:
            call()

    def told(self) -> None:
        """The client left."""
        self._left = True
        if self._call is not None:
            self._call()


class ClientLeft(BaseException):
    """The client's connection is closed: there is nobody to answer.

    No Exception: as a cancellation, it ends the lease as cancelled and not as failed.
    """


class ClientWatch:
    """`with ClientWatch(scope):` the block is cancelled when the client leaves, and raises
    ClientLeft. To be entered when the request's body was read.

    While `holding`, a leaving client only sets `left`: what runs then is not the client's alone.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._departure: Departure = scope["extensions"][DEPARTURE]
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._struck = False
        self._holding = False
        self._cancelled_before = 0
        self.left = asyncio.Event()

    def __enter__(self) -> Self:
        self._cancelled_before = self._task.cancelling()
        self._departure.await_by(self._leave)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._departure.await_by(None)
        if not self._struck:
            return
        self._struck = False
        others = self._task.uncancel() > self._cancelled_before
        if isinstance(error, asyncio.CancelledError) and not others:
            raise ClientLeft from error

    def hold(self) -> None:
        """From now on a client that leaves ends nothing."""
        self._holding = True

    def rest(self) -> None:
        """The answer is on its way to its end: what the server says of the client from now on is
        of the connection, which may serve its next request.
        """
        self._departure.await_by(None)

    def let_go(self) -> None:
        """Back to ending the block. Raises ClientLeft where the client left meanwhile."""
        self._holding = False
        if self.left.is_set():
            raise ClientLeft

    def _leave(self) -> None:
        self.left.set()
        if not self._holding:
            self._struck = True
            self._task.cancel("the client left")
