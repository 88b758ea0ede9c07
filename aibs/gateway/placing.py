"""From a client's request to a lease, and again to another node where the first one failed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from aibs import logs
from aibs.errors import LeaseLost, PlacementDenied
from aibs.gateway.blame import Blame
from aibs.gateway.denials import answer_to
from aibs.gateway.failures import ModelMissing, NodeFailure
from aibs.placement.values import AVOID_MAX

if TYPE_CHECKING:
    from aibs.gateway.context import GatewayContext
    from aibs.gateway.exchange import Exchange
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

RELEASE_FIRST_S: Final = 0.05
"""How long the end of an answer waits for the release: who asks again at once then finds the slot
free. A slow coordination server delays no answer by more."""


class Placing:
    """Places jobs and sees them served."""

    def __init__(self, context: GatewayContext, forwarder: Forwarder, health: NodeHealth) -> None:
        self._placer = context.placer
        self._fleet = context.fleet
        self._meter = context.meter
        self._forwarder = forwarder
        self._health = health
        # Bound once: two lines a request.
        self._log = logs.get("aibs.gateway.placing").bind()

    async def serve(self, job: Job, watch: ClientWatch) -> None:
        """Have the job served, or tell its client why not. Raises ClientLeft, BrokenOff."""
        met: list[Met] = []
        until_s = time.monotonic() + job.wait_s
        blame = Blame(self._health)
        job.on_served = blame.served
        try:
            for attempt in range(ATTEMPTS_MAX):
                wait_s = max(0.0, until_s - time.monotonic())
                if await self._attempted(job, watch, met, attempt, wait_s):
                    return
                if isinstance(met[-1], NodeFailure):
                    blame.met(met[-1])
                if not self._may_retry(job, met):
                    break
            await self._failed(job, met)
        finally:
            blame.over()

    async def _attempted(
        self, job: Job, watch: ClientWatch, met: list[Met], attempt: int, wait_s: float
    ) -> bool:
        """Whether the client has its answer; else `met` has one failure more."""
        request_id = job.request_id if attempt == 0 else f"{job.request_id}-{attempt + 1}"
        if met:
            wait_s = min(wait_s, RETRY_WAIT_S)
        began_s = time.monotonic()
        outcome: Literal["granted", "denied", "left"] = "granted"
        reason = ""
        try:
            await self._attempt(job, watch, met, request_id, wait_s)
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
            await self._denied(job, met, denial)
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
        self, job: Job, watch: ClientWatch, met: list[Met], request_id: str, wait_s: float
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
                avoid=self._avoided(job.target, met),
                patient=False,
            ) as lease:
                if places:
                    await places.close()
                self._acquired(job, lease)
                try:
                    await self._forwarder.run(lease, job, watch)
                    # What is left is the answer's end: a release comes before it.
                    watch.rest()
                    last_word = LastWord(job.exchange)
                finally:
                    self._releasing(job, lease)
        finally:
            if places:
                await places.close()
            if last_word is not None:
                await last_word.say()

    def _acquired(self, job: Job, lease: HeldLease) -> None:
        exchange = job.exchange
        job.granted_s = time.monotonic()
        job.node = (lease.node_base_url, lease.model)
        exchange.add_header("x-aibs-node", lease.node_id)
        exchange.add_header("x-aibs-lease", lease.lease_id)
        exchange.add_header("x-aibs-queue-ms", str(lease.queue_ms))
        self._meter.waited(lease.model, lease.queue_ms / 1000)
        self._log.info(
            "placement_acquired", priority=job.priority, warm=lease.warm, **_told_of(lease)
        )

    def _releasing(self, job: Job, lease: HeldLease) -> None:
        self._log.info(
            "placement_released",
            phase=job.phase,
            whole=job.whole,
            lost=lease.error is not None,
            **_told_of(lease),
        )

    # --- other nodes

    def _candidates(self, target: Target) -> set[str]:
        found: set[str] = set()
        for worker in target.workers:
            allowed = {node.node_id for node in self._fleet.allowed_nodes(worker)}
            if target.role is not None:
                allowed &= {node.node_id for node in self._fleet.nodes_for_role(target.role)}
            found |= allowed
        return found

    def _avoided(self, target: Target, met: list[Met]) -> tuple[str, ...]:
        """Nodes that this request must not get, as long as others remain."""
        avoided = {one.node_id for one in met} | self._health.closing
        if len({worker.key for worker in target.workers}) == 1:
            avoided |= set(self._health.missing_on(target.workers[0].key))
        if not avoided:
            return ()
        return tuple(sorted(avoided)[:AVOID_MAX]) if self._candidates(target) - avoided else ()

    def _may_retry(self, job: Job, met: list[Met]) -> bool:
        last = met[-1]
        if self._candidates(job.target) - {one.node_id for one in met}:
            return True
        # A connection that an idle node closed as we used it says nothing of the node.
        return isinstance(last, NodeFailure) and last.kind == "reset" and len(met) == 1

    # --- what the client is told

    async def _denied(self, job: Job, met: list[Met], denial: PlacementDenied) -> None:
        if met:
            await self._failed(job, met)
            return
        status, retry_after_ms = answer_to(denial.reason, denial.retry_after_ms)
        await job.exchange.fail(
            str(denial),
            denial.reason,
            status,
            retry_after_ms=retry_after_ms,
            more={"position": denial.position} if denial.position is not None else None,
        )

    async def _lost(self, job: Job, lost: LeaseLost) -> None:
        if job.whole:
            # Nothing of the answer is missing.
            await job.exchange.finish()
            return
        status, retry_after_ms = answer_to(lost.reason, None)
        await job.exchange.fail(str(lost), lost.reason, status, retry_after_ms=retry_after_ms)

    async def _failed(self, job: Job, met: list[Met]) -> None:
        last = next((one for one in reversed(met) if isinstance(one, NodeFailure)), met[-1])
        if last.answer is not None:
            await job.exchange.answer(last.answer)
        elif isinstance(last, ModelMissing):
            await job.exchange.fail(
                f"model {job.exchange.model!r} not found on {last.node_id}", "unknown_model", 404
            )
        else:
            status = 504 if last.kind == "timeout" else 502
            await job.exchange.fail(
                f"The node {last.node_id} failed the request: {last.detail}.",
                "node_unhealthy",
                status,
            )


class PlacesTold:
    """Tells a client its places in the queue, one after the other, until it is closed."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._places: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(), name="places told")

    def tell(self, position: int, reason: str) -> None:
        """The request stands there now."""
        self._places.put_nowait((position, reason))

    async def close(self) -> None:
        """Nothing is told any more, and nothing is half told."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            position, reason = await self._places.get()
            await self._exchange.tell_place(position, reason)


def _told_of(lease: HeldLease) -> dict[str, Any]:
    return {
        "request_id": lease.request_id,
        "lease_id": lease.lease_id,
        "node_id": lease.node_id,
        "node_base_url": lease.node_base_url,
        "model": lease.model,
        "role": lease.role,
        "queue_ms": lease.queue_ms,
    }


class LastWord:
    """The end of an answer: said when the lease is given back, or when that takes too long."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(RELEASE_FIRST_S, self._say_early)

    def _say_early(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._exchange.finish_apart())

    async def say(self) -> None:
        """Say it now, unless it is said."""
        self._timer.cancel()
        if self._task is not None:
            await self._task
        await self._exchange.finish()
