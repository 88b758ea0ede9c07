"""A resident model, the options it runs with, and who has to go first. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from aibs.ollama.sim.replies import RequestError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from aibs.ollama.sim.spec import SimModel, SimSpec

State = Literal["loading", "ready", "closing"]

NUM_CTX_MIN = 4
_NUMBERS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "draft_num_predict")


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """What a runner is started with: a request that asks for other values reloads it.

    `num_ctx` is None where the server chose it; `rest` has the others that a request named.
    """

    num_ctx: int | None
    rest: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, spec: SimSpec, model: SimModel, options: dict[str, Any]) -> RunnerOptions:
        """From a request's options. Raises RequestError 500 where one has the wrong JSON type."""
        for name in _NUMBERS:
            value = options.get(name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float)
            ):
                raise RequestError(500, f'option "{name}" must be of type integer')
        wanted = options.get("num_ctx") or model.num_ctx
        if wanted is not None:
            wanted = max(NUM_CTX_MIN, min(int(wanted), model.max_context))
        elif not spec.release.since(0, 30):
            # Before 0.30 the default was a number like any other: saying it changed nothing.
            wanted = context_length(spec, model, None)
        names = (*(name for name in _NUMBERS if name != "num_ctx"), "use_mmap")
        rest = tuple((name, options[name]) for name in names if options.get(name) is not None)
        return cls(wanted, tuple(sorted(rest)))

    def runs(self, other: RunnerOptions) -> bool:
        """Whether a runner with these options serves a request with those."""
        ours, theirs = dict(self.rest), dict(other.rest)
        if theirs.get("num_gpu", -1) == -1:
            ours.pop("num_gpu", None)
            theirs.pop("num_gpu", None)
        return self.num_ctx == other.num_ctx and ours == theirs


def context_length(spec: SimSpec, model: SimModel, num_ctx: int | None) -> int:
    """The context of each slot, in tokens."""
    wanted = num_ctx or spec.default_num_ctx or spec.release.default_num_ctx
    return max(NUM_CTX_MIN, min(wanted, model.max_context))


@dataclass(slots=True, eq=False)
class Runner:
    """One process with one weights file. `model` is the name under which it was first loaded.

    `expires_at_ns` is set when a request ends, and by an unload; None until then.
    """

    model: SimModel
    options: RunnerOptions
    size_bytes: int
    size_vram_bytes: int
    context_length: int
    slots: asyncio.Semaphore
    keep_alive_ns: int
    state: State = "loading"
    active: int = 0
    expires_at_ns: int | None = None
    evicted: bool = False
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    def stop_timer(self) -> None:
        """While it is in use it does not expire; the time shown stays."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def choose_victim(runners: Iterable[Runner]) -> Runner | None:
    """Who goes first for another model: the shortest keep-alive, then the blob's path, and the
    first idle one in that order; the first at all where none is idle.

    Not the least recently used, nor the largest; a keep-alive of for ever only goes last.
    """
    order = sorted(
        (runner for runner in runners if runner.state == "ready"),
        key=lambda runner: (runner.keep_alive_ns, runner.model.weights_key),
    )
    return next((runner for runner in order if runner.active == 0), order[0] if order else None)


def room_for(spec: SimSpec, runners: Iterable[Runner], recovering_bytes: int, size: int) -> int:
    """How much of a new model of `size` bytes goes to the GPU; -1 where another must go first.

    Next to others a model is loaded whole or not at all; alone, as far as it fits.
    """
    others = list(runners)
    if len(others) >= spec.models_max:
        return -1
    if spec.vram_bytes == 0:
        return 0
    free = spec.vram_bytes - sum(runner.size_vram_bytes for runner in others) - recovering_bytes
    if others and size > free * spec.release.fit_percent // 100:
        return -1
    return min(size, max(free, 0))
