"""The recorded incident as tests read it: real events of real processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aibs.eventstore.events import Event
from aibs.replay.archive import ArchiveReader, ArchiveWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aibs.replay.entries import Item
    from aibs.replay.header import LogHeader

PATH = Path(__file__).parent / "data" / "incident.ndjson.gz"


def items() -> list[Event]:
    """Every event."""
    found = []
    for item in ArchiveReader(PATH).items():
        assert isinstance(item, Event)
        found.append(item)
    return found


def header() -> LogHeader:
    """What stands before them."""
    return ArchiveReader(PATH).header


def write(path: Path, events: Iterable[Item]) -> Path:
    """A file that holds these, with a header that counts them."""
    with ArchiveWriter(path) as writer:
        for event in events:
            writer.add(event)
        writer.finish(
            header().model_copy(
                update={
                    "count": writer.count,
                    "first_id": writer.first_id,
                    "last_id": writer.last_id,
                }
            )
        )
    return path
