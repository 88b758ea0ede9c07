"""Script calls that go together: each gets its own answer, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aibs.eventstore.batching import CALLS_MAX, BatchingClient
from aibs.eventstore.cancellation import ValkeyClient
from aibs.eventstore.connection import open_client
from tests.integration.in_loop import in_loop
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.valkey_server import ValkeyServer

ECHO = "return ARGV[1]"
FAIL = "return redis.error_reply('ERR told ' .. ARGV[1])"
COUNT = "return redis.call('INCR', KEYS[1])"


@asynccontextmanager
async def batching(url: str, timeout_s: float = 5.0) -> AsyncIterator[BatchingClient]:
    client = await open_client(url, data_dir=Path(), purpose="write", timeout_s=timeout_s)
    assert isinstance(client, ValkeyClient)
    together = BatchingClient(client)
    try:
        yield together
    finally:
        await together.aclose()


async def loaded(client: BatchingClient, script: str) -> str:
    sha: Any = await client.script_load(script)
    return sha.decode() if isinstance(sha, bytes) else str(sha)


@in_loop
async def test_each_of_many_calls_at_once_gets_its_own_answer(valkey_url: str) -> None:
    async with batching(valkey_url) as client:
        sha = await loaded(client, ECHO)
        count = 3 * CALLS_MAX + 7
        calls = (client.evalsha(sha, 0, f"call {number}") for number in range(count))
        answers = await asyncio.gather(*calls)
    assert answers == [f"call {number}".encode() for number in range(count)]


@in_loop
async def test_an_error_is_its_calls_own_and_its_neighbours_are_answered(valkey_url: str) -> None:
    async with batching(valkey_url) as client:
        echo, fail = await loaded(client, ECHO), await loaded(client, FAIL)
        answers = await asyncio.gather(
            client.evalsha(echo, 0, "first"),
            client.evalsha(fail, 0, "second"),
            client.evalsha("0" * 40, 0, "third"),
            client.evalsha(echo, 0, "fourth"),
            return_exceptions=True,
        )
        with pytest.raises(NoScriptError):
            await client.evalsha("0" * 40, 0, "alone")
    assert answers[0] == b"first"
    assert isinstance(answers[1], ResponseError)
    assert "told second" in str(answers[1])
    assert isinstance(answers[2], NoScriptError)
    assert answers[3] == b"fourth"


@pytest.mark.parametrize("sent", [False, True])
@in_loop
async def test_a_caller_that_is_cancelled_takes_no_neighbours_answer(
    own_valkey: ValkeyServer, sent: bool
) -> None:
    async with batching(own_valkey.url) as client:
        sha = await loaded(client, ECHO)
        own_valkey.pause()
        tasks = [asyncio.create_task(client.evalsha(sha, 0, str(n))) for n in range(40)]
        await asyncio.sleep(0.1 if sent else 0)
        for task in tasks[::3]:
            task.cancel()
        own_valkey.resume()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for number, answer in enumerate(answers):
            if number % 3:
                assert answer == str(number).encode()
        # The connections have no answer left that nobody read.
        assert await client.evalsha(sha, 0, "after") == b"after"


@in_loop
async def test_a_broken_connection_fails_all_that_were_on_their_way_and_none_after(
    own_valkey: ValkeyServer,
) -> None:
    async with batching(own_valkey.url) as client:
        sha = await loaded(client, COUNT)
        # Both connections are in use, so that both are broken.
        await asyncio.gather(*(client.evalsha(sha, 1, "warm") for _ in range(3 * CALLS_MAX)))
        own_valkey.pause()
        tasks = [asyncio.create_task(client.evalsha(sha, 1, "hits")) for _ in range(10)]
        await asyncio.sleep(0.05)
        # While it is stopped: it may answer nothing any more.
        os.kill(own_valkey.pid, signal.SIGKILL)
        failed = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(one) for one in failed} <= {RedisConnectionError, ConnectionResetError}
        # An error that is raised twice would keep both callers' tracebacks.
        assert len({id(one) for one in failed}) == len(failed)
        own_valkey.kill()
        own_valkey.start()
        sha = await loaded(client, COUNT)
        assert await client.evalsha(sha, 1, "after") == 1


@pytest.mark.parametrize("then", ["answered", "broken"])
@in_loop
async def test_an_answer_reaches_its_caller_before_the_last_of_those_it_went_with(
    own_valkey: ValkeyServer, then: str
) -> None:
    async with TcpProxy(own_valkey.port) as proxy, batching(proxy.url) as client:
        sha = await loaded(client, ECHO)
        assert await client.evalsha(sha, 0, "before") == b"before"
        go_on = proxy.hold_replies_after(len(b"$5\r\nfirst\r\n"))
        first, second = (
            asyncio.create_task(client.evalsha(sha, 0, text)) for text in ("first", "second")
        )
        async with asyncio.timeout(4.0):
            assert await first == b"first"
        assert not second.done()
        if then == "answered":
            go_on.set()
            assert await second == b"second"
        else:
            proxy.mode = "cut"
            with pytest.raises((RedisConnectionError, OSError)):
                await second
            proxy.mode = "pass"
            go_on.set()
        assert await client.evalsha(sha, 0, "after") == b"after"


@in_loop
async def test_a_server_that_hangs_is_told_by_the_deadline_and_its_late_answers_go_to_nobody(
    own_valkey: ValkeyServer,
) -> None:
    async with batching(own_valkey.url, timeout_s=0.5) as client:
        sha = await loaded(client, ECHO)
        assert await client.evalsha(sha, 0, "before") == b"before"
        own_valkey.pause()
        try:
            hung = await asyncio.gather(
                *(client.evalsha(sha, 0, f"lost {number}") for number in range(5)),
                return_exceptions=True,
            )
        finally:
            own_valkey.resume()
        assert {type(one) for one in hung} == {RedisTimeoutError}
        assert await client.evalsha(sha, 0, "after") == b"after"


@in_loop
async def test_calls_that_still_wait_when_the_client_is_closed_are_told(
    own_valkey: ValkeyServer,
) -> None:
    async with batching(own_valkey.url) as client:
        sha = await loaded(client, ECHO)
        own_valkey.pause()
        count = 4 * CALLS_MAX
        tasks = [asyncio.create_task(client.evalsha(sha, 0, str(n))) for n in range(count)]
        await asyncio.sleep(0.05)
        await client.aclose()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        own_valkey.resume()
    assert all(isinstance(one, RedisConnectionError) for one in answers)
    with pytest.raises(RedisConnectionError):
        await client.evalsha(sha, 0, "too late")
