"""A placement world whose log is kept: snapshots taken and read, events let go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aibs.codec import dumps
from aibs.eventstore.snapshots import Snapshots, SnapshotWriter, pack
from aibs.history import catch_up, catch_up_all
from aibs.projections import Coordination, Engine
from aibs.projections.catalogue import all_folds
from tests.property.placed_histories import Walk

if TYPE_CHECKING:
    from aibs.eventstore.snapshots import SnapshotInfo, Trimmed
    from aibs.history import Reading


class StillClock:
    """A keeper's: nothing is waited for."""

    def boottime_ms(self) -> int:
        """Always the same."""
        return 0

    def wall_ms(self) -> int:
        """Always the same."""
        return 0

    async def sleep(self, seconds: float) -> None:
        """Others have their turn."""
        await asyncio.sleep(min(seconds, 0.001))


LONG_MS = 10**12
MUCH = 2**50


class KeptWorld:
    """A walk through the placement world, and the owner's hand on its log."""

    def __init__(self, url: str, seed: int) -> None:
        self.walk = Walk(url, seed)
        self.world = self.walk.world
        self.snapshots = Snapshots(self.world.client, self.world.keys)
        self.taken = 0

    def close(self) -> None:
        """Leave nothing on the server."""
        self.walk.close()

    @property
    def writer(self) -> SnapshotWriter:
        """As the owner of the present term."""
        return SnapshotWriter(self.world.pool, "owner", self.world.fence)

    def read(self, until: str | None = None) -> Reading:
        """Every fold, caught up with."""
        found: Reading = self.world.run(catch_up_all(self.world.log, self.snapshots, until=until))
        return found

    def state(self, until: str | None = None) -> Coordination:
        """The coordination state, caught up with."""
        found: Coordination = self.world.run(catch_up(self.world.log, self.snapshots, until))
        return found

    def listed(self) -> tuple[SnapshotInfo, ...]:
        """The snapshots, the newest first."""
        found: tuple[SnapshotInfo, ...] = self.world.run(self.snapshots.list())
        return found

    def take(self, snapshot_id: str | None = None, writer: SnapshotWriter | None = None) -> str:
        """A snapshot of every fold now: the ID of its event."""
        self.taken += 1
        reading = self.read()
        packed = [pack(fold.document()) for fold in reading.folds]
        event_id: str = self.world.run(
            (writer or self.writer).take(
                snapshot_id or f"snapshot-{self.taken}",
                reading.anchor,
                reading.engine.position.at_ms,
                packed,
            )
        )
        return event_id

    def trim(
        self,
        info: SnapshotInfo | None = None,
        *,
        digest: str | None = None,
        retention_ms: int = -LONG_MS,
        max_bytes: int = MUCH,
        batch_max: int = 1000,
        writer: SnapshotWriter | None = None,
    ) -> Trimmed:
        """Let go what may go behind a snapshot, the newest where none is named."""
        base = info or self.listed()[0]
        verified = digest or self.world.run(self.snapshots.read_back(base))
        done: Trimmed = self.world.run(
            (writer or self.writer).trim(
                base,
                verified,
                retention_ms=retention_ms,
                max_bytes=max_bytes,
                batch_max=batch_max,
            )
        )
        return done

    def in_log(self) -> list[Any]:
        """Every event that the log has."""

        async def read() -> list[Any]:
            return [event async for event in self.world.log.read()]

        found: list[Any] = self.world.run(read())
        return found


def folded(events: list[Any]) -> Coordination:
    """From the beginning."""
    folds = all_folds()
    Engine.joining(folds).apply_all(events)
    assert isinstance(folds[0], Coordination)
    return folds[0]


def states(reading: Reading) -> dict[str, bytes]:
    """Canonical documents by fold."""
    return {fold.name: dumps(fold.document()) for fold in reading.folds}
