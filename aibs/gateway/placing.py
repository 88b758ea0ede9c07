"""From a client's request to a lease, and again to another node where the first one failed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from aibs import logs
from aibs.errors import LeaseLost, PlacementDenied
from aibs.gateway.blame import Blame
from aibs.gateway.denials import (
    MENDED_AFTER_MS,
    Told,
    logged_of,
    told,
)
from aibs.gateway.failures import ModelMissing, NodeFailure
from aibs.gateway.fleet_view import NothingKnown
from aibs.gateway.installed import (
    NOT_INSTALLED,
    named,
    nodes_without,
    not_installed,
    places_of,
)
from aibs.gateway.telling import LastWord, PlacesTold
from aibs.placement.values import AVOID_MAX

if TYPE_CHECKING:
    from aibs.gateway.context import GatewayContext
    from aibs.gateway.fleet_view import FleetView
    from aibs.gateway.forwarding import Forwarder
    from aibs.gateway.job import Job
    from aibs.gateway.passive import NodeHealth
    from aibs.gateway.targets import Target
    from aibs.gateway.watch import ClientWatch
    from aibs.placement import HeldLease

    Met = NodeFailure | ModelMissing

ATTEMPTS_MAX: Final = 3
"""Nodes that one request may meet: more would only spread what makes them fail."""

RETRY_WAIT_S: Final = 10.0
"""How long a request whose node failed waits for another one, before it is told the failure."""


class Placing:
    """Places jobs and sees them served."""

    def __init__(
        self, context: GatewayContext, forwarder: Forwarder, health: NodeHealth, view: FleetView
    ) -> None:
        self._placer = context.placer
        self._fleet = context.fleet
        self._meter = context.meter
        self._forwarder = forwarder
        self._health = health
        self._view = view
        # Bound once: two lines a request.
        self._log = logs.get("aibs.gateway.placing").bind()

    async def serve(self, job: Job, watch: ClientWatch) -> None:
        """Have the job served, or tell its client why not. Raises ClientLeft, BrokenOff."""
        met: list[Met] = []
        absent: set[str] = set()
        marked = set() if self._health.good else self._marked(job.target)
        if marked and not self._left(job.target, marked):
            # Every node had it not a moment ago: by now it may be installed.
            absent = await self._absent(job.target)
            if not self._left(job.target, absent):
                await self._nowhere(job, met, absent)
                return
        until_s = time.monotonic() + job.wait_s
        blame: Blame | None = None
        try:
            for attempt in range(ATTEMPTS_MAX):
                wait_s = max(0.0, until_s - time.monotonic())
                if await self._attempted(job, watch, met, absent, attempt, wait_s):
                    return
                if isinstance(met[-1], NodeFailure):
                    if blame is None:
                        blame = Blame(self._health)
                        job.on_served = blame.served
                    blame.met(met[-1])
                else:
                    absent |= await self._absent(job.target)
                if not self._may_retry(job, met, absent):
                    break
            await self._failed(job, met, absent)
        finally:
            if blame is not None:
                blame.over()

    async def _attempted(
        self,
        job: Job,
        watch: ClientWatch,
        met: list[Met],
        absent: set[str],
        attempt: int,
        wait_s: float,
    ) -> bool:
        """Whether the client has its answer; else `met` has one failure more."""
        request_id = job.request_id if attempt == 0 else f"{job.request_id}-{attempt + 1}"
        if met:
            wait_s = min(wait_s, RETRY_WAIT_S)
        began_s = time.monotonic()
        outcome: Literal["granted", "denied", "left"] = "granted"
        reason = ""
        try:
            avoid = self._avoided(job.target, met, absent)
            await self._attempt(job, watch, request_id, wait_s, avoid)
        except NodeFailure as failure:
            self._meter.upstream_failed(failure.node_id, failure.kind)
            met.append(failure)
            return False
        except ModelMissing as missing:
            self._health.misses(missing.node_id, missing.key)
            met.append(missing)
            return False
        except PlacementDenied as denial:
            outcome, reason = "denied", denial.reason
            await self._denied(job, met, absent, denial)
        except LeaseLost as lost:
            await self._lost(job, lost)
        except asyncio.CancelledError:
            if job.phase == "queued":
                outcome = "left"
            raise
        finally:
            self._meter.placed(outcome, reason, (job.granted_s or time.monotonic()) - began_s)
        return True

    async def _attempt(
        self,
        job: Job,
        watch: ClientWatch,
        request_id: str,
        wait_s: float,
        avoid: tuple[str, ...],
    ) -> None:
        job.phase, job.granted_s = "queued", None
        places = PlacesTold(job.exchange) if job.tells_place else None
        last_word: LastWord | None = None
        # On a refusal, too: the log tells of it under this id.
        job.exchange.add_header("x-aibs-request", request_id)
        try:
            async with self._placer.lease(
                model=job.target.model,
                role=job.target.role,
                priority=job.priority,
                timeout=wait_s,
                request_id=request_id,
                requester=job.exchange.caller.name,
                on_queue=places.tell if places else None,
                avoid=avoid,
                patient=False,
            ) as lease:
                if places:
                    await places.close()
                fields = _told_of(lease)
                self._acquired(job, lease, fields)
                try:
                    await self._forwarder.run(lease, job, watch)
                    # What is left is the answer's end: a release comes before it.
                    watch.rest()
                    last_word = LastWord(job.exchange)
                finally:
                    self._releasing(job, lease, fields)
        finally:
            if places:
                await places.close()
            if last_word is not None:
                await last_word.say()

    def _acquired(self, job: Job, lease: HeldLease, fields: dict[str, Any]) -> None:
        exchange = job.exchange
        job.granted_s = time.monotonic()
        job.node = (lease.node_base_url, lease.model)
        exchange.add_header("x-aibs-node", lease.node_id)
        exchange.add_header("x-aibs-lease", lease.lease_id)
        exchange.add_header("x-aibs-queue-ms", str(lease.queue_ms))
        self._meter.waited(lease.model, lease.queue_ms / 1000)
        self._log.info("placement_acquired", priority=job.priority, warm=lease.warm, **fields)

    def _releasing(self, job: Job, lease: HeldLease, fields: dict[str, Any]) -> None:
        self._log.info(
            "placement_released",
            phase=job.phase,
            whole=job.whole,
            lost=lease.error is not None,
            **fields,
        )

    # --- other nodes

    def _left(self, target: Target, without: set[str]) -> set[str]:
        """The nodes that it may run on, but for these."""
        return set(places_of(self._fleet, target)) - without

    def _marked(self, target: Target) -> set[str]:
        """Nodes that lately had none of its models."""
        keys = {worker.key for worker in target.workers}
        missed = {(node_id, key) for key in keys for node_id in self._health.missing_on(key)}
        return nodes_without(places_of(self._fleet, target), missed) if missed else set()

    async def _absent(self, target: Target) -> set[str]:
        """Nodes that say they have none of its models; they are passed over from now on."""
        places = places_of(self._fleet, target)
        try:
            lacking = await self._view.lacking({worker.key for worker in target.workers})
        except NothingKnown:
            return set()
        for node_id, key in lacking:
            if key in places.get(node_id, ()) and node_id not in self._health.missing_on(key):
                self._health.misses(node_id, key)
        return nodes_without(places, lacking)

    def _avoided(self, target: Target, met: list[Met], absent: set[str]) -> tuple[str, ...]:
        """Nodes that this request must not get, as long as others remain."""
        if not met and self._health.good:
            return ()
        avoided = {one.node_id for one in met} | self._health.closing | absent
        marked = self._marked(target)
        if self._left(target, avoided | marked):
            avoided |= marked
        return tuple(sorted(avoided)[:AVOID_MAX]) if self._left(target, avoided) else ()

    def _may_retry(self, job: Job, met: list[Met], absent: set[str]) -> bool:
        last = met[-1]
        if self._left(job.target, {one.node_id for one in met} | absent):
            return True
        # A connection that an idle node closed as we used it says nothing of the node.
        return isinstance(last, NodeFailure) and last.kind == "reset" and len(met) == 1

    # --- what the client is told

    async def _denied(
        self, job: Job, met: list[Met], absent: set[str], denial: PlacementDenied
    ) -> None:
        log = self._log.bind(request_id=job.request_id, reason=denial.reason)
        log.info("placement_denied", error=logged_of(denial))
        if any(isinstance(one, NodeFailure) for one in met):
            await self._failed(job, met, absent)
            return
        # A node that has not the model says nothing of those that could not take the request.
        place = {"position": denial.position} if denial.position is not None else None
        await self._refuse(job, told(denial), place)

    async def _refuse(self, job: Job, why: Told, more: dict[str, Any] | None = None) -> None:
        await job.exchange.fail(
            why.sentence, why.reason, why.status, retry_after_ms=why.retry_after_ms, more=more
        )

    async def _lost(self, job: Job, lost: LeaseLost) -> None:
        if job.whole:
            # Nothing of the answer is missing.
            await job.exchange.finish()
            return
        await self._refuse(job, told(lost))

    async def _failed(self, job: Job, met: list[Met], absent: set[str]) -> None:
        last = next((one for one in reversed(met) if isinstance(one, NodeFailure)), None)
        if last is None:
            await self._nowhere(job, met, absent)
        elif last.answer is not None:
            await job.exchange.answer(last.answer)
        else:
            status = 504 if last.kind == "timeout" else 502
            await job.exchange.fail(
                f"The node {last.node_id} failed the request: {last.detail}.",
                "node_unhealthy",
                status,
            )

    async def _nowhere(self, job: Job, met: list[Met], absent: set[str]) -> None:
        """No node that was looked at has the model."""
        places = places_of(self._fleet, job.target)
        missing = {(node_id, key) for node_id in absent for key in places[node_id]}
        missing |= {(one.node_id, one.key) for one in met if isinstance(one, ModelMissing)}
        sentence = not_installed(named(job.target, missing))
        await self._refuse(job, Told(503, NOT_INSTALLED, sentence, MENDED_AFTER_MS))


def _told_of(lease: HeldLease) -> dict[str, Any]:
    """What both lines of the log say of a lease."""
    return {
        "request_id": lease.request_id,
        "lease_id": lease.lease_id,
        "node_id": lease.node_id,
        "node_base_url": lease.node_base_url,
        "model": lease.model,
        "role": lease.role,
        "queue_ms": lease.queue_ms,
    }
