"""The owner's care for the log: it keeps the folds' states, reads them back, and trims behind them.

Runs beside the polling on a connection of its own, in small steps, so that it delays nothing. What
cannot be read back is not trimmed behind; what the folds cannot read is never kept as a state.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs import logs
from aibs.codec import loads
from aibs.errors import (
    AibsError,
    CoordinationUnavailable,
    Fenced,
    OutcomeUnknown,
    TruncatedLog,
    UnusableSnapshot,
)
from aibs.eventstore.anchor import check_anchor, log_ends
from aibs.eventstore.reading import answered
from aibs.eventstore.snapshots import Snapshots, SnapshotWriter, digest_of, pack
from aibs.history.catch_up import catch_up_all, read_on
from aibs.monitor.elector import TermLost
from aibs.projections.catalogue import FOLDS
from aibs.projections.engine import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aibs.clock import Clock
    from aibs.eventstore.anchor import LogEnds
    from aibs.eventstore.log import Log
    from aibs.eventstore.pool import CoordinationPool
    from aibs.eventstore.snapshots import Packed, SnapshotInfo, Trimmed
    from aibs.history.catch_up import Reading

LOOK_EVERY_MS = 5_000
REPEAT_S = 0.2
TRIM_BATCH = 500
TRIM_PAUSE_S = 0.01
"""Between two batches: others have their turn on the server."""


@dataclass(frozen=True, slots=True)
class KeepingRules:
    """When a state is kept, and what of the log goes. A snapshot is due after so many events or
    milliseconds of the log, whichever is first.
    """

    retention_ms: int
    max_bytes: int
    snapshot_events: int = 50_000
    snapshot_ms: int = 3_600_000
    look_every_ms: int = LOOK_EVERY_MS


def base_for_trim(
    snapshots: Sequence[SnapshotInfo],
    ends: LogEnds,
    log_bytes: int,
    now_ms: int,
    rules: KeepingRules,
) -> SnapshotInfo | None:
    """The snapshot that the log may begin with: everything before it is too old or too much.

    Events between the log's beginning and its first snapshot tell no state, so what goes is what
    lies before a snapshot. None: nothing is to go.
    """
    over = 0
    if log_bytes > rules.max_bytes:
        over = -(-ends.length * (log_bytes - rules.max_bytes) // log_bytes)
    oldest_first = sorted(snapshots, key=lambda info: info.upto_seq)
    aged = [info for info in oldest_first if now_ms - info.upto_at_ms > rules.retention_ms]
    wanted = aged[-1] if aged else None
    if over:
        beyond = [info for info in oldest_first if info.upto_seq >= ends.first_seq + over]
        enough = beyond[0] if beyond else (oldest_first[-1] if oldest_first else None)
        if enough is not None and (wanted is None or enough.upto_seq > wanted.upto_seq):
            wanted = enough
    if wanted is None or wanted.upto_seq <= ends.first_seq:
        return None
    return wanted


class Keeper:
    """Keeps states and trims, as the owner of one term."""

    def __init__(
        self,
        pool: CoordinationPool,
        log: Log,
        owner: str,
        fence: int,
        rules: KeepingRules,
        clock: Clock,
    ) -> None:
        self._writer = SnapshotWriter(pool, owner, fence)
        self._snapshots = Snapshots(pool.client, pool.keys)
        self._source = log
        self._rules = rules
        self._clock = clock
        self._log = logs.get("aibs.monitor.keeper", owner=owner, fence=fence)
        self._reading: Reading | None = None
        self._verified: dict[str, str] = {}
        self._began_at_ms: int | None = None
        self._stopped_told = False
        self.kept = 0
        self.removed = 0

    async def run(self) -> None:
        """Look, keep and trim until cancelled. Raises TermLost when the server refuses the term."""
        failing = ""
        while True:
            try:
                await self.look()
                failing = ""
            except Fenced as error:
                raise TermLost("fenced") from error
            except AibsError as error:
                if isinstance(error, TruncatedLog):
                    self._reading = None
                if str(error) != failing:
                    self._log.warning("keeping_failed", error=str(error))
                    failing = str(error)
            await self._clock.sleep(self._rules.look_every_ms / 1000)

    async def look(self) -> None:
        """Fold what came; keep the state where it is due; let go what may go."""
        await self._read()
        assert self._reading is not None
        if self._folds_stopped():
            return
        known = await self._snapshots.list()
        if self._due(known):
            await self.keep()
            known = await self._snapshots.list()
        await self._trim(known)

    async def _read(self) -> None:
        if self._reading is None:
            self._reading = await catch_up_all(self._source, self._snapshots, tuple(FOLDS.values()))
            for why in self._reading.passed_over:
                self._log.warning("snapshot_passed_over", why=why)
            return
        await check_anchor(self._snapshots.client, self._snapshots.keys, self._reading.anchor)
        await read_on(self._source, self._reading.engine)

    def _folds_stopped(self) -> bool:
        """A state that a fold could not read on from must not stand in for its events."""
        assert self._reading is not None
        stopped = [fold for fold in self._reading.folds if fold.stopped_at is not None]
        if stopped and not self._stopped_told:
            self._stopped_told = True
            self._log.warning(
                "keeping_stopped", folds=[fold.name for fold in stopped], why=stopped[0].stopped_why
            )
        return bool(stopped)

    def _due(self, known: Sequence[SnapshotInfo]) -> bool:
        assert self._reading is not None
        position = self._reading.engine.position
        if position.seq == 0:
            return False
        if self._began_at_ms is None:
            self._began_at_ms = position.at_ms
        newest = known[0] if known else None
        seq, at_ms = (newest.upto_seq, newest.upto_at_ms) if newest else (0, self._began_at_ms)
        return (
            position.seq - seq >= self._rules.snapshot_events
            or position.at_ms - at_ms >= self._rules.snapshot_ms
        )

    async def keep(self) -> SnapshotInfo:
        """Take a snapshot of every fold as it is now, and read it back."""
        assert self._reading is not None
        reading, position = self._reading, self._reading.engine.position
        anchor, at_ms = reading.anchor, position.at_ms
        snapshot_id = f"{anchor.seq}.{secrets.token_hex(4)}"
        packed = await asyncio.to_thread(_packed, reading)
        while True:
            try:
                event_id = await self._writer.take(snapshot_id, anchor, at_ms, packed)
            except (OutcomeUnknown, CoordinationUnavailable) as error:
                # The same snapshot goes on: if it was completed unheard, its repeat says so.
                self._log.warning("snapshot_unanswered", error=str(error))
                await self._clock.sleep(REPEAT_S)
            else:
                break
        found = {info.snapshot_id: info for info in await self._snapshots.list()}
        info = found.get(snapshot_id)
        if info is None:
            raise UnusableSnapshot(f"The snapshot {snapshot_id} is gone after it was taken.")
        await self._verify(info)
        self.kept += 1
        self._log.info(
            "snapshot_taken",
            event_id=event_id,
            upto_id=info.upto_id,
            bytes=sum(fold.bytes for fold in info.folds),
        )
        return info

    async def _verify(self, info: SnapshotInfo) -> str:
        """Read it back, and make folds of it that write the same. Raises UnusableSnapshot."""
        known = self._verified.get(info.snapshot_id)
        if known is not None:
            return known
        found = []
        for stored in info.folds:
            text = await self._snapshots.text(info, stored.name)
            try:
                again = await asyncio.to_thread(_written_again, stored.name, text)
            except (KeyError, ValueError) as error:
                raise UnusableSnapshot(
                    f"The snapshot {info.snapshot_id} cannot be read back: {error}."
                ) from error
            found.append((stored.name, again))
        together = digest_of(found)
        if together != info.digest:
            raise UnusableSnapshot(
                f"The snapshot {info.snapshot_id} reads back as another state than was kept."
            )
        self._verified[info.snapshot_id] = together
        return together

    async def _trim(self, known: Sequence[SnapshotInfo]) -> None:
        assert self._reading is not None
        client, keys = self._snapshots.client, self._snapshots.keys
        ends = await log_ends(client, keys)
        with answered("the log's size"):
            log_bytes = await client.memory_usage(keys.key("log")) or 0
        # The newest event's time is the server's, and late by a minute at most.
        now_ms = self._reading.engine.position.at_ms
        base = base_for_trim(known, ends, log_bytes, now_ms, self._rules)
        if base is None:
            return
        verified = await self._verify(base)
        removed = 0
        while True:
            done = await self._one_trim(base, verified)
            removed += done.removed
            if done.removed == 0 or done.stopped != "more":
                break
            await self._clock.sleep(TRIM_PAUSE_S)
        self.removed += removed
        if removed:
            self._log.info("log_trimmed", removed=removed, stopped=done.stopped)

    async def _one_trim(self, base: SnapshotInfo, verified: str) -> Trimmed:
        return await self._writer.trim(
            base,
            verified,
            retention_ms=self._rules.retention_ms,
            max_bytes=self._rules.max_bytes,
            batch_max=TRIM_BATCH,
        )


def _packed(reading: Reading) -> list[Packed]:
    return [pack(fold.document()) for fold in reading.folds]


def _written_again(name: str, text: bytes) -> str:
    """The digest of what a fold made from this writes. Raises UnusableDocument, a ValueError."""
    document, kind = loads(text), FOLDS[name]
    fold = kind.from_document(document)
    if document["version"] != kind.version:
        # A state of an older release, which this one can begin with: it would write it otherwise.
        return hashlib.sha256(text).hexdigest()
    return digest(fold)
