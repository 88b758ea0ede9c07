"""Reading the log: ranges, the newest entries, and following it as it grows."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from aibs.errors import CorruptLog, TruncatedLog
from aibs.eventstore.events.envelope import Event, parse_entry
from aibs.eventstore.reading import answered

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from aibs.eventstore.commands import Commands, Entry
    from aibs.eventstore.keys import Keys

BATCH = 1000
"""Entries a read takes at once."""


def _event(entry: Entry) -> Event:
    return parse_entry(*entry)


def after(entry_id: str) -> str:
    """The smallest ID above this one, as a range's start."""
    return f"({entry_id}"


class Log:
    """A pool's log, read only."""

    def __init__(self, client: Commands, keys: Keys) -> None:
        self._client = client
        self._stream = keys.key("log")

    async def read(
        self, start: str = "-", end: str = "+", *, batch: int = BATCH
    ) -> AsyncIterator[Event]:
        """Events from `start` to `end`, both inclusive IDs ("(" before an ID excludes it).

        Memory is bounded by the batch. Raises CorruptLog for an entry that is not an event.
        """
        async for entry in self.entries(start, end, batch=batch):
            yield _event(entry)

    async def entries(
        self, start: str = "-", end: str = "+", *, batch: int = BATCH
    ) -> AsyncIterator[Entry]:
        """The same entries as they are stored, for a reader who minds a damaged one."""
        while True:
            with answered("the log"):
                entries = await self._client.xrange(self._stream, start, end, count=batch)
            for entry in entries:
                yield entry
            if len(entries) < batch:
                return
            start = after(entries[-1][0].decode())

    async def batches(
        self, start: str = "-", end: str = "+", *, batch: int = BATCH
    ) -> AsyncGenerator[list[Entry], None]:
        """The same entries in lists: while one is worked on, the server makes the next."""
        coming: asyncio.Task[list[Entry]] | None = None
        try:
            entries = await self._batch(start, end, batch)
            while len(entries) == batch:
                start = after(entries[-1][0].decode())
                coming = asyncio.create_task(self._batch(start, end, batch))
                # One turn of the loop sends the question.
                await asyncio.sleep(0)
                yield entries
                entries, coming = await coming, None
            yield entries
        finally:
            # An answer that nobody took must not stay on the connection.
            if coming is not None:
                await asyncio.gather(coming, return_exceptions=True)

    async def _batch(self, start: str, end: str, batch: int) -> list[Entry]:
        with answered("the log"):
            return await self._client.xrange(self._stream, start, end, count=batch)

    async def last_id_at(self, at_ms: int) -> str:
        """The ID of the last event recorded at or before `at_ms` by the server's clock.

        Looked for from the end, because IDs tell no time: after the clock stepped back, an entry
        with an earlier time follows later ones. `0-0` when every event is younger.
        """
        end = "+"
        while True:
            with answered("the log"):
                entries = await self._client.xrevrange(self._stream, end, "-", count=BATCH)
            for entry in entries:
                if _event(entry).at_ms <= at_ms:
                    return entry[0].decode()
            if len(entries) < BATCH:
                return "0-0"
            end = after(entries[-1][0].decode())

    async def newest_entry(self, end: str = "+") -> Entry | None:
        """The newest entry up to `end`, None where there is none."""
        with answered("the log"):
            found = await self._client.xrevrange(self._stream, end, "-", count=1)
        return found[0] if found else None

    async def newest(self, count: int) -> list[Event]:
        """The newest `count` events, oldest first."""
        with answered("the log"):
            entries = await self._client.xrevrange(self._stream, "+", "-", count=count)
        return [_event(entry) for entry in reversed(entries)]

    async def last_id(self) -> str:
        """The ID of the newest event, `0-0` in an empty log."""
        with answered("the log"):
            newest = await self._client.xrevrange(self._stream, "+", "-", count=1)
        return newest[0][0].decode() if newest else "0-0"

    async def length(self) -> int:
        """How many events the log holds now."""
        with answered("the log"):
            return int(await self._client.xlen(self._stream))

    async def follow(self, last_id: str, *, block_ms: int) -> AsyncGenerator[Event, None]:
        """Events after `last_id` as they come, without end.

        The client must be one opened for following, whose socket waits longer than `block_ms`.
        Raises TruncatedLog where the log no longer reaches back to `last_id` or lies before it.
        """
        async with aclosing(self.follow_entries(last_id, block_ms=block_ms)) as entries:
            async for entry in entries:
                yield _event(entry)

    async def follow_entries(self, last_id: str, *, block_ms: int) -> AsyncGenerator[Entry, None]:
        """The same entries as they are stored."""
        cursor = last_id
        await self._check_cursor(cursor)
        while True:
            with answered("the log"):
                streams = await self._client.xread(
                    {self._stream: cursor}, count=BATCH, block=block_ms
                )
            if not streams:
                await self._check_cursor(cursor)
                continue
            for entry in _entries(streams):
                yield entry
                cursor = entry[0].decode()
            await asyncio.sleep(0)

    async def _check_cursor(self, cursor: str) -> None:
        if cursor == "0-0":
            return
        newest = await self.last_id()
        if _order(newest) < _order(cursor):
            raise TruncatedLog(
                f"The log ends at {newest}, before {cursor} that was read already: it was "
                "replaced, flushed or rewound."
            )


def _entries(streams: Any) -> list[Any]:
    """The entries of the one stream in an XREAD answer, in either protocol's shape."""
    if isinstance(streams, dict):
        blocks = next(iter(streams.values()))
        return [entry for block in blocks for entry in block]
    return cast("list[Any]", streams[0][1])


def _order(entry_id: str) -> tuple[int, int]:
    try:
        ms, _, number = entry_id.partition("-")
        return int(ms), int(number or 0)
    except ValueError as error:
        raise CorruptLog(f"{entry_id!r} is not an event ID.") from error
