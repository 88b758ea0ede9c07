"""The background of the control plane: looks at the pool each second, and no answer waits for it.

Two loops, apart from each other: a look at the small parts, bounded in time, tells whether the pool
is there; reading the log may take as long as it takes. It is read from the first time that somebody
asks for what only it tells: a process that nobody scrapes would read each event for nothing.

Failure: while the pool does not answer, `away` says why since when; what was read before is kept
and is not shown as if it were of now.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aibs import logs
from aibs.errors import AibsError, CoordinationUnavailable, Unreachable
from aibs.gateway.control.follower import Follower
from aibs.gateway.control.link import ANSWER_S, PoolLink
from aibs.gateway.control.pool_view import DeclaredFleet, PoolView, Reason, read_view
from aibs.gateway.control.samples import Polls
from aibs.gateway.denials import AWAY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aibs.clock import Clock
    from aibs.gateway.context import GatewayContext
    from aibs.gateway.control.names import ModelNames

LOOK_EVERY_S: Final = 1.0
LOOK_S: Final = 1.0
"""A look that takes longer finds the pool away."""

NODES_A_LOOK: Final = 100
"""A larger fleet is looked at less often: so many nodes a second."""

READ_EVERY_S: Final = 1.0
FIRST_READ_S: Final = 5.0
"""So long the first scrape waits for the log to be read; then it tells what is known without it."""

STALE_MS: Final = 5_000
"""A look that is older says nothing of now: this process stood still, or the loop is held up."""


class PoolWatch:
    """What is known of the pool. To be run (`run`) for as long as the process serves."""

    def __init__(self, context: GatewayContext, names: ModelNames) -> None:
        self._clock: Clock = context.clock
        self._staleness_ms = context.settings.max_residency_staleness_ms
        self.link = PoolLink(context.settings)
        self.follower = Follower(self.link.keys, names)
        self.polls = Polls(self.link.keys)
        self.view: PoolView | None = None
        self.away: CoordinationUnavailable | None = CoordinationUnavailable(
            "The coordination server was not reached yet."
        )
        self._log = logs.get("aibs.gateway.control", pool=self.link.keys.namespace)
        self._said_away = False
        self._reading = asyncio.Lock()
        self._wanted, self._tried = asyncio.Event(), asyncio.Event()

    @property
    def up(self) -> bool:
        """Whether the pool answered the newest look."""
        return self.fresh_view() is not None

    def fresh_view(self) -> PoolView | None:
        """The small parts, where they are of now."""
        view = self.view
        if view is None or self.away is not None:
            return None
        return view if self._clock.boottime_ms() - view.read_at_ms <= STALE_MS else None

    @property
    def nodes(self) -> set[str] | None:
        """The declared fleet's, by the newest look and by the log, which may be ahead of it; None
        where no look found the pool. A fleet without nodes has none.
        """
        if self.view is None:
            return None
        nodes, folded = set(self.view.fleet.nodes), self.follower.folded
        if folded is not None and self.follower.current:
            document = folded.coordination.declared.document or {}
            nodes |= {str(node["node_id"]) for node in document.get("nodes", ())}
        return nodes

    def server_now_ms(self) -> int | None:
        """The server's time, as far as this machine can tell."""
        view = self.fresh_view()
        return None if view is None else view.server_ms(self._clock.boottime_ms())

    def hindrances(self) -> Iterable[Reason]:
        """Why no request could be placed now; none where one could."""
        view = self.fresh_view()
        if view is None:
            # Why, and where it is, the log says: this is asked without a key.
            return (Reason("coordination_unavailable", AWAY),)
        now_ms = view.server_ms(self._clock.boottime_ms())
        return tuple(view.hindrances(now_ms, self._staleness_ms))

    async def run(self) -> None:
        """Both loops, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._look_for_ever(), name="control look")
                group.create_task(self._read_for_ever(), name="control reading")
        finally:
            await self.link.drop()

    async def look(self) -> None:
        """One look. Raises nothing of what it finds."""
        try:
            async with asyncio.timeout(LOOK_S):
                await self.link.open()
                known = self.view.fleet if self.view else DeclaredFleet()
                began_ms = self._clock.boottime_ms()
                async with self.link.use() as client:
                    self.view = await read_view(client, self.link.keys, known, began_ms)
        except (AibsError, TimeoutError) as error:
            await self._found_away(error)
        except Exception as error:  # noqa: BLE001 - health and readiness hang on this loop
            # What cannot be read, of another release perhaps, is no pool that requests go to.
            await self._found_away(CoordinationUnavailable(f"The pool cannot be read ({error!r})."))
        else:
            if self._said_away:
                self._log.info("pool_answers")
            self._said_away, self.away = False, None

    async def want(self) -> None:
        """Have the log read from now on; the first time, wait until it was, for a while."""
        self._wanted.set()
        if not self._tried.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_READ_S):
                    await self._tried.wait()

    async def read(self) -> None:
        """Read the log up to now. Raises CoordinationUnavailable, CorruptLog, TruncatedLog."""
        self._wanted.set()
        async with self._reading, self.link.use() as client:
            await self.follower.turn(client)
            await self.polls.turn(client)
        nodes = self.nodes
        if nodes is not None:
            self.polls.forget_all_but(nodes)
            self.follower.totals.forget_all_but(nodes)

    async def _found_away(self, error: Exception) -> None:
        sentence = error.sentence if isinstance(error, AibsError) else ""
        why = sentence or f"The coordination server did not answer within {LOOK_S:g} s."
        if not self._said_away:
            self._said_away = True
            self._log.warning("pool_away", error=why)
        self.away = CoordinationUnavailable(why)
        await self.link.drop()

    async def _look_for_ever(self) -> None:
        while True:
            await self.look()
            nodes = len(self.view.fleet.nodes) if self.view else 0
            await self._clock.sleep(max(LOOK_EVERY_S, nodes / NODES_A_LOOK))

    async def _read_for_ever(self) -> None:
        said = ""
        await self._wanted.wait()
        while True:
            try:
                if self.away is None:
                    await self.read()
                said = ""
            except Unreachable:
                # The look says so.
                pass
            except AibsError as error:
                if str(error) != said:
                    said = str(error)
                    self._log.warning("log_not_read", error=said)
            except Exception as error:  # noqa: BLE001 - metrics and status hang on this loop
                if repr(error) != said:
                    said = repr(error)
                    self._log.error("log_reading_broken", error=said)
            self._tried.set()
            await self._clock.sleep(READ_EVERY_S)


assert LOOK_S <= ANSWER_S
