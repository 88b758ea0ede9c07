"""The monitor as a whole: connections, election, and the owner's work."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs import logs
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool, ObserveLimits
from aibs.eventstore.state import LiveState
from aibs.monitor.declaration import declare_until_answered
from aibs.monitor.elector import ElectionTiming, Elector
from aibs.monitor.keeper import Keeper, KeepingRules
from aibs.monitor.poller import NodePoller
from aibs.monitor.reaper import QueueRules, reap_for_ever
from aibs.monitor.recorder import Recorder
from aibs.monitor.vacancy import LogVacancy
from aibs.ollama.client import NodeClient

if TYPE_CHECKING:
    from aibs.clock import Clock
    from aibs.eventstore.commands import Commands
    from aibs.fleet import Fleet
    from aibs.monitor.connections import Connections

PHASE_STEP_MS = 3
"""Milliseconds between the first polls of two nodes: 1,000 nodes spread over 3 s."""

REAPS_IN_A_TERM = 3
VERSION_STEP_MS = 20
"""Milliseconds between the first questions for a version: never a burst beside the first polls."""

SAMPLES_SLACK = 2
"""The samples stream holds at most this many times the polls that its age allows."""


@dataclass(frozen=True, slots=True)
class MonitorTiming:
    """Milliseconds, but for the threshold, which counts polls."""

    lease_ttl_ms: int
    standby_retry_ms: int
    poll_interval_ms: int
    poll_timeout_ms: int
    staleness_ms: int
    failure_threshold: int
    telemetry_ttl_ms: int
    history_ttl_ms: int
    load_timeout_ms: int = 600_000
    swap_min_ms: int = 30_000
    swap_max_ms: int = 60_000
    log_retention_ms: int = 604_800_000
    log_max_bytes: int = 1_000_000_000

    @property
    def keeping_rules(self) -> KeepingRules:
        """When the owner keeps a state, and what it lets go of the log."""
        return KeepingRules(self.log_retention_ms, self.log_max_bytes)

    @property
    def queue_rules(self) -> QueueRules:
        """What the owner's sweeps are told."""
        return QueueRules(self.staleness_ms, self.swap_min_ms, self.swap_max_ms)

    def limits(self, node_count: int) -> ObserveLimits:
        """What `observe` is told."""
        polls = self.history_ttl_ms // max(1, self.poll_interval_ms) + 1
        return ObserveLimits(
            failure_threshold=self.failure_threshold,
            staleness_ms=self.staleness_ms,
            telemetry_ttl_ms=self.telemetry_ttl_ms,
            samples_max=max(1, node_count) * polls * SAMPLES_SLACK,
            samples_age_ms=self.history_ttl_ms,
            load_timeout_ms=self.load_timeout_ms,
        )


def new_actor(role: str) -> str:
    """Who this process says it is: host, pid, role and something that no restart repeats."""
    return f"{socket.gethostname()}:{os.getpid()}:{role}:{secrets.token_hex(4)}"


class Monitor:
    """Stands for election and, as owner, polls the declared fleet and records what it saw."""

    def __init__(
        self,
        fleet: Fleet,
        namespace: str,
        timing: MonitorTiming,
        connections: Connections,
        clock: Clock,
        *,
        recovery_ms: int,
    ) -> None:
        self._fleet = fleet
        self._keys = Keys(namespace)
        self._timing = timing
        self._connections = connections
        self._clock = clock
        self._recovery_ms = recovery_ms
        self.owner = new_actor("monitor")
        self._log = logs.get("aibs.monitor", owner=self.owner)
        self.elector: Elector | None = None
        self.recorder: Recorder | None = None
        self.node_count = 0

    async def run(self) -> None:
        """Run until cancelled; a term held then is resigned."""
        # Renewals share nothing with observations, so that a slow one cannot cost the term.
        election = self._pool(await self._connections.writer())
        observations = self._pool(await self._connections.writer())
        keeping = self._pool(await self._connections.writer())
        follower = await self._connections.follower()
        self.elector = Elector(
            election,
            self.owner,
            ElectionTiming(self._timing.lease_ttl_ms, self._timing.standby_retry_ms),
            self._clock,
            vacancy=LogVacancy(Log(follower, self._keys), self._clock),
            on_unreachable=self._connections.revive,
        )
        await self.elector.run(lambda: self._lead(observations, keeping))

    def _pool(self, client: Commands) -> CoordinationPool:
        return CoordinationPool(client, self._keys, self.owner, recovery_ms=self._recovery_ms)

    async def _lead(self, pool: CoordinationPool, keeping: CoordinationPool) -> None:
        """The owner's work: declare the fleet, then poll what is declared; keep the log."""
        assert self.elector is not None
        term = self.elector.require_term()
        fleet = await declare_until_answered(
            self._fleet,
            pool,
            LiveState(pool.client, self._keys),
            self.elector,
            self._clock,
            on_unreachable=self._connections.revive,
        )
        keys = {worker.worker_id: worker.key for worker in fleet.workers}
        own_keys = {
            key: tuple(worker.worker_id for worker in workers)
            for key, workers in fleet.workers_by_key.items()
        }
        recorder = Recorder(
            pool,
            self.elector,
            fleet.fingerprint,
            self._timing.limits(len(fleet.nodes)),
            self._clock,
            on_unreachable=self._connections.revive,
        )
        self.recorder, self.node_count = recorder, len(fleet.nodes)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            group.create_task(recorder.run(), name="recorder")
            group.create_task(
                reap_for_ever(
                    pool,
                    self._timing.queue_rules,
                    self._clock,
                    every_ms=self._timing.lease_ttl_ms // REAPS_IN_A_TERM,
                ),
                name="reaper",
            )
            keeper = Keeper(
                keeping,
                Log(keeping.client, self._keys),
                term.owner,
                term.fence,
                self._timing.keeping_rules,
                self._clock,
            )
            group.create_task(keeper.run(), name="keeper")
            for position, node in enumerate(fleet.nodes):
                api = NodeClient(node.base_url, timeout_s=self._timing.poll_timeout_ms / 1000)
                poller = NodePoller(
                    node,
                    await stack.enter_async_context(api),
                    own_keys,
                    keys,
                    self._clock,
                    recorder.submit,
                    fence=term.fence,
                    interval_ms=self._timing.poll_interval_ms,
                    phase_ms=position * PHASE_STEP_MS % self._timing.poll_interval_ms,
                    version_after_ms=position * VERSION_STEP_MS,
                )
                group.create_task(poller.run(), name=f"poll {node.node_id}")

    def status_line(self) -> str:
        """One line for a terminal: who owns, how much was recorded."""
        elector = self.elector
        if elector is None:
            return "aibs monitor: reaching the coordination server"
        if elector.term is None:
            return f"aibs monitor: standing by for {elector.held_by or 'the election'}"
        recorded = self.recorder.recorded if self.recorder else 0
        return (
            f"aibs monitor: owner, fence {elector.term.fence}, {self.node_count} nodes, "
            f"{recorded} polls recorded"
        )
