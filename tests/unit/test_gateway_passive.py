"""Which failures close a node, and which never do: those of a request are not those of a node."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibs.gateway.blame import Blame
from aibs.gateway.failures import (
    NodeAnswer,
    NodeFailure,
    error_text,
    is_node_fault,
)
from aibs.gateway.limits import Limit
from aibs.gateway.passive import MISSING_FOR_MS, NodeHealth
from aibs.gateway.telling import RELEASE_FIRST_S, LastWord
from tests.integration.in_loop import in_loop, until
from tests.placement_scenarios import SetClock

TRIP_AFTER: Final = 3
OWN_WORDS: Final = NodeAnswer(500, "application/json", b'{"error":"x"}')


def failure(node_id: str = "box-a", kind: Any = "timeout", **more: Any) -> NodeFailure:
    return NodeFailure(node_id, kind, "it failed", **more)


class Pool:
    """Takes trips; holds the answer to one as long as `hold` is not set."""

    def __init__(self) -> None:
        self.trips: list[tuple[str, str]] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def trip(self, node_id: str, why: str) -> bool:
        self.trips.append((node_id, why))
        await self.hold.wait()
        return True


def health_of(pool: Pool, clock: SetClock | None = None) -> NodeHealth:
    return NodeHealth(pool.trip, clock or SetClock(), trip_after=TRIP_AFTER)


@in_loop
async def test_failures_in_a_row_close_a_node_and_a_served_request_begins_anew() -> None:
    pool = Pool()
    health = health_of(pool)
    for _ in range(2):
        for _ in range(TRIP_AFTER - 1):
            health.failed(failure())
        health.served("box-a")
    for _ in range(TRIP_AFTER - 1):
        health.failed(failure("box-b"))
    await health.aclose()
    assert pool.trips == []
    health.failed(failure("box-b"))
    await health.aclose()
    assert pool.trips == [("box-b", "3 requests in a row failed there, the last one: it failed")]


@in_loop
async def test_a_node_is_avoided_here_while_the_pool_is_told_and_no_longer() -> None:
    pool = Pool()
    pool.hold.clear()
    health = health_of(pool)
    for _ in range(TRIP_AFTER):
        health.failed(failure())
    assert health.closing == {"box-a"}
    pool.hold.set()
    await until(lambda: not health.closing)
    await health.aclose()


@in_loop
async def test_a_missing_model_is_forgotten_after_a_while() -> None:
    clock = SetClock()
    health = health_of(Pool(), clock)
    assert health.missing_on("m") == ()
    health.misses("box-a", "m")
    health.misses("box-b", "other")
    assert health.missing_on("m") == ("box-a",)
    clock.now_ms += MISSING_FOR_MS - 1
    assert health.missing_on("other") == ("box-b",)
    clock.now_ms += 1
    assert health.missing_on("m") == ()


# --- whose fault


class Counted(NodeHealth):
    """Notes whom it is told of."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def failed(self, failure: NodeFailure) -> None:
        self.told.append(failure.node_id)


def blamed(met: list[NodeFailure], *, served: bool) -> list[str]:
    health = Counted()
    blame = Blame(health)
    for one in met:
        blame.met(one)
    if served:
        blame.served()
    blame.over()
    return health.told


A, B = failure(), failure("box-b")
SAID_A = failure(kind="http_5xx", answer=OWN_WORDS)
SAID_B = failure("box-b", "http_5xx", answer=OWN_WORDS)


@pytest.mark.parametrize(
    ("met", "served", "wanted"),
    [
        ([], True, []),
        ([A], True, ["box-a"]),
        ([A], False, ["box-a"]),
        ([A, B], True, ["box-a", "box-b"]),
        ([A, B], False, []),
        ([SAID_A], True, ["box-a"]),
        ([SAID_A], False, []),
        ([SAID_A, SAID_B], False, []),
        ([SAID_A, B], False, []),
        ([failure(kind="reset"), failure(kind="reset")], False, ["box-a", "box-a"]),
        ([failure(kind="reset"), failure("box-b", "reset")], False, []),
        ([failure(kind="connect")], False, ["box-a"]),
        ([failure(kind="connect"), failure("box-b", "connect")], False, ["box-a", "box-b"]),
        ([failure(kind="http_5xx")], False, ["box-a"]),
        ([failure(kind="http_5xx", counts=False)], True, []),
    ],
)
def test_what_a_request_brought_about_itself_speaks_against_no_node(
    met: list[NodeFailure], served: bool, wanted: list[str]
) -> None:
    assert blamed(met, served=served) == wanted


def test_a_node_is_blamed_as_soon_as_another_begins_to_serve_and_once() -> None:
    health = Counted()
    blame = Blame(health)
    blame.met(A)
    assert health.told == []
    blame.served()
    assert health.told == ["box-a"]
    blame.served()
    blame.over()
    assert health.told == ["box-a"]


@given(st.integers(200, 599))
def test_a_status_of_the_client_s_making_is_none_of_the_node_s(status: int) -> None:
    own = {401, 403, 407, 421, 499}
    wanted = status >= 500 or 300 <= status < 400 or status in own
    assert is_node_fault(status) == wanted
    assert not is_node_fault(400)
    assert not is_node_fault(404)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":"gone"}', "gone"),
        (b'{"error":{"message":"gone"}}', "gone"),
        (b'{"error":{"code":1}}', "no text"),
        (b"[]", "no text"),
        (b"", "no text"),
        (b"404 page not found", "404 page not found"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 900, "x" * 300),
    ],
)
def test_what_a_node_says_is_found_for_a_log_line(body: bytes, text: str) -> None:
    assert error_text(body) == text


# --- limits, and the end of an answer


@in_loop
async def test_a_limit_strikes_what_it_was_begun_for_and_nothing_else() -> None:
    limit = Limit()
    never = asyncio.Event()

    async def waiting() -> None:
        try:
            await never.wait()
        except asyncio.CancelledError:
            limit.convert()
            raise

    limit.begin(0.01, lambda: ValueError("first"))
    with pytest.raises(ValueError, match="first"):
        await waiting()
    # Longer than the one before, and shorter than one that is armed.
    limit.begin(30, lambda: ValueError("long"))
    limit.begin(0.01, lambda: ValueError("short"))
    async with asyncio.timeout(10):
        with pytest.raises(ValueError, match="short"):
            await waiting()
    limit.begin(0.01, lambda: ValueError("replaced"))
    limit.begin(30, lambda: ValueError("later"))
    await asyncio.sleep(0.05)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    limit.begin(0.01, lambda: ValueError("ended"))
    limit.end()
    await asyncio.sleep(0.05)
    limit.begin(0.01, lambda: ValueError("closed"))
    limit.close()
    await asyncio.sleep(0.05)


@in_loop
async def test_a_limit_does_not_swallow_another_s_cancellation() -> None:
    never = asyncio.Event()
    began = asyncio.Event()

    async def waiting() -> None:
        limit = Limit()
        limit.begin(0.01, lambda: ValueError("over"))
        began.set()
        try:
            await never.wait()
        except asyncio.CancelledError:
            limit.convert()
            raise
        finally:
            limit.close()

    task = asyncio.create_task(waiting())
    await began.wait()
    # Both strike before it looks, the limit first.
    loop = asyncio.get_running_loop()
    loop.call_later(0.02, task.cancel, "by somebody")
    loop.call_soon(time.sleep, 0.1)
    with pytest.raises(asyncio.CancelledError):
        await task


class Ending:
    """An exchange whose end takes as long as its reader."""

    def __init__(self) -> None:
        self.read = asyncio.Event()
        self.said: list[str] = []

    async def finish_apart(self) -> None:
        self.said.append("begun")
        await self.read.wait()
        self.said.append("said")

    async def finish(self) -> None:
        if not self.said:
            self.said.append("at once")


@in_loop
async def test_an_answer_s_end_that_was_begun_is_waited_for() -> None:
    exchange: Any = Ending()
    word = LastWord(exchange)
    await until(lambda: exchange.said == ["begun"])
    saying = asyncio.create_task(word.say())
    await asyncio.sleep(0.02)
    assert not saying.done()
    exchange.read.set()
    await saying
    assert exchange.said == ["begun", "said"]


@in_loop
async def test_an_answer_s_end_is_said_once() -> None:
    exchange: Any = Ending()
    word = LastWord(exchange)
    await word.say()
    await asyncio.sleep(2 * RELEASE_FIRST_S)
    assert exchange.said == ["at once"]
