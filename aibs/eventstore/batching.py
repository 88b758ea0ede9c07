"""Script calls of many tasks in few round trips: those that come while others are on their way go
together, each with its own answer.

A busy process else spends more on sockets than the server does on its scripts. A lone call goes at
once. Callers see what they saw before: an answer, an error of their own call, or, where the
connection broke, that theirs may have been done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from hiredis import pack_command
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aibs.eventstore.cancellation import ValkeyClient

if TYPE_CHECKING:
    from aibs.eventstore.cancellation import ValkeyClusterClient
    from aibs.eventstore.commands import Commands

CALLS_MAX: Final = 64
"""In one round trip: some milliseconds of the server's time, in which nobody else is served."""

CLOSED: Final = "the client is closed"
AT_ONCE_MAX: Final = 2
"""Round trips at a time: one is answered while the next is on its way."""


def batched(client: ValkeyClient | ValkeyClusterClient) -> Commands:
    """The client with its script calls going together, where it is one server's."""
    if isinstance(client, ValkeyClient):
        return cast("Commands", BatchingClient(client))
    # A cluster's client splits calls by slots itself.
    return cast("Commands", client)


class BatchingClient:
    """A client of one server whose `evalsha` calls go together. Everything else is the client's."""

    def __init__(self, client: ValkeyClient) -> None:
        self._client = client
        self._waiting: deque[tuple[tuple[Any, ...], asyncio.Future[Any]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = False
        self._closed = False
        self._idle: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: str | int | bytes) -> Any:
        """As the client's; a cancelled call may have been done."""
        if self._closed:
            raise RedisConnectionError(CLOSED)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((("EVALSHA", sha, numkeys, *keys_and_args), answer))
        if not self._due and len(self._tasks) < AT_ONCE_MAX:
            # After the tasks that are ready now, whose calls then go along.
            self._due = True
            loop.call_soon(self._send)
        return await answer

    async def aclose(self) -> None:
        """Give up what is on its way, and close the client. May be repeated."""
        self._closed = True
        for _, answer in self._waiting:
            _fail(answer, RedisConnectionError(CLOSED))
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._drop(self._idle)
        await self._client.aclose()

    def _send(self) -> None:
        self._due = False
        while self._waiting and len(self._tasks) < AT_ONCE_MAX:
            calls = [self._waiting.popleft() for _ in range(min(CALLS_MAX, len(self._waiting)))]
            # Who was cancelled while it waited is not sent: surely not done.
            calls = [call for call in calls if not call[1].done()]
            if calls:
                task = asyncio.get_running_loop().create_task(self._run(calls), name="batch")
                self._tasks.add(task)
                task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._send()

    async def _run(self, calls: list[tuple[tuple[Any, ...], asyncio.Future[Any]]]) -> None:
        timeout_s = self._client.answer_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._round_trip(calls)
        except TimeoutError:
            self._break(calls, RedisTimeoutError(f"no answer within {timeout_s:g} s"))
        except (RedisError, OSError) as error:
            self._break(calls, error)
        except BaseException:
            self._break(calls, RedisConnectionError(CLOSED))
            raise

    async def _round_trip(self, calls: list[tuple[tuple[Any, ...], asyncio.Future[Any]]]) -> None:
        pool = self._client.connection_pool
        connection = self._idle.pop() if self._idle else await _connected(pool)
        try:
            # Packed in C: the library's own packing costs more than the rest of the call.
            packed = [pack_command(arguments) for arguments, _ in calls]
            await connection.send_packed_command(packed, False)
            # Each answer goes on as it comes: its caller works while the server does the next.
            for _, answer in calls:
                try:
                    _succeed(answer, await connection.read_response())
                except ResponseError as error:
                    _fail(answer, error)
        except BaseException:
            # Unread answers would be taken for those of the next calls; and where this connection
            # broke, the others did.
            await self._drop([connection, *self._idle])
            raise
        self._idle.append(connection)

    async def _drop(self, connections: list[Any]) -> None:
        self._idle = []
        for connection in connections:
            with suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)
            await self._client.connection_pool.release(connection)

    def _break(
        self, calls: list[tuple[tuple[Any, ...], asyncio.Future[Any]]], error: Exception
    ) -> None:
        for _, answer in calls:
            # An error of its own for each: one that is raised twice keeps both tracebacks.
            _fail(answer, type(error)(*error.args))


async def _connected(pool: Any) -> Any:
    """A connection of redis-py's pool, which it leaves untyped."""
    return await pool.get_connection()


def _succeed(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():
        answer.set_result(value)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
