"""Clients in which a cancellation is never lost.

redis-py sends with `asyncio.wait_for`, which before Python 3.12 swallows a cancellation that
arrives when the send has just finished: the task then goes on as if nobody had told it to stop, and
a task group that waits for it waits for ever. These classes look once more at the answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis, RedisCluster


class ValkeyClient(Redis):
    """A client of one server."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Raises CancelledError also where the library lost it; the call was done then."""
        cancelled_before = _cancellations()
        answer = await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        _raise_lost(cancelled_before)
        return answer


class ValkeyClusterClient(RedisCluster):
    """A client of a cluster."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Raises CancelledError also where the library lost it; the call was done then."""
        cancelled_before = _cancellations()
        answer = await super().execute_command(*args, **options)
        _raise_lost(cancelled_before)
        return answer


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _raise_lost(cancelled_before: int) -> None:
    if _cancellations() > cancelled_before:
        raise asyncio.CancelledError
