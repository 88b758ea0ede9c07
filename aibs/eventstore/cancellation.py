"""Clients in which a cancellation is never lost.

With a socket timeout redis-py sends by `asyncio.wait_for`, which before Python 3.12 swallows a
cancellation that arrives when the send has just finished: the task goes on as if nobody had told it
to stop, and a task group that waits for it waits for ever. So these clients have no socket timeout
and put one deadline over the whole call. What a helper of the library (a sentinel's own client)
swallows all the same is raised when the answer is there.

Calls come to their turn in the order of their asking: the library's pool gives a connection to
whoever asks at the moment it is free, so that a few busy tasks would starve a heartbeat.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import TimeoutError as RedisTimeoutError


class ValkeyClient(Redis):
    """A client of one server."""

    answer_timeout_s: float | None = None
    turns: asyncio.Semaphore | None = None
    companions: tuple[Redis, ...] = ()
    """Clients that live as long as this one: those of its sentinels."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close it and its companions."""
        await super().aclose(close_connection_pool)
        for companion in self.companions:
            await companion.aclose()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Raises redis' TimeoutError past the deadline; a cancelled call may have been done."""
        cancelled_before = _cancellations()
        try:
            async with asyncio.timeout(self.answer_timeout_s), self.turns or nullcontext():
                answer = await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except TimeoutError as error:
            raise RedisTimeoutError(_too_late(self.answer_timeout_s)) from error
        _raise_lost(cancelled_before)
        return answer


class ValkeyClusterClient(RedisCluster):
    """A client of a cluster."""

    answer_timeout_s: float | None = None
    turns: asyncio.Semaphore | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Raises redis' TimeoutError past the deadline; a cancelled call may have been done."""
        cancelled_before = _cancellations()
        try:
            async with asyncio.timeout(self.answer_timeout_s), self.turns or nullcontext():
                answer = await super().execute_command(*args, **options)
        except TimeoutError as error:
            raise RedisTimeoutError(_too_late(self.answer_timeout_s)) from error
        _raise_lost(cancelled_before)
        return answer


def _too_late(timeout_s: float | None) -> str:
    return f"no answer within {timeout_s:g} s" if timeout_s else "no answer in time"


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _raise_lost(cancelled_before: int) -> None:
    if _cancellations() > cancelled_before:
        raise asyncio.CancelledError
