"""Events one after the other: a range, played back at a speed, or followed as they come."""

from __future__ import annotations

import re
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from aibs.errors import ConfigurationError, CoordinationUnavailable, TruncatedLog
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.replay.entries import event_of, read_entry
from aibs.replay.filters import Filter, Wanted
from aibs.replay.states import fold_to, just_before

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from aibs.clock import Clock
    from aibs.replay.entries import Item
    from aibs.replay.points import Bound
    from aibs.replay.source import Range, Source
    from aibs.settings import Settings

BLOCK_MS = 1000
CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.5
SPEED_MAX = 1_000_000
_SPEED = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,6})?)x?")


def read_speed(text: str) -> float:
    """`10x`, `0.5x`, `3`. Raises ConfigurationError."""
    match = _SPEED.fullmatch(text.strip().lower())
    speed = float(match.group(1)) if match else 0.0
    if not 0 < speed <= SPEED_MAX:
        raise ConfigurationError(
            f"--speed is {text[:40]!r}, not a speed.", mend="Write it like 10x, 1x or 0.5x."
        )
    return speed


async def selected(source: Source, wanted: Range, asked: Wanted) -> AsyncIterator[Item]:
    """The items of a range that are asked for."""
    chosen = await filter_at(source, asked, wanted.since)
    async for item in source.items(wanted):
        if chosen.takes(item):
            yield item


async def filter_at(source: Source, asked: Wanted, since: Bound | None) -> Filter:
    """A filter that knows the leases and waiters of where it begins."""
    if not asked.by_concern or since is None:
        base = await source.beginning() if asked.by_concern else None
        return Filter(asked, base)
    folded, _ = await fold_to(source, just_before(since))
    return Filter(asked, folded.coordination)


async def played(
    items: AsyncIterator[Item], speed: float, clock: Clock, pause: Callable[[], None]
) -> AsyncIterator[Item]:
    """The items at the pace of their times, so many times faster. `pause` is called before each
    wait, so that what was given is shown.
    """
    first_ms: int | None = None
    began_ms = clock.boottime_ms()
    async for item in items:
        event = event_of(item)
        if event is not None:
            first_ms = event.at_ms if first_ms is None else first_ms
            due_ms = began_ms + (event.at_ms - first_ms) / speed
            left_ms = due_ms - clock.boottime_ms()
            if left_ms > 0:
                pause()
                await clock.sleep(left_ms / 1000)
        yield item


async def followed(
    settings: Settings, last_id: str, clock: Clock, say: Callable[[str], None]
) -> AsyncIterator[Item]:
    """The items after `last_id` as they come, without end, over restarts of the server.

    Raises CoordinationUnavailable only where the server was never reached.
    """
    cursor, reached, away = last_id, False, False
    while True:
        try:
            async with aclosing(_connected(settings, cursor)) as items:
                async for item in items:
                    reached = True
                    if away:
                        say("The coordination server is back.")
                        away = False
                    if item is None:
                        continue
                    cursor = item.id or cursor
                    yield item
        except CoordinationUnavailable as error:
            if not reached:
                raise
            if not away:
                say(f"{error.sentence} Waiting for it.")
                away = True
            await clock.sleep(RETRY_S)
        except TruncatedLog as error:
            cursor = await _end(settings)
            say(f"{error.sentence} Following it from its present end, {cursor}.")


async def _connected(settings: Settings, cursor: str) -> AsyncGenerator[Item | None, None]:
    """None once the server answered, then the items."""
    client = commands(
        await open_client(
            settings.model_pool_url,
            data_dir=Path(settings.data_dir),
            purpose="follow",
            timeout_s=CONNECT_TIMEOUT_S,
        )
    )
    try:
        yield None
        log = Log(client, Keys(settings.model_cluster_namespace))
        async with aclosing(log.follow_entries(cursor, block_ms=BLOCK_MS)) as entries:
            async for entry in entries:
                yield read_entry(*entry)
    finally:
        await client.aclose()


async def _end(settings: Settings) -> str:
    client = commands(
        await open_client(
            settings.model_pool_url,
            data_dir=Path(settings.data_dir),
            purpose="read",
            timeout_s=CONNECT_TIMEOUT_S,
        )
    )
    try:
        return await Log(client, Keys(settings.model_cluster_namespace)).last_id()
    finally:
        await client.aclose()
