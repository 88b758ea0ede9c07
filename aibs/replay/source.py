"""Where events are read from: the server's log, or a file. Both give the same answers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aibs.errors import PoolMissing
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log, after
from aibs.eventstore.snapshots import Snapshots
from aibs.eventstore.state import LiveState
from aibs.history import newest_state, oldest_state
from aibs.replay.archive import ArchiveReader
from aibs.replay.entries import event_of, order, read_entry
from aibs.replay.folding import from_document
from aibs.replay.header import Timing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aibs.eventstore.commands import Commands
    from aibs.projections.coordination import Coordination
    from aibs.replay.archive import Fault
    from aibs.replay.entries import Item
    from aibs.replay.points import Bound
    from aibs.settings import Settings

ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Range:
    """Which items: those behind the ID `after`, from `since` to `until`, both inclusive."""

    after: str | None = None
    since: Bound | None = None
    until: Bound | None = None


WHOLE = Range()


def behind(base: Coordination | None) -> Range:
    """What follows a state."""
    return WHOLE if base is None else Range(after=base.last_id)


class Source(Protocol):
    """A log to read. `name` is for sentences; `fault` is where a file stopped being readable."""

    @property
    def live(self) -> bool:
        """Whether it is the server's, which goes on."""
        ...

    @property
    def name(self) -> str: ...
    @property
    def pool_id(self) -> str | None: ...
    @property
    def namespace(self) -> str: ...
    @property
    def timing(self) -> Timing: ...
    @property
    def fault(self) -> Fault | None: ...

    def items(self, wanted: Range = WHOLE) -> AsyncIterator[Item]:
        """Events and damaged entries in the log's order."""
        ...

    async def base(self, until: Bound | None) -> Coordination | None:
        """A state at or before that moment to fold on from; None: the first event is the first."""
        ...

    async def beginning(self) -> Coordination | None:
        """The state from which everything is told; None: the first event is the first of all."""
        ...

    async def now_ms(self) -> int | None:
        """The server's time; of a file, its last event's, or that of the state that it begins with;
        None where it has neither.
        """
        ...


class FileSource:
    """An exported log."""

    live = False

    def __init__(self, path: Path) -> None:
        self._reader = ArchiveReader(path)
        header = self._reader.header
        self.name = str(path)
        self.pool_id, self.namespace = header.pool_id, header.namespace
        self.timing = header.timing
        self._now_ms: int | None = None

    @property
    def fault(self) -> Fault | None:
        """Known once the file was read to where it stops."""
        return self._reader.fault

    async def items(self, wanted: Range = WHOLE) -> AsyncIterator[Item]:
        """Read from the first line, whatever part is wanted."""
        begins = wanted.after is None and wanted.since is None
        for item in self._reader.items():
            if wanted.until is not None and _beyond(item, wanted.until):
                return
            begins = begins or _begins(item, wanted)
            if begins:
                yield item

    async def base(self, until: Bound | None) -> Coordination | None:
        """What the file was exported with."""
        snapshot = self._reader.header.snapshot
        if snapshot is None or (
            until is not None and until.id is not None and order(until.id) < order(snapshot.id)
        ):
            return None
        return from_document(snapshot.state)

    async def beginning(self) -> Coordination | None:
        """What the file was exported with."""
        return await self.base(None)

    async def now_ms(self) -> int | None:
        """The last event's time, else that of the state that it begins with."""
        if self._now_ms is None:
            base = await self.base(None)
            self._now_ms = None if base is None else base.position.at_ms
            for item in self._reader.items():
                event = event_of(item)
                self._now_ms = event.at_ms if event is not None else self._now_ms
        return self._now_ms


class LiveSource:
    """The log of the settings' pool. Never starts a server, writes nothing."""

    live = True
    fault: Fault | None = None

    def __init__(self, client: Commands, settings: Settings, pool_id: str | None) -> None:
        self.keys = Keys(settings.model_cluster_namespace)
        self.client = client
        self.name = f"the log of the pool {self.keys.namespace}"
        self.pool_id, self.namespace = pool_id, self.keys.namespace
        self.timing = timing_of(settings)
        self._log = Log(client, self.keys)

    async def items(self, wanted: Range = WHOLE) -> AsyncIterator[Item]:
        """Read from where the part begins."""
        start, end = "-", "+"
        if wanted.after is not None:
            start = after(wanted.after)
        elif wanted.since is not None:
            start = await self._first(wanted.since)
        if wanted.until is not None:
            end = await self.last_id_at(wanted.until)
        if start == "+" or end == "0-0":
            return
        async for entry in self._log.entries(start, end):
            yield read_entry(*entry)

    async def last_id(self) -> str:
        """The ID of the newest event."""
        return await self._log.last_id()

    async def _first(self, since: Bound) -> str:
        """Where to start, inclusive; + where every event is older."""
        if since.id is not None:
            return since.id
        assert since.at_ms is not None
        return await self._first_after(since.at_ms - 1) or "+"

    async def last_id_at(self, until: Bound) -> str:
        """The ID of the last event before the first that is younger; 0-0 where all are."""
        if until.id is not None:
            return until.id
        assert until.at_ms is not None
        first = await self._first_after(until.at_ms)
        return "+" if first is None else _before(first)

    async def _first_after(self, at_ms: int) -> str | None:
        """The ID of the first event that is younger than `at_ms`.

        The server writes the time into the IDs, so one look finds it, unless the stream was copied
        there or its clock was set otherwise: then every event is looked at.
        """
        boundary = f"{at_ms + 1}-0"
        try:
            first = await anext(self._log.entries(boundary, "+", batch=1), None)
            before = await self._log.newest_entry(after(boundary))
            at_first = None if first is None else _at_ms(read_entry(*first))
            at_before = None if before is None else _at_ms(read_entry(*before))
        except _NoTime:
            return await self._scan_after(at_ms)
        if (at_first is None or at_first > at_ms) and (at_before is None or at_before <= at_ms):
            return None if first is None else first[0].decode()
        return await self._scan_after(at_ms)

    async def _scan_after(self, at_ms: int) -> str | None:
        async for entry in self._log.entries():
            event = event_of(read_entry(*entry))
            if event is not None and event.at_ms > at_ms:
                return event.id
        return None

    async def base(self, until: Bound | None) -> Coordination | None:
        """The newest usable snapshot's, which spares a long log's reading."""
        last_id = "+" if until is None else await self.last_id_at(until)
        snapshots = Snapshots(self.client, self.keys)
        return await newest_state(snapshots, None if last_id == "+" else last_id)

    async def beginning(self) -> Coordination | None:
        """The oldest usable snapshot's, where the log was trimmed."""
        return await oldest_state(Snapshots(self.client, self.keys))

    async def now_ms(self) -> int:
        """The server's clock."""
        return await LiveState(self.client, self.keys).server_now_ms()


class _NoTime(Exception):
    """A damaged entry tells no time."""


def _at_ms(item: Item) -> int:
    event = event_of(item)
    if event is None:
        raise _NoTime
    return event.at_ms


def _before(entry_id: str) -> str:
    """The greatest ID below."""
    ms, number = order(entry_id)
    return f"{ms}-{number - 1}" if number else f"{ms - 1}-{2**64 - 1}"


def _beyond(item: Item, until: Bound) -> bool:
    if until.id is not None:
        return item.id is not None and order(item.id) > order(until.id)
    event = event_of(item)
    return event is not None and until.at_ms is not None and event.at_ms > until.at_ms


def _begins(item: Item, wanted: Range) -> bool:
    if wanted.after is not None:
        return item.id is not None and order(item.id) > order(wanted.after)
    since = wanted.since
    assert since is not None
    if since.id is not None:
        return item.id is not None and order(item.id) >= order(since.id)
    event = event_of(item)
    return event is not None and since.at_ms is not None and event.at_ms >= since.at_ms


def timing_of(settings: Settings) -> Timing:
    """The settings that a state's wording depends on."""
    return Timing(
        staleness_ms=settings.max_residency_staleness_ms,
        heartbeat_ms=settings.heartbeat_interval_ms,
        swap_max_ms=settings.swap_max_wait_ms,
    )


@asynccontextmanager
async def open_live(settings: Settings) -> AsyncIterator[LiveSource]:
    """The settings' pool. Raises PoolMissing where it has neither state nor log."""
    client = commands(
        await open_client(
            settings.model_pool_url,
            data_dir=Path(settings.data_dir),
            purpose="read",
            timeout_s=ANSWER_TIMEOUT_S,
        )
    )
    try:
        keys = Keys(settings.model_cluster_namespace)
        pool = await LiveState(client, keys).pool()
        if pool is None and not await Log(client, keys).length():
            raise PoolMissing(
                f"There is no pool {keys.namespace} on the coordination server.",
                mend="Start `aibs monitor`, or name the pool's namespace in "
                "AIBS_MODEL_CLUSTER_NAMESPACE.",
            )
        yield LiveSource(client, settings, None if pool is None else pool.pool_id)
    finally:
        await client.aclose()
