"""A log, or a part of it, written into a file with all that reading it elsewhere needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.replay.archive import ArchiveWriter
from aibs.replay.entries import event_of
from aibs.replay.header import DeclaredFleet, LogHeader, Snapshot
from aibs.replay.source import Range
from aibs.replay.states import fold_before

if TYPE_CHECKING:
    from pathlib import Path

    from aibs.replay.entries import Item
    from aibs.replay.folding import Folded
    from aibs.replay.points import Bound
    from aibs.replay.source import Source


async def export(
    source: Source, path: Path, *, since: Bound | None = None, until: Bound | None = None
) -> LogHeader:
    """Write the range, and what was written. A range that does not begin with the log's first event
    carries the state before it.
    """
    start = await fold_before(source, since)
    fleet = None if start is None else _fleet_of(start)
    pool_id = source.pool_id
    # A trimmed log is told from its oldest state on.
    after = start.last_id if start is not None and since is None else None
    wanted = Range(after=after, since=since, until=until)
    with ArchiveWriter(path) as writer:
        async for item in source.items(wanted):
            fleet = _fleet_in(item) or fleet
            pool_id = pool_id or _pool_in(item)
            writer.add(item)
        header = LogHeader(
            schema="aibs.log/1",
            pool_id=pool_id,
            namespace=source.namespace,
            timing=source.timing,
            snapshot=None if start is None else Snapshot(id=start.last_id, state=start.document()),
            fleet=fleet,
            count=writer.count,
            first_id=writer.first_id,
            last_id=writer.last_id,
        )
        writer.finish(header)
    return header


def _fleet_of(folded: Folded) -> DeclaredFleet | None:
    declared = folded.coordination.declared
    if declared.document is None or declared.revision is None or declared.fingerprint is None:
        return None
    return DeclaredFleet(
        revision=declared.revision,
        fingerprint=declared.fingerprint,
        document=declared.document,
    )


def _fleet_in(item: Item) -> DeclaredFleet | None:
    event = event_of(item)
    if event is None or event.type != "FleetDeclared":
        return None
    data = event.data
    try:
        return DeclaredFleet(
            revision=data["revision"], fingerprint=data["fingerprint"], document=data["fleet"]
        )
    except (KeyError, ValueError):
        return None  # a damaged declaration: it stands among the events as it is


def _pool_in(item: Item) -> str | None:
    event = event_of(item)
    if event is None or event.type != "PoolCreated":
        return None
    pool_id = event.data.get("pool_id")
    return pool_id if isinstance(pool_id, str) else None
