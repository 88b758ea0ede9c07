"""What a placer knows of its server's absence: how it finds out, how often it looks, when it ends.

Time is the test's own: a sleep of the probes ends when it says so.
"""

from __future__ import annotations

import asyncio

import pytest

from aibs.errors import AibsError, CoordinationUnavailable, OutcomeUnknown, PoolVersionMismatch
from aibs.placement import outage as rules
from aibs.placement.outage import PROBE_EVERY_MS, Outage
from tests.integration.in_loop import in_loop, until

AWAY = CoordinationUnavailable("box:6379 cannot be reached: refused.", mend="Look there.")


class Hand:
    """A clock moved by hand: a sleeper wakes when its time has come."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self._moved = asyncio.Event()

    def boottime_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    async def sleep(self, seconds: float) -> None:
        due_ms = self.now_ms + seconds * 1000
        while self.now_ms < due_ms:
            self._moved.clear()
            await self._moved.wait()
        await asyncio.sleep(0)

    async def move(self, ms: int) -> None:
        """Time passes, and everybody hears of it."""
        self.now_ms += ms
        self._moved.set()
        for _ in range(8):
            await asyncio.sleep(0)


class Server:
    """Answers pings, or does to them what `fault` says: an error, or `hang`."""

    def __init__(self) -> None:
        self.fault: BaseException | str | None = None
        self.pings = 0
        self.at_once = 0
        self.most_at_once = 0

    async def ping(self) -> None:
        self.pings += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if self.fault == "hang":
                await asyncio.Event().wait()
            if isinstance(self.fault, BaseException):
                raise self.fault
        finally:
            self.at_once -= 1


@in_loop
async def test_as_long_as_no_call_fails_the_server_is_not_probed_and_nobody_waits() -> None:
    server, clock = Server(), Hand()
    server.fault = "hang"
    outage = Outage(server.ping, clock)
    assert await outage.error() is None
    outage.answered()
    await clock.move(60_000)
    assert server.pings == 0


@in_loop
async def test_a_connection_that_broke_is_no_outage_and_refuses_nobody() -> None:
    server, clock = Server(), Hand()
    outage = Outage(server.ping, clock)
    outage.suspect()
    assert await outage.error() is None
    assert server.pings == 1
    await clock.move(60_000)
    assert server.pings == 1, "it goes on probing a server that answers"


@pytest.mark.parametrize("error", [AWAY, OutcomeUnknown("ping: no answer.")])
@in_loop
async def test_all_who_ask_during_the_first_probe_are_told_its_finding(error: AibsError) -> None:
    server, clock = Server(), Hand()
    server.fault = error
    outage = Outage(server.ping, clock)
    outage.suspect()
    found = await asyncio.gather(*(outage.error() for _ in range(1_000)))
    assert set(found) == {error}
    assert server.pings == 1
    await outage.close()


@in_loop
async def test_a_server_that_hangs_is_away_after_the_probes_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "PROBE_S", 0.02)
    server, clock = Server(), Hand()
    server.fault = "hang"
    outage = Outage(server.ping, clock)
    outage.suspect()
    async with asyncio.timeout(5):
        error = await outage.error()
    assert isinstance(error, CoordinationUnavailable)
    assert "within 0.02 s" in error.sentence
    async with asyncio.timeout(0.01):
        assert await outage.error() is error, "the next one waits for a probe of its own"
    await outage.close()


@in_loop
async def test_while_it_is_away_it_is_probed_each_half_second_however_many_calls_fail() -> None:
    server, clock = Server(), Hand()
    server.fault = AWAY
    outage = Outage(server.ping, clock)
    for _ in range(10):
        for _ in range(100):
            outage.suspect()
        await clock.move(PROBE_EVERY_MS // 2)
    assert server.pings == 5
    assert server.most_at_once == 1
    await outage.close()


@in_loop
async def test_failures_on_a_server_that_answers_pings_do_not_each_send_one() -> None:
    server, clock = Server(), Hand()
    outage = Outage(server.ping, clock)
    for _ in range(100):
        outage.suspect()
        assert await outage.error() is None
        await clock.move(1)
    assert server.pings == 1
    await clock.move(PROBE_EVERY_MS)
    outage.suspect()
    assert await outage.error() is None
    assert server.pings == 2


@in_loop
async def test_the_first_probe_that_is_answered_ends_the_outage() -> None:
    server, clock = Server(), Hand()
    server.fault = AWAY
    outage = Outage(server.ping, clock)
    outage.suspect()
    assert await outage.error() is AWAY
    server.fault = None
    await clock.move(PROBE_EVERY_MS - 1)
    assert await outage.error() is AWAY, "it was not probed meanwhile"
    await clock.move(1)
    assert await outage.error() is None
    pings = server.pings
    await clock.move(60_000)
    assert server.pings == pings, "it goes on probing a server that is back"


@in_loop
async def test_an_answered_call_ends_the_outage_before_the_next_probe() -> None:
    server, clock = Server(), Hand()
    server.fault = AWAY
    outage = Outage(server.ping, clock)
    outage.suspect()
    assert await outage.error() is AWAY
    outage.answered()
    assert await outage.error() is None
    pings = server.pings
    await clock.move(60_000)
    assert server.pings == pings


@in_loop
async def test_an_answered_call_ends_the_waiting_for_a_probe_that_hangs() -> None:
    server, clock = Server(), Hand()
    server.fault = "hang"
    outage = Outage(server.ping, clock)
    outage.suspect()
    asking = asyncio.ensure_future(outage.error())
    await until(lambda: server.pings == 1)
    outage.answered()
    async with asyncio.timeout(0.1):
        assert await asking is None
    await outage.close()


@pytest.mark.parametrize("error", [PoolVersionMismatch("Another release."), KeyError("broken")])
@in_loop
async def test_what_is_no_absence_is_left_to_the_calls_themselves(error: BaseException) -> None:
    server, clock = Server(), Hand()
    server.fault = error
    outage = Outage(server.ping, clock)
    outage.suspect()
    assert await outage.error() is None
    await clock.move(60_000)
    assert server.pings == 1


@in_loop
async def test_closing_ends_the_probes_and_whoever_waits_for_one() -> None:
    server, clock = Server(), Hand()
    server.fault = "hang"
    outage = Outage(server.ping, clock)
    outage.suspect()
    asking = asyncio.ensure_future(outage.error())
    await until(lambda: server.at_once == 1)
    await outage.close()
    assert await asking is None
    assert server.at_once == 0
