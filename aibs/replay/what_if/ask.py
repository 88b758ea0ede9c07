"""The question put to a log: read the range, simulate twice, compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.errors import Refused
from aibs.fleet import Fleet, InvalidFleetDocument
from aibs.replay.entries import event_of
from aibs.replay.states import fold_before
from aibs.replay.what_if.changes import require_names
from aibs.replay.what_if.reader import Reader
from aibs.replay.what_if.report import document_of
from aibs.replay.what_if.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aibs.clock import Clock
    from aibs.replay.source import Range, Source
    from aibs.replay.what_if.changes import Change
    from aibs.replay.what_if.report import WhatIfDocument


async def what_if(
    source: Source, wanted: Range, changes: Sequence[Change], clock: Clock
) -> WhatIfDocument:
    """Before and after. Raises Refused where the range has no request or no fleet,
    ConfigurationError where a change names what the fleet does not have.
    """
    start = await fold_before(source, wanted.since)
    fleet = None
    begins_ms = 0 if start is None else start.at_ms
    if start is not None and start.coordination.declared.document is not None:
        try:
            fleet = Fleet.from_document(start.coordination.declared.document)
        except InvalidFleetDocument:
            fleet = None
    if wanted.since is not None and wanted.since.at_ms is not None:
        begins_ms = wanted.since.at_ms
    reader = Reader(fleet, begins_ms)
    if start is not None:
        reader.begin_with(start.coordination)
    async for item in source.items(wanted):
        event = event_of(item)
        if event is not None:
            reader.feed(event)
    recorded = reader.done()
    if not recorded.fleets:
        raise Refused(
            f"{source.name} declares no fleet in that range.", mend="Begin with an earlier event."
        )
    require_names([fleet for _, fleet in recorded.fleets], changes)
    if not recorded.tally.requests:
        raise Refused(f"{source.name} has no request in that range.", mend="Take a longer range.")
    unchanged = Simulation(recorded, (), source.timing)
    before = unchanged.run()
    after = Simulation(recorded, changes, source.timing).run()
    return document_of(
        recorded, changes, before, after, unchanged.agreement, generated_ms=clock.wall_ms()
    )
