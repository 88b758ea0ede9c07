"""Catching up with a log, from its newest usable snapshot or from its beginning."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.errors import CorruptLog, TrimmedLog, TruncatedLog, UnusableSnapshot
from aibs.eventstore.anchor import Anchor, check_anchor, id_order
from aibs.eventstore.log import after
from aibs.projections.catalogue import FOLDS
from aibs.projections.coordination import Coordination
from aibs.projections.engine import Engine, Fold, UnusableDocument

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from aibs.eventstore.events import Event
    from aibs.eventstore.log import Log
    from aibs.eventstore.snapshots import SnapshotInfo, Snapshots

BATCH = 200
"""Events folded between two turns of the event loop: a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Folds that were read as one. `began` is the snapshot that they were read on from, None: the
    log's beginning; `passed_over` says of newer snapshots why they were not used.
    """

    engine: Engine
    began: SnapshotInfo | None
    passed_over: tuple[str, ...]

    @property
    def folds(self) -> tuple[Fold, ...]:
        """In the order asked for."""
        return self.engine.folds

    @property
    def anchor(self) -> Anchor:
        """The last event that was read."""
        return anchor_of(self.engine)


def anchor_of(engine: Engine) -> Anchor:
    """The last event that an engine read."""
    position = engine.position
    return Anchor(position.last_id, position.seq, position.last_hash)


async def catch_up(log: Log, snapshots: Snapshots, until: str | None = None) -> Coordination:
    """The coordination state after the event `until`, inclusive; None: after the newest.

    Its `began` says from where it was read. Raises TruncatedLog where that state cannot be had.
    """
    return _coordination(await catch_up_all(log, snapshots, (Coordination,), until))


async def oldest_state(snapshots: Snapshots) -> Coordination | None:
    """The state of the oldest usable snapshot: where the states of a trimmed log begin.

    None where there is none, or where the log reaches back to its beginning.
    """
    try:
        await check_anchor(snapshots.client, snapshots.keys, Anchor())
    except TrimmedLog:
        for info in reversed(await snapshots.list()):
            found, _ = await _from_snapshot(snapshots, (Coordination,), info.upto_id)
            if found is not None:
                return _coordination(found)
    return None


async def newest_state(snapshots: Snapshots, until: str | None = None) -> Coordination | None:
    """The state of the newest usable snapshot at or before the event `until`, to read on from.

    None where there is none, whether or not the log reaches back to its beginning.
    """
    found, _ = await _from_snapshot(snapshots, (Coordination,), until)
    return None if found is None else _coordination(found)


def _coordination(reading: Reading) -> Coordination:
    """The state that was read alone, with where it began."""
    (state,) = reading.folds
    assert isinstance(state, Coordination)
    state.began = None if reading.began is None else reading.began.upto_id
    return state


async def catch_up_all(
    log: Log,
    snapshots: Snapshots,
    folds: Sequence[type[Fold]] = tuple(FOLDS.values()),
    until: str | None = None,
) -> Reading:
    """Folds after the event `until`, inclusive; None: after the newest.

    Raises TruncatedLog where the log does not reach back and no snapshot stands in.
    """
    reading = await _begin(snapshots, folds, until)
    await read_on(log, reading.engine, until)
    return reading


async def read_on(log: Log, engine: Engine, until: str | None = None) -> int:
    """Fold what came since; how many events. Others have their turn between batches."""
    position = engine.position
    before = position.events
    start = "-" if position.seq == 0 else after(position.last_id)
    async with aclosing(log.batches(start, until or "+", batch=BATCH)) as batches:
        async for entries in batches:
            engine.apply_entries(entries)
            await asyncio.sleep(0)
    return engine.position.events - before


async def follow(
    log: Log, snapshots: Snapshots, engine: Engine, *, block_ms: int
) -> AsyncGenerator[Event, None]:
    """Events as they come, each after the folds were told of it, without end.

    The log's client must be one opened for following. Raises TrimmedLog, RewoundLog, ReplacedLog
    where the folds can no longer be read on: catch up anew.
    """
    await check_anchor(snapshots.client, snapshots.keys, anchor_of(engine))
    try:
        async for event in log.follow(engine.position.last_id, block_ms=block_ms):
            if engine.position.seq and event.seq != engine.position.seq + 1:
                # A hole, or another log under the same name: the anchor tells.
                await check_anchor(snapshots.client, snapshots.keys, anchor_of(engine))
            engine.apply(event)
            yield event
    except TruncatedLog:
        await check_anchor(snapshots.client, snapshots.keys, anchor_of(engine))
        raise


async def _begin(snapshots: Snapshots, folds: Sequence[type[Fold]], until: str | None) -> Reading:
    found, passed_over = await _from_snapshot(snapshots, folds, until)
    if found is not None:
        return found
    try:
        await check_anchor(snapshots.client, snapshots.keys, Anchor())
    except TrimmedLog as error:
        why = f" ({'; '.join(passed_over)})" if passed_over else ""
        raise TrimmedLog(
            f"{error.sentence} No snapshot that can be used stands in for them{why}.",
            mend="Ask for a later moment, or read an exported log.",
        ) from error
    return Reading(Engine.joining([fold() for fold in folds]), None, passed_over)


async def _from_snapshot(
    snapshots: Snapshots, folds: Sequence[type[Fold]], until: str | None
) -> tuple[Reading | None, tuple[str, ...]]:
    """Folds as the newest usable snapshot has them, and why newer ones were passed over."""
    passed_over: list[str] = []
    for info in await snapshots.list():
        if until is not None and id_order(info.upto_id) > id_order(until):
            continue
        try:
            await check_anchor(snapshots.client, snapshots.keys, info.anchor)
            engine = await _load(snapshots, info, folds)
        except (UnusableSnapshot, UnusableDocument, TruncatedLog, CorruptLog) as error:
            passed_over.append(f"{info.upto_id}: {error}")
            continue
        return Reading(engine, info, tuple(passed_over)), tuple(passed_over)
    return None, tuple(passed_over)


async def _load(snapshots: Snapshots, info: SnapshotInfo, folds: Sequence[type[Fold]]) -> Engine:
    found = [fold.from_document(await snapshots.document(info, fold.name)) for fold in folds]
    if any(one.stopped_at is not None or one.last_id != info.upto_id for one in found):
        raise UnusableSnapshot(f"The snapshot {info.snapshot_id} tells of another event.")
    try:
        return Engine.joining(found)
    except ValueError as error:
        raise UnusableSnapshot(f"The snapshot {info.snapshot_id} is not of one event.") from error
