"""The pool at one event: every part of the live state in one step, and the log folded up to it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from aibs.errors import CoordinationUnavailable, PoolMissing
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.placement_state import LiveParts, PlacementState
from aibs.eventstore.snapshots import Snapshots
from aibs.history import catch_up_all
from aibs.projections.coordination import Coordination
from aibs.projections.leaks import Leaks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aibs.eventstore.commands import Commands
    from aibs.settings import Settings

ANSWER_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The live state and the fold at the same event; `leaks` reaches back to `since_ms`."""

    live: LiveParts
    folded: Coordination
    leaks: Leaks
    since_ms: int


@dataclass(frozen=True, slots=True)
class PoolReader:
    """A read-only way to one pool."""

    client: Commands
    keys: Keys

    async def moment(self, since_ms_ago: int) -> Moment:
        """Everything at the pool's newest event. Raises PoolMissing where there is no pool."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                live = await PlacementState(self.client, self.keys).read_all()
                if live.pool is None:
                    raise PoolMissing(
                        f"There is no pool {self.keys.namespace} on the coordination server.",
                        mend="Start `aibs monitor`, or name the pool's namespace in "
                        "AIBS_MODEL_CLUSTER_NAMESPACE.",
                    )
                since_ms = max(0, live.now_ms - since_ms_ago)
                reading = await catch_up_all(
                    Log(self.client, self.keys),
                    Snapshots(self.client, self.keys),
                    (Coordination, Leaks),
                    until=live.pool.last_id,
                )
                folded, leaks = reading.folds
                assert isinstance(folded, Coordination)
                assert isinstance(leaks, Leaks)
                leaks.since_ms = since_ms
                return Moment(live, folded, leaks, since_ms)
        except TimeoutError as error:
            raise CoordinationUnavailable(
                f"The pool {self.keys.namespace} was not read within {READ_TIMEOUT_S:g} s."
            ) from error
        except (RedisError, OSError) as error:
            raise CoordinationUnavailable(
                f"The pool {self.keys.namespace} could not be read ({error})."
            ) from error


@asynccontextmanager
async def open_reader(settings: Settings) -> AsyncIterator[PoolReader]:
    """A reader of the settings' pool. Never starts an embedded server."""
    client = commands(
        await open_client(
            settings.model_pool_url,
            data_dir=Path(settings.data_dir),
            purpose="read",
            timeout_s=ANSWER_TIMEOUT_S,
        )
    )
    try:
        yield PoolReader(client, Keys(settings.model_cluster_namespace))
    finally:
        await client.aclose()
