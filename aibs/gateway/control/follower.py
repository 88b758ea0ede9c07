"""The projections of the pool's log, kept up to date: what a scrape and a status need no scan for.

    begin ─▶ newest usable snapshot ─▶ read on ─▶ read on ─▶ …
      ▲                                   │
      └──── trimmed, rewound, replaced ◀──┘     (state anew; counters go on, and never back)

Read in batches at each turn rather than event by event: a second's events together cost a fraction
of what each costs that wakes the reader.

Failure: what cannot be read leaves the folds where they are; `current` tells whether they are of
now.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from aibs import logs
from aibs.errors import TruncatedLog
from aibs.eventstore.anchor import check_anchor
from aibs.eventstore.log import Log
from aibs.eventstore.snapshots import Snapshots
from aibs.gateway.control.log_counters import LogCounters, Totals
from aibs.history import catch_up_all
from aibs.history.catch_up import anchor_of, read_on
from aibs.projections.capacity import Capacity
from aibs.projections.coordination import Coordination
from aibs.projections.engine import Engine
from aibs.projections.leaks import Leaks

if TYPE_CHECKING:
    from aibs.eventstore.commands import Commands
    from aibs.eventstore.keys import Keys
    from aibs.gateway.control.names import ModelNames

_BEFORE_ALL: Final = "0-0"


class Folded:
    """The folds of one reading, all at the same event."""

    def __init__(self, reading: Any, counters: LogCounters) -> None:
        self.coordination, self.capacity, self.leaks = reading.folds
        assert isinstance(self.coordination, Coordination)
        assert isinstance(self.capacity, Capacity)
        assert isinstance(self.leaks, Leaks)
        counters.engine.position = replace(reading.engine.position)
        counters.begin_with(
            (lease_id, str(lease.stored["model"]))
            for lease_id, lease in self.coordination.leases.living.items()
        )
        self.counters = counters
        self.engine = Engine.joining([*reading.folds, counters])

    @property
    def stopped(self) -> bool:
        """Whether an event of a newer release ended what these folds can say."""
        return any(fold.stopped_at is not None for fold in self.engine.folds)


class Follower:
    """Reads a pool's log. `folded` is None before the first reading."""

    def __init__(self, keys: Keys, names: ModelNames) -> None:
        self._keys = keys
        self._names = names
        self.totals = Totals()
        self.folded: Folded | None = None
        self.current = False
        self._log = logs.get("aibs.gateway.control", pool=keys.namespace)

    async def turn(self, client: Commands) -> None:
        """Read what came since. Raises CoordinationUnavailable, CorruptLog."""
        log, snapshots = Log(client, self._keys), Snapshots(client, self._keys)
        try:
            if self.folded is None:
                await self._begin(log, snapshots, anew=False)
            else:
                await check_anchor(client, self._keys, anchor_of(self.folded.engine))
                await self._read_on(log, self.folded)
        except TruncatedLog as error:
            self.current = False
            self._log.warning("log_read_anew", why=error.sentence)
            await self._begin(log, snapshots, anew=True)
        except BaseException:
            self.current = False
            raise
        self.current = self.folded is not None and not self.folded.stopped

    async def _begin(self, log: Log, snapshots: Snapshots, *, anew: bool) -> None:
        """Begin with the newest snapshot. What is read `anew` was counted before, or belongs to
        another history: it is not counted.
        """
        kept = await snapshots.list()
        until = kept[0].upto_id if kept else _BEFORE_ALL
        folds = (Coordination, Capacity, Leaks)
        reading = await catch_up_all(log, snapshots, folds, until=until)
        folded = Folded(reading, LogCounters(self.totals, self._names))
        folded.counters.on = not anew
        await self._read_on(log, folded)
        folded.counters.on = True
        self.folded = folded

    async def _read_on(self, log: Log, folded: Folded) -> None:
        unknown = folded.engine.position.unknown
        await read_on(log, folded.engine)
        folded.counters.count_unknown(folded.engine.position.unknown - unknown)
