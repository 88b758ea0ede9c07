"""Residency in time: loads, holds, expiry, unloads and evictions of one node.

One line of requests that need a load or an eviction, first come first served, the whole line
waiting while one is served; requests for a model that is loaded as they want it pass by.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from aibs.ollama.keep_alive import FOREVER_NS, parse_keep_alive
from aibs.ollama.sim.replies import RequestError
from aibs.ollama.sim.runner import Runner, RunnerOptions, choose_victim, context_length, room_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aibs.ollama.sim.faults import Faults
    from aibs.ollama.sim.spec import SimModel, SimSpec
    from aibs.ollama.sim.stats import Stats

BUSY = "server busy, please try again.  maximum pending requests exceeded"
_NS = 10**9


class Scheduler:
    """The runners of one node. `revision` grows with every change that `/api/ps` shows."""

    def __init__(self, spec: SimSpec, faults: Faults, stats: Stats) -> None:
        self.revision = 0
        self.runners: dict[str, Runner] = {}
        self._spec = spec
        self._faults = faults
        self._stats = stats
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._recovering_bytes = 0
        self._change = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        for model in spec.models:
            if model.loaded and model.weights_key not in self.runners:
                self._preload(model)

    @property
    def waiting(self) -> int:
        """How many requests stand in the line."""
        return self._waiting

    @contextlib.asynccontextmanager
    async def hold(
        self, model: SimModel, options: dict[str, Any], keep_alive_ns: int | None
    ) -> AsyncIterator[Runner]:
        """The model's runner, loaded if need be, kept while the block runs.

        Cancelled while it loads, the load is aborted and the next in line begins anew. Raises
        RequestError: the line is full, or the load failed.
        """
        wanted = RunnerOptions.of(self._spec, model, options)
        runner = self.runners.get(model.weights_key)
        if runner is not None and self._serves(runner, wanted):
            self._take(runner, keep_alive_ns)
        else:
            runner = await self._in_line(model, wanted, keep_alive_ns)
        try:
            yield runner
        finally:
            self._give_back(runner)

    def expire(self, model: SimModel) -> None:
        """An unload call: the runner goes as soon as nobody uses it."""
        runner = self.runners.get(model.weights_key)
        if runner is not None and runner.state != "closing":
            self._expire(runner)

    def blocks_ps(self) -> bool:
        """Whether `/api/ps` has to wait for a lock."""
        states = {(runner.state, runner.model.engine) for runner in self.runners.values()}
        loading = any(state == "loading" for state, _ in states)
        if self._faults.ps_blocks_while_loading and loading:
            return True
        if not self._spec.release.ps_locks:
            return False
        return ("loading", "mlx") in states or any(state == "closing" for state, _ in states)

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._change.wait()

    def touch(self) -> None:
        """Let everybody who waits look again."""
        self.revision += 1
        self._change.set()
        self._change = asyncio.Event()

    async def close(self) -> None:
        """End what runs in the background."""
        for runner in self.runners.values():
            runner.stop_timer()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _serves(self, runner: Runner, wanted: RunnerOptions) -> bool:
        return runner.state == "ready" and runner.options.runs(wanted)

    async def _in_line(
        self, model: SimModel, wanted: RunnerOptions, keep_alive_ns: int | None
    ) -> Runner:
        if self._waiting >= self._spec.max_queue:
            raise RequestError(503 if self._spec.release.since(0, 1, 34) else 500, BUSY)
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._served(model, wanted, keep_alive_ns)
        finally:
            self._turn.release()

    async def _served(
        self, model: SimModel, wanted: RunnerOptions, keep_alive_ns: int | None
    ) -> Runner:
        """At the head of the line: make room, load, and take the runner."""
        while True:
            # Taken before looking, so that no change in between is slept through.
            change = self._change
            runner = self.runners.get(model.weights_key)
            if not self._faults.deadlock and self._recovering_bytes == 0:
                if runner is not None and self._serves(runner, wanted):
                    self._take(runner, keep_alive_ns)
                    return runner
                if runner is not None:
                    self._reload(runner)
                elif (placed := self._placed(model, wanted, keep_alive_ns)) is not None:
                    return await self._loaded(placed)
                else:
                    self._evict()
            await change.wait()

    def _reload(self, runner: Runner) -> None:
        if runner.state == "ready" and runner.keep_alive_ns != 0:
            self._stats.reloads += 1
            self._expire(runner)

    def _evict(self) -> None:
        """Tell one runner to go, and only one at a time: the last may be closing or draining."""
        if any(runner.evicted or runner.state == "closing" for runner in self.runners.values()):
            return
        victim = choose_victim(self.runners.values())
        if victim is None:
            return
        victim.evicted = True
        self._stats.evicted.append(victim.model.display)
        self._expire(victim)

    def _placed(
        self, model: SimModel, wanted: RunnerOptions, keep_alive_ns: int | None
    ) -> Runner | None:
        """A new runner in the memory that is free, or None while others have to go."""
        spec = self._spec
        slots = spec.slots(model)
        context = context_length(spec, model, wanted.num_ctx)
        size = model.size_bytes + model.kv_bytes_per_token * context * slots
        vram = room_for(spec, self.runners.values(), self._recovering_bytes, size)
        if vram < 0:
            return None
        default_ns = parse_keep_alive(spec.default_keep_alive) or 0
        return Runner(
            model=model,
            options=wanted,
            size_bytes=size,
            size_vram_bytes=vram,
            context_length=context,
            slots=asyncio.Semaphore(slots),
            keep_alive_ns=default_ns if keep_alive_ns is None else keep_alive_ns,
        )

    async def _loaded(self, runner: Runner) -> Runner:
        """Load it, with one hold on it. Everything but success takes it away again."""
        key = runner.model.weights_key
        runner.active = 1
        self.runners[key] = runner
        self._stats.hold(sum(one.size_bytes for one in self.runners.values()))
        self.touch()
        seconds = runner.model.load_seconds
        try:
            await asyncio.sleep(self._spec.load_seconds if seconds is None else seconds)
            if self._faults.load_error:
                self._stats.failed_loads += 1
                raise RequestError(500, self._faults.load_error)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                self._stats.aborted_loads += 1
            del self.runners[key]
            self.touch()
            raise
        runner.state = "ready"
        self._stats.loads[runner.model.display] += 1
        self.touch()
        return runner

    def _preload(self, model: SimModel) -> None:
        """Resident from the start, next to whatever else is, as far as the memory goes."""
        options = RunnerOptions.of(self._spec, model, {})
        context = context_length(self._spec, model, options.num_ctx)
        slots = self._spec.slots(model)
        size = model.size_bytes + model.kv_bytes_per_token * context * slots
        used = sum(runner.size_vram_bytes for runner in self.runners.values())
        runner = Runner(
            model=model,
            options=options,
            size_bytes=size,
            size_vram_bytes=min(size, max(self._spec.vram_bytes - used, 0)),
            context_length=context,
            slots=asyncio.Semaphore(slots),
            keep_alive_ns=parse_keep_alive(model.keep_alive) or 0,
            state="ready",
            active=1,
        )
        self.runners[model.weights_key] = runner
        self._give_back(runner)

    def _take(self, runner: Runner, keep_alive_ns: int | None) -> None:
        runner.stop_timer()
        runner.active += 1
        if keep_alive_ns is not None:
            # The last request that says one decides for all, and revives a runner that drains.
            runner.keep_alive_ns = keep_alive_ns
            if runner.evicted:
                runner.evicted = False
                self.touch()

    def _give_back(self, runner: Runner) -> None:
        runner.active -= 1
        if runner.active:
            return
        if runner.keep_alive_ns <= 0:
            self._expire(runner)
            return
        runner.expires_at_ns = time.time_ns() + runner.keep_alive_ns
        if runner.keep_alive_ns < FOREVER_NS:
            loop = asyncio.get_running_loop()
            runner.timer = loop.call_later(runner.keep_alive_ns / _NS, self._expire, runner)
        self.touch()

    def _expire(self, runner: Runner) -> None:
        """No keep-alive any more: gone at once where idle, else when the last request ends."""
        runner.stop_timer()
        runner.keep_alive_ns = 0
        runner.expires_at_ns = time.time_ns()
        if runner.active == 0 and runner.state == "ready":
            runner.state = "closing"
            self._stats.unloads += 1
            if self._spec.unload_seconds or self._spec.vram_recovery_seconds:
                task = asyncio.get_running_loop().create_task(self._close_slowly(runner))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                del self.runners[runner.model.weights_key]
        self.touch()

    async def _close_slowly(self, runner: Runner) -> None:
        """Kill, reap, forget; the memory comes back some time after ps has forgotten it."""
        await asyncio.sleep(self._spec.unload_seconds)
        del self.runners[runner.model.weights_key]
        self._recovering_bytes += runner.size_vram_bytes
        self.touch()
        await asyncio.sleep(self._spec.vram_recovery_seconds)
        self._recovering_bytes -= runner.size_vram_bytes
        self.touch()
