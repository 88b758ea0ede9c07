"""Loads each worker's model on each node, reads what it occupies, and unloads it again.

Nodes go in parallel, the workers of a node one after the other, so that each is measured alone.
A model that is resident already is read and left as it was found: no request goes to it, because
one would move its keep-alive. When told to stop, the request under way is dropped (Ollama aborts
the load with it) and what was loaded is unloaded before the report is given.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from aibs.audit.document import WarmupReport
from aibs.audit.suggestions import Measurement, measurement
from aibs.errors import AibsError, ModelNotInstalled, NodeError
from aibs.ollama.client import NodeClient

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from aibs.audit.document import AuditDocument, WarmupStatus
    from aibs.fleet import Node, Worker
    from aibs.ollama.ps import PsSnapshot, ResidentModel

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
"""For the short calls between loads: from 0.32.4 on `/api/ps` waits for loads and unloads."""

SAMPLE_TIMEOUT_S = 15.0
SAMPLE_EVERY_S = 0.25
GONE_TIMEOUT_S = 30.0
"""An idle model is gone within seconds; longer means that somebody uses it."""

_NEVER_ARRIVED = ("connect_failed", "dns", "tls")
"""Failures in which the node got no request, so that nothing can have been loaded."""


class Stopped(Exception):
    """The operator told the warm-up to stop."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What to warm up on a node. `digests` has the node's installed models by comparison key.

    `why_not` is why nothing can be warmed up there, or empty.
    """

    node: Node
    workers: tuple[Worker, ...]
    digests: Mapping[str, str] | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One measurement, before it is given to a worker."""

    status: WarmupStatus
    load_ms: int | None = None
    model: ResidentModel | None = None
    unloaded: bool | None = None
    evicted: tuple[str, ...] = ()
    error: str | None = None


async def warm_up(
    plans: Sequence[NodePlan],
    *,
    load_timeout_s: float,
    stop: asyncio.Event,
    tell: Callable[[str], None],
) -> list[WarmupReport]:
    """Measure every plan; one report a worker and node, in the order of the plans.

    `stop` ends it early, with every report still given. `tell` gets a line at each step.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_warm_up_node(plan, load_timeout_s, stop, tell)) for plan in plans
        ]
    return [report for task in tasks for report in task.result()]


def recordable(document: AuditDocument) -> list[dict[str, Any]]:
    """The measurements as the log takes them: of configured nodes, with a size."""
    known = {node.node_id for node in document.nodes if node.configured}
    models = {worker.worker_id: worker.model for worker in document.workers}
    return [
        {
            "worker_id": report.worker_id,
            "model": models[report.worker_id],
            "node_id": report.node_id,
            "size_bytes": report.size_bytes,
            "size_vram_bytes": report.size_vram_bytes,
            "context_length": report.context_length,
            "ms": report.load_ms if report.status == "measured" else None,
        }
        for report in document.warmup or ()
        if report.node_id in known and report.size_bytes is not None
    ]


def measurements_of(reports: Sequence[WarmupReport]) -> tuple[Measurement, ...]:
    """What the warm-up saw resident, whether it loaded it or found it."""
    found = (
        measurement(
            report.worker_id,
            report.node_id,
            "warmup" if report.status == "measured" else "ps",
            size_bytes=report.size_bytes,
            size_vram_bytes=report.size_vram_bytes,
            context_length=report.context_length,
        )
        for report in reports
        if report.status in ("measured", "already_resident")
    )
    return tuple(seen for seen in found if seen is not None)


async def _warm_up_node(
    plan: NodePlan, load_timeout_s: float, stop: asyncio.Event, tell: Callable[[str], None]
) -> list[WarmupReport]:
    known: dict[tuple[str, str, int | None], _Outcome] = {}
    reports = []
    node_id = plan.node.node_id
    async with NodeClient(plan.node.base_url, timeout_s=CALL_TIMEOUT_S) as api:
        for worker in plan.workers:
            # Two lanes of one model with the same options are one runner: loading it twice tells
            # nothing new and takes minutes.
            same = (worker.key, worker.kind, worker.num_ctx)
            if plan.why_not:
                known[same] = _Outcome("failed", error=plan.why_not)
            elif same not in known:
                attempt = _Attempt(worker, plan, api, load_timeout_s, stop, tell)
                known[same] = await attempt.run()
            outcome = known[same]
            tell(f"{node_id} {worker.worker_id}: {outcome.status.replace('_', ' ')}")
            reports.append(_report(worker, node_id, outcome))
    return reports


def _report(worker: Worker, node_id: str, outcome: _Outcome) -> WarmupReport:
    model = outcome.model
    return WarmupReport(
        worker_id=worker.worker_id,
        node_id=node_id,
        status=outcome.status,
        load_ms=outcome.load_ms,
        size_bytes=model.size_bytes if model else None,
        size_vram_bytes=model.size_vram_bytes if model else None,
        unloaded=outcome.unloaded,
        evicted=list(outcome.evicted),
        error=outcome.error,
        context_length=model.context_length if model else None,
    )


class _Attempt:
    """One worker's model on one node."""

    def __init__(
        self,
        worker: Worker,
        plan: NodePlan,
        api: NodeClient,
        load_timeout_s: float,
        stop: asyncio.Event,
        tell: Callable[[str], None],
    ) -> None:
        self._worker = worker
        self._plan = plan
        self._api = api
        self._load_timeout_s = load_timeout_s
        self._stop = stop
        self._tell = tell
        self._digest = (plan.digests or {}).get(worker.key) or None

    async def run(self) -> _Outcome:
        """Measure it, whatever the node does."""
        if self._stop.is_set():
            return _Outcome("cancelled")
        if self._plan.digests is not None and self._worker.key not in self._plan.digests:
            return self._not_installed()
        try:
            before = await self._unless_stopped(self._api.ps())
        except Stopped:
            return _Outcome("cancelled")
        except AibsError as error:
            return _Outcome("failed", error=str(error))
        found = self._find(before)
        if found is not None:
            loading = "it is listed without a size: another load is under way"
            return _Outcome(
                "already_resident", model=found, error=None if found.readable else loading
            )
        return await self._load(before)

    def _not_installed(self) -> _Outcome:
        return _Outcome(
            "not_installed",
            error=f"{self._worker.model} is not installed on {self._plan.node.node_id}. "
            f"Run `ollama pull {self._worker.model}` there.",
        )

    async def _load(self, before: PsSnapshot) -> _Outcome:
        """Load, sample, unload. The unload follows however the rest went."""
        self._tell(f"{self._plan.node.node_id} {self._worker.worker_id}: loading")
        began = time.monotonic()
        load_ms: int | None = None
        try:
            await self._unless_stopped(
                self._api.warm_up(
                    self._worker.model,
                    self._worker.kind,
                    num_ctx=self._worker.num_ctx,
                    timeout_s=self._load_timeout_s,
                )
            )
            load_ms = round((time.monotonic() - began) * 1000)
            outcome = await self._unless_stopped(self._sample(before))
        except Stopped:
            outcome = _Outcome("cancelled")
        except ModelNotInstalled:
            return self._not_installed()
        except AibsError as error:
            outcome = _Outcome("failed", error=str(error))
            if isinstance(error, NodeError) and error.reason in _NEVER_ARRIVED:
                return outcome
        return replace(outcome, load_ms=load_ms, unloaded=await self._unload())

    async def _sample(self, before: PsSnapshot) -> _Outcome:
        """What the model occupies, and which models left while it was loaded."""
        deadline = time.monotonic() + SAMPLE_TIMEOUT_S
        problem = "/api/ps does not list it after it was loaded"
        while True:
            try:
                after = await self._api.ps()
            except AibsError as error:
                problem = str(error)
            else:
                found = self._find(after)
                if found is not None and found.readable:
                    return _Outcome("measured", model=found, evicted=_left(before, after))
                if found is not None:
                    problem = "/api/ps lists it without a plausible size"
            if time.monotonic() >= deadline:
                return _Outcome("failed", error=problem)
            await asyncio.sleep(SAMPLE_EVERY_S)

    def _find(self, snapshot: PsSnapshot) -> ResidentModel | None:
        """The model by its key, else by its weights: one runner shows its first name only."""
        by_key = (model for model in snapshot.models if model.key == self._worker.key)
        by_digest = (
            model
            for model in snapshot.models
            if self._digest is not None and model.digest == self._digest
        )
        return next(by_key, None) or next(by_digest, None)

    async def _unload(self) -> bool:
        """Whether the node says that it is gone. Not stopped by the stop: it is the cleaning up."""
        try:
            await self._api.unload(self._worker.model)
        except AibsError:
            return False
        return await self._api.wait_gone(self._worker.key, self._digest, timeout_s=GONE_TIMEOUT_S)

    async def _unless_stopped(self, work: Coroutine[None, None, T]) -> T:
        """The result of `work`, or Stopped as soon as the operator says so."""
        task = asyncio.ensure_future(work)
        told = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Stopped
            return task.result()
        finally:
            for pending in (task, told):
                pending.cancel()
            await asyncio.gather(task, told, return_exceptions=True)


def _left(before: PsSnapshot, after: PsSnapshot) -> tuple[str, ...]:
    """The names of the models that were resident and are not any more."""
    still = {(model.key, model.digest) for model in after.models}
    return tuple(model.name for model in before.models if (model.key, model.digest) not in still)
