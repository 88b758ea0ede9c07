"""Cold loads: make room as the grant says, then load, once for all leases that wait for it.

Room is never left to Ollama, whose choice may be a tenant's model. An unload is acknowledged at
once and done later, so /api/ps decides when a model is gone. A load that loses its last waiter is
cancelled; one that others wait for goes on, because Ollama starts a broken-off load from zero. Its
reports go under a lease that waits: the pool hears nothing under one that was given back.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aibs import logs
from aibs.errors import AibsError, FleetMismatch, Unreachable, WarmUpFailed
from aibs.ollama.client import NodeClient

if TYPE_CHECKING:
    from aibs.clock import Clock
    from aibs.fleet import Fleet, KeepAlive, Worker
    from aibs.placement.backend import Backend
    from aibs.placement.held import HeldLease
    from aibs.placement.values import Lease, ReportKind

CALL_TIMEOUT_S = 10.0
"""For the short calls: from 0.32.4 on `/api/ps` waits for loads and unloads."""

UNLOAD_AGAIN_S = 5.0
"""A request with a keep_alive of its own revives a model that was told to go: it is told again."""

PS_AGAIN_S = 0.5
REPORTS_MAX = 3
REPORT_AGAIN_S = 0.1

_NO_KEEP_ALIVE = (0, "0", "0s")


@dataclass(slots=True)
class _Load:
    job: ColdLoad
    task: asyncio.Task[None]
    waiting: list[HeldLease] = field(default_factory=list)


class Loads:
    """The loads that this process has under way, by node and model."""

    def __init__(self, backend: Backend, fleet: Fleet, clock: Clock, *, load_ms: int) -> None:
        self._backend = backend
        self._workers = {worker.worker_id: worker for worker in fleet.workers}
        self._by_key = fleet.workers_by_key
        self._clock = clock
        self._load_ms = load_ms
        self._under_way: dict[tuple[str, str], _Load] = {}

    async def prepare(self, lease: HeldLease, client: NodeClient | None) -> None:
        """As HeldLease.prepare."""
        place = (lease.node_base_url, lease.model_key)
        load = self._under_way.get(place)
        if load is None:
            if lease.warm and not lease.unload_first:
                return
            worker = self.worker_of(lease)
            job = ColdLoad(lease, worker, self._backend, self._clock, self._load_ms)
            load = _Load(job, asyncio.create_task(job.run(client), name=f"load {lease.model}"))
            self._under_way[place] = load
            load.task.add_done_callback(lambda _: self._forget(place, load))
        await self._wait(place, load, lease)

    def is_needed(self, lease: HeldLease) -> bool:
        """As HeldLease.needs_load."""
        if not lease.warm or lease.unload_first:
            return True
        return (lease.node_base_url, lease.model_key) in self._under_way

    def is_shared(self, lease: HeldLease) -> bool:
        """As HeldLease.load_is_shared."""
        load = self._under_way.get((lease.node_base_url, lease.model_key))
        return load is not None and any(one is not lease for one in load.waiting)

    def _forget(self, place: tuple[str, str], load: _Load | None) -> None:
        if self._under_way.get(place) is load:
            del self._under_way[place]

    async def _wait(self, place: tuple[str, str], load: _Load, lease: HeldLease) -> None:
        load.waiting.append(lease)
        try:
            await asyncio.wait({load.task})
        finally:
            load.waiting.remove(lease)
            if load.waiting:
                load.job.report_under(load.waiting[0].grant)
            elif not load.task.done():
                self._forget(place, load)
                load.task.cancel()
        if load.task.cancelled():
            raise WarmUpFailed("The load was broken off.", reason="cancelled")
        load.task.result()

    def worker_of(self, lease: HeldLease) -> Worker:
        """As HeldLease.worker."""
        same_model = self._by_key.get(lease.model_key, ())
        worker = self._workers.get(lease.worker_id) or next(iter(same_model), None)
        if worker is None:
            raise FleetMismatch(
                f"The lease of {lease.model} is for the worker {lease.worker_id}, which this "
                "process's roster has not.",
                mend="Use the same AIBS_MODEL_ADMISSION_WORKER_ROSTER in every process.",
            )
        return worker


class ColdLoad:
    """One load: begun for one lease, and for all that wait with it."""

    def __init__(
        self, lease: HeldLease, worker: Worker, backend: Backend, clock: Clock, load_ms: int
    ) -> None:
        self._lease = lease
        self._worker = worker
        self._backend = backend
        self._clock = clock
        self._load_ms = load_ms
        self._until_ms = clock.boottime_ms() + load_ms
        self._reports_under = lease.grant
        self._loading_since_ms: int | None = None
        self._hand_overs: set[asyncio.Task[None]] = set()
        self._log = logs.get("aibs.placement.load", lease_id=lease.lease_id, node_id=lease.node_id)

    async def run(self, client: NodeClient | None) -> None:
        """Make room and load, within the load timeout. Raises NodeError with its kinds."""
        async with AsyncExitStack() as stack:
            api = client
            if api is None:
                own = NodeClient(self._lease.node_base_url, timeout_s=CALL_TIMEOUT_S)
                api = await stack.enter_async_context(own)
            # Warm by the last poll: where its keep-alive ran out since, it needs the room.
            if self._lease.warm and await self._is_there(api):
                return
            if self._lease.unload_first:
                await self._make_room(api)
            try:
                await self._load(api)
            finally:
                for hand_over in self._hand_overs:
                    hand_over.cancel()

    def report_under(self, grant: Lease) -> None:
        """Go on under that lease: the one before is about to be given back, and with it ends what
        the pool knows of a load that makes the node slow to answer.
        """
        if grant.lease_id == self._reports_under.lease_id:
            return
        self._reports_under = grant
        if self._loading_since_ms is not None:
            report = self._report("loading", self._lease.model_key, self._loading_since_ms, ok=True)
            task = asyncio.create_task(report, name=f"load {grant.model}, handed over")
            self._hand_overs.add(task)
            task.add_done_callback(self._hand_overs.discard)

    async def _is_there(self, api: NodeClient) -> bool:
        try:
            models = (await api.ps()).models
        except Unreachable:
            return False
        return any(model.key == self._lease.model_key for model in models)

    async def _make_room(self, api: NodeClient) -> None:
        residents = await self._residents(api)
        async with asyncio.TaskGroup() as group:
            jobs = [
                group.create_task(self._unload(api, key, name, digest))
                for key, (name, digest) in residents.items()
            ]
        for job in jobs:
            if not job.result():
                raise WarmUpFailed(
                    f"{self._lease.node_id} did not unload what {self._lease.model} needs the "
                    f"room of within {self._load_ms / 1000:g} s.",
                    reason="unload_timeout",
                    mend="Look who still uses a model there: `ollama ps`.",
                )

    async def _residents(self, api: NodeClient) -> dict[str, tuple[str, str | None]]:
        """Of the listed keys those that are resident: the name that ps shows, and the digest.

        A runner shows the name that loaded it, so an alias is found by its weights.
        """
        while True:
            try:
                models = (await api.ps()).models
                break
            except Unreachable as error:
                if self._left_s() <= 0:
                    raise
                self._log.info("ps_not_answered", error=str(error))
                await self._clock.sleep(PS_AGAIN_S)
        found: dict[str, tuple[str, str | None]] = {}
        by_key = {model.key: model for model in models}
        missing = [key for key in self._lease.unload_first if key not in by_key]
        digests = await self._digests(api) if missing and models else {}
        by_digest = {model.digest: model for model in models if model.digest}
        for key in self._lease.unload_first:
            model = by_key.get(key) or by_digest.get(digests.get(key, ""))
            if model is not None:
                found[key] = (model.name, model.digest)
        return found

    async def _digests(self, api: NodeClient) -> dict[str, str]:
        try:
            return {one.key: one.digest for one in await api.tags() if one.key and one.digest}
        except AibsError as error:
            self._log.info("tags_not_answered", error=str(error))
            return {}

    async def _unload(self, api: NodeClient, key: str, name: str, digest: str | None) -> bool:
        """Tell it to go until ps says that it is gone; False where it stayed."""
        began_ms = self._clock.boottime_ms()
        gone = False
        try:
            async with asyncio.timeout(self._left_s()):
                while not gone:
                    try:
                        await api.unload(name)
                    except AibsError as error:
                        self._log.warning("unload_not_answered", model=name, error=str(error))
                    gone = await api.wait_gone(key, digest, timeout_s=UNLOAD_AGAIN_S)
        except TimeoutError:
            self._log.warning("model_stayed", model=name)
        await self._report("unloaded", key, began_ms, ok=gone)
        return gone

    async def _load(self, api: NodeClient) -> None:
        worker, key = self._worker, self._lease.model_key
        self._loading_since_ms = began_ms = self._clock.boottime_ms()
        await self._report("loading", key, began_ms, ok=True)
        try:
            await api.load_only(
                self._lease.model,
                worker.kind,
                num_ctx=worker.num_ctx,
                keep_alive=_kept(worker.keep_alive),
                timeout_s=max(self._left_s(), 0.001),
            )
        except AibsError:
            await self._report_end(key, began_ms, ok=False)
            raise
        await self._report_end(key, began_ms, ok=True)

    async def _report_end(self, key: str, began_ms: int, *, ok: bool) -> None:
        self._loading_since_ms = None
        if self._hand_overs:
            # Under each lease the pool takes a load's end only after its beginning.
            await asyncio.wait(set(self._hand_overs))
        await self._report("loaded", key, began_ms, ok=ok)

    async def _report(self, kind: ReportKind, model: str, began_ms: int, *, ok: bool) -> None:
        """Log it at the back end. The work does not hang on that."""
        ms = 0 if kind == "loading" else self._clock.boottime_ms() - began_ms
        outcome, grant = "ok" if ok else "failed", self._reports_under
        for _ in range(REPORTS_MAX):
            try:
                await self._backend.report(grant, kind, model, ms=ms, outcome=outcome)
            except AibsError as error:
                self._log.warning("report_failed", kind=kind, error=str(error))
                if not isinstance(error, Unreachable):
                    return
                await self._clock.sleep(REPORT_AGAIN_S)
            else:
                return

    def _left_s(self) -> float:
        return (self._until_ms - self._clock.boottime_ms()) / 1000


def _kept(keep_alive: KeepAlive) -> KeepAlive:
    """A load-only request that keeps nothing alive is Ollama's way to unload."""
    return None if keep_alive in _NO_KEEP_ALIVE else keep_alive
