"""What was kept of the log's past, and what was let go."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from aibs.eventstore.events.envelope import EventData


class SnapshotFold(BaseModel):
    """One fold in a snapshot. `sha256` is of its canonical JSON, `bytes` counts what is stored."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: str
    version: int
    parts: int
    bytes: int
    codec: str
    sha256: str


class SnapshotTaken(EventData):
    """The folds' states after the event `upto_id` are kept, to begin there later."""

    TYPE: ClassVar[str] = "SnapshotTaken"

    snapshot_id: str
    upto_id: str
    upto_seq: int
    digest: str
    folds: list[SnapshotFold]


class LogTrimmed(EventData):
    """The `removed` oldest events are gone, the last of them `upto_id`; the log begins at
    `first_id`. The snapshot stands in for them. `why` is age or bytes.
    """

    TYPE: ClassVar[str] = "LogTrimmed"

    snapshot_id: str
    first_id: str
    upto_id: str
    upto_seq: int
    removed: int
    why: str
