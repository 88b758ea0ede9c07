"""Each question of `aibs replay`, put to the server's log or to a file."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from aibs.clock import SystemClock
from aibs.errors import ConfigurationError, CorruptLog
from aibs.replay.as_of import as_of_document
from aibs.replay.diff import diff
from aibs.replay.entries import clause
from aibs.replay.explain import explain
from aibs.replay.export import export
from aibs.replay.points import Bound, bound_of
from aibs.replay.source import FileSource, LiveSource, Range, open_live
from aibs.replay.states import past
from aibs.replay.streaming import filter_at, followed, played, selected
from aibs.replay.verification import verify
from aibs.replay.what_if.ask import what_if

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from aibs.clock import Clock
    from aibs.replay.as_of import AsOfDocument
    from aibs.replay.diff import DiffDocument
    from aibs.replay.entries import Item
    from aibs.replay.header import LogHeader
    from aibs.replay.points import Point
    from aibs.replay.request import Asked
    from aibs.replay.source import Source
    from aibs.replay.story import ExplainDocument
    from aibs.replay.verify import VerifyDocument
    from aibs.replay.what_if.report import WhatIfDocument
    from aibs.reports.part import Part
    from aibs.settings import Settings


def to_json(document: Part) -> dict[str, Any]:
    """A document as printed."""
    return document.model_dump(mode="json", by_alias=True)


class Printer(Protocol):
    """Where items go."""

    def show(self, item: Item) -> None:
        """One more."""
        ...

    def flush(self) -> None:
        """All of them are to be seen now."""
        ...


async def supposed(source: Source, asked: Asked, clock: Clock) -> WhatIfDocument:
    """The recorded requests on another fleet."""
    wanted = await range_of(source, asked)
    with shown_or_told(source):
        return await what_if(source, wanted, asked.changes, clock)


@asynccontextmanager
async def open_source(file: Path | None, settings: Settings | None) -> AsyncIterator[Source]:
    """The file, or the settings' pool."""
    if file is not None:
        yield FileSource(file)
        return
    assert settings is not None
    async with open_live(settings) as source:
        yield source


@contextmanager
def shown_or_told(source: Source) -> Iterator[None]:
    """Raises CorruptLog where what the log says cannot be put into a document: a time beyond every
    calendar, a number where a name belongs.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise CorruptLog(
            f"What {source.name} tells cannot be shown: {clause(repr(error))}.",
            mend="Run it with --verify, which names the events.",
        ) from error


async def bound(source: Source, point: Point | None) -> Bound | None:
    """A moment on that source's clock."""
    if point is None:
        return None
    now_ms = await source.now_ms() if point.kind == "ago" else 0
    # Before now there is nothing in a log without events, whatever is asked for.
    return None if now_ms is None else bound_of(point, lambda: now_ms)


async def moment_of(source: Source, point: Point, option: str) -> Bound:
    """The same, of which a state is to be shown. Raises ConfigurationError where none exists."""
    found = await bound(source, point)
    if found is None:
        raise ConfigurationError(
            f"{source.name} holds no event, so it has no moment for {option}.",
            mend="Export a longer range of the log.",
        )
    return found


async def range_of(source: Source, asked: Asked) -> Range:
    """The range that is asked for."""
    return Range(since=await bound(source, asked.since), until=await bound(source, asked.until))


async def show_events(source: Source, asked: Asked, printer: Printer) -> None:
    """The events of a range, at once or at a pace."""
    items = selected(source, await range_of(source, asked), asked.wanted)
    if asked.speed is not None:
        items = played(items, asked.speed, SystemClock(), printer.flush)
    async for item in items:
        printer.show(item)
    printer.flush()


async def show_followed(
    source: LiveSource,
    settings: Settings,
    asked: Asked,
    printer: Printer,
    say: Callable[[str], None],
) -> None:
    """The events since a moment, or from now, and then as they come."""
    since = await bound(source, asked.since)
    last_id = await source.last_id()
    chosen = await filter_at(source, asked.wanted, since or Bound(id=last_id))
    if since is not None:
        async for item in source.items(Range(since=since, until=Bound(id=last_id))):
            if chosen.takes(item):
                printer.show(item)
    printer.flush()
    async for item in followed(settings, last_id, SystemClock(), say):
        if chosen.takes(item):
            printer.show(item)
            printer.flush()


async def as_of(source: Source, point: Point, clock: Clock) -> AsOfDocument:
    """The state at a moment. The clock's time is that of the document."""
    moment = await moment_of(source, point, "--as-of")
    with shown_or_told(source):
        found = await past(source, moment, "--as-of")
        return as_of_document(found, source.timing, source.namespace, generated_ms=clock.wall_ms())


async def diff_of(source: Source, points: tuple[Point, Point], clock: Clock) -> DiffDocument:
    """What changed between two moments."""
    first = await moment_of(source, points[0], "--diff")
    second = await moment_of(source, points[1], "--diff")
    with shown_or_told(source):
        return await diff(source, first, second, clock)


async def verified(source: Source, clock: Clock) -> VerifyDocument:
    """Whether the log is sound."""
    return await verify(source, clock)


async def explained(source: Source, name: str, clock: Clock) -> ExplainDocument:
    """The story of a lease or a request."""
    with shown_or_told(source):
        return await explain(source, name, clock)


async def exported(source: Source, asked: Asked, path: Path) -> LogHeader:
    """The range in a file."""
    wanted = await range_of(source, asked)
    return await export(source, path, since=wanted.since, until=wanted.until)
