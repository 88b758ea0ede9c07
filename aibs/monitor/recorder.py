"""Sends polls to the log: the newest of each node, several in one call, under the living term."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from aibs import logs
from aibs.errors import CoordinationUnavailable, Fenced, FleetMismatch, OutcomeUnknown
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.monitor.elector import Elector, TermLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aibs.clock import Clock
    from aibs.monitor.observation import PollOutcome

BATCH = 16
"""Polls in one call: bounds how long a script holds the server."""

RETRY_S = 0.2

_EXPECTED = ("ok", "duplicate")


class Recorder:
    """Takes outcomes from the pollers and records them; a newer poll replaces an unsent one."""

    def __init__(
        self,
        pool: CoordinationPool,
        elector: Elector,
        fingerprint: str,
        limits: ObserveLimits,
        clock: Clock,
        *,
        on_unreachable: Callable[[], Awaitable[None]],
    ) -> None:
        self._pool = pool
        self._elector = elector
        self._fingerprint = fingerprint
        self._limits = limits
        self._clock = clock
        self._on_unreachable = on_unreachable
        self._pending: dict[str, PollOutcome] = {}
        self._arrived = asyncio.Event()
        self._log = logs.get("aibs.monitor.recorder")
        self.recorded = 0
        self.refused: Counter[str] = Counter()

    def submit(self, outcome: PollOutcome) -> None:
        """Hand over a finished poll; never waits."""
        self._pending[outcome.node_id] = outcome
        self._arrived.set()

    async def run(self) -> None:
        """Record until cancelled. Raises TermLost when the server refuses the term or the fleet."""
        while True:
            await self._arrived.wait()
            batch = list(self._pending.values())[:BATCH]
            if not batch:
                self._arrived.clear()
                continue
            if not await self._record(batch):
                await self._clock.sleep(RETRY_S)
                continue
            for outcome in batch:
                if self._pending.get(outcome.node_id) is outcome:
                    del self._pending[outcome.node_id]

    async def _record(self, batch: list[PollOutcome]) -> bool:
        """Send a batch once; False when it must be sent again."""
        term = self._elector.require_term()
        now_ms = self._clock.boottime_ms()
        polls = [_poll_record(outcome, now_ms) for outcome in batch]
        try:
            observed = await self._pool.observe(
                term.owner, term.fence, self._fingerprint, polls, self._limits
            )
        except Fenced as error:
            raise TermLost("fenced") from error
        except FleetMismatch as error:
            raise TermLost("fleet_mismatch") from error
        except (OutcomeUnknown, CoordinationUnavailable) as error:
            # Sent again with the same sequence numbers: a poll recorded unheard is a duplicate.
            self._log.warning("observation_unanswered", error=str(error))
            await self._on_unreachable()
            return False
        for outcome, word in zip(batch, observed.words, strict=True):
            self.recorded += word == "ok"
            if word not in _EXPECTED:
                self.refused[word] += 1
                self._log.warning("poll_refused", node_id=outcome.node_id, reason=word)
        return True


def _poll_record(outcome: PollOutcome, now_ms: int) -> PollRecord:
    return PollRecord(
        node_id=outcome.node_id,
        begun_fence=outcome.fence,
        seq=outcome.seq,
        base_url=outcome.base_url,
        elapsed_ms=max(0, now_ms - outcome.begun_at_ms),
        good=outcome.good,
        reason=outcome.reason,
        latency_ms=outcome.latency_ms,
        unaccounted=outcome.unaccounted,
        models_json=outcome.models_json,
        telemetry_json=outcome.telemetry_json,
    )
