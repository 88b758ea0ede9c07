"""What the elector writes to its log when the coordination server gives no answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

from aibs.clock import SystemClock
from aibs.errors import CoordinationUnavailable
from aibs.eventstore.replies import Elected
from aibs.monitor.elector import ElectionTiming, Elector

if TYPE_CHECKING:
    from collections.abc import Iterator

TTL_MS = 400


@pytest.fixture(autouse=True)
def _plain_logs() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


class Mute:
    """A pool that grants the term, or not even that, and then answers nothing or fails."""

    def __init__(self, *, elects: bool, fault: Exception | None = None) -> None:
        self._elects = elects
        self._fault = fault

    async def elect(self, *_: Any, **__: Any) -> Elected:
        if not self._elects:
            await asyncio.Event().wait()
        return Elected(1, TTL_MS, 0)

    async def renew(self, *_: Any, **__: Any) -> None:
        if self._fault is not None:
            raise self._fault
        await asyncio.Event().wait()

    async def resign(self, *_: Any) -> None:
        """Given back."""


class Nothing:
    """No vacancy is ever told."""

    async def wait(self) -> None:
        await asyncio.Event().wait()


async def _work() -> None:
    await asyncio.Event().wait()


async def told_by(pool: Mute, event: str) -> Any:
    """What the first such line says went wrong."""
    heard = asyncio.Event()

    async def unreachable() -> None:
        heard.set()

    elector = Elector(
        cast("Any", pool),
        "a",
        ElectionTiming(TTL_MS, TTL_MS),
        SystemClock(),
        vacancy=Nothing(),
        on_unreachable=unreachable,
    )
    with capture_logs() as lines:
        running = asyncio.create_task(elector.run(_work))
        async with asyncio.timeout(30):
            await heard.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return next(line["error"] for line in lines if line["event"] == event)


def test_a_renewal_without_an_answer_says_how_long_it_waited_for_one() -> None:
    told = asyncio.run(told_by(Mute(elects=True), "renewal_unanswered"))
    assert told == "no answer within 0.1 s"


def test_an_election_without_an_answer_says_how_long_it_waited_for_one() -> None:
    told = asyncio.run(told_by(Mute(elects=False), "coordination_unreachable"))
    assert told == "no answer within 0.1 s"


def test_a_fault_that_has_words_keeps_them() -> None:
    pool = Mute(elects=True, fault=CoordinationUnavailable("It is away."))
    assert "It is away." in asyncio.run(told_by(pool, "renewal_unanswered"))
