"""Reading the log: ranges, a moment, following, and a log that is not the one it was."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import pytest

from aibs.errors import TruncatedLog
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from tests.integration.in_loop import in_loop

if TYPE_CHECKING:
    from pathlib import Path


async def _log(url: str, namespace: str, tmp_path: Path) -> tuple[Any, Log, str]:
    client = commands(await open_client(url, data_dir=tmp_path, purpose="follow"))
    keys = Keys(namespace)
    return cast("Any", client), Log(client, keys), keys.key("log")


async def _add(client: Any, stream: str, seq: int, at_ms: int, entry_id: str = "*") -> str:
    fields = {"type": "X", "v": 1, "seq": seq, "at_ms": at_ms, "actor": "a"}
    added = await client.xadd(stream, {**fields, "fence": "", "token": "", "data": "{}"}, entry_id)
    return str(added.decode())


@in_loop
async def test_a_range_spans_batches_and_keeps_its_ends(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    client, log, stream = await _log(valkey_url, namespace, tmp_path)
    ids = [await _add(client, stream, n, n) for n in range(1, 26)]
    assert [e.seq async for e in log.read(batch=7)] == list(range(1, 26))
    assert [e.seq async for e in log.read(f"({ids[2]}", ids[5], batch=2)] == [4, 5, 6]
    assert [e.seq for e in await log.newest(3)] == [23, 24, 25]
    assert await log.length() == 25
    await client.aclose()


@in_loop
async def test_lists_of_entries_are_the_range_and_leave_no_answer_on_the_connection(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    client, log, stream = await _log(valkey_url, namespace, tmp_path)
    ids = [await _add(client, stream, n, n) for n in range(1, 26)]
    lists = [[entry[0].decode() for entry in one] async for one in log.batches(batch=7)]
    assert [len(one) for one in lists] == [7, 7, 7, 4]
    assert [entry_id for one in lists for entry_id in one] == ids
    connection = await client.client_id()
    async with contextlib.aclosing(log.batches(batch=3)) as batches:
        async for _ in batches:
            break
    assert await log.length() == 25, "the next answer is the next question's"
    assert await client.client_id() == connection, "nor did a connection have to go for it"
    whole = [len(one) async for one in log.batches(f"({ids[3]}", ids[10], batch=7)]
    assert whole == [7, 0]
    await client.aclose()


@in_loop
async def test_a_moment_is_found_although_the_clock_stepped_back(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    client, log, stream = await _log(valkey_url, namespace, tmp_path)
    ids = [await _add(client, stream, n, t) for n, t in enumerate((100, 200, 300, 150, 250), 1)]
    assert await log.last_id_at(260) == ids[4]
    assert await log.last_id_at(160) == ids[3]
    assert await log.last_id_at(120) == ids[0]
    assert await log.last_id_at(50) == "0-0"
    await client.aclose()


@in_loop
async def test_a_follower_gets_each_event_once_as_it_comes(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    client, log, stream = await _log(valkey_url, namespace, tmp_path)
    start = await _add(client, stream, 1, 1)
    seen: list[int] = []

    async def follow() -> None:
        async with aclosing(log.follow(start, block_ms=200)) as events:
            async for event in events:
                seen.append(event.seq)
                if event.seq == 40:
                    return

    following = asyncio.ensure_future(follow())
    for seq in range(2, 41):
        await _add(client, stream, seq, seq)
        if seq % 10 == 0:
            await asyncio.sleep(0.25)
    await following
    assert seen == list(range(2, 41))
    await client.aclose()


@in_loop
async def test_a_follower_in_front_of_a_flushed_log_says_so_and_waits_not_for_ever(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    client, log, stream = await _log(valkey_url, namespace, tmp_path)
    start = await _add(client, stream, 1, 1)
    await client.delete(stream)
    with pytest.raises(TruncatedLog, match="replaced, flushed or rewound"):
        async with aclosing(log.follow(start, block_ms=100)) as events:
            await anext(events)
    await client.aclose()


@in_loop
async def test_a_log_flushed_while_it_is_followed_is_noticed(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    client, log, stream = await _log(valkey_url, namespace, tmp_path)
    start = await _add(client, stream, 1, 1)

    async def follow() -> None:
        async with aclosing(log.follow(start, block_ms=100)) as events:
            await anext(events)

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0.05)
    await client.delete(stream)
    with pytest.raises(TruncatedLog):
        await following
    await client.aclose()
