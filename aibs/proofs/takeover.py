"""One run of the takeover proof: the runbook's steps, in a namespace of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aibs.errors import AibsError, Fenced, Unreachable
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.eventstore.reading import answered
from aibs.eventstore.state import LiveState
from aibs.proofs.evidence import Recorded, Sample
from aibs.proofs.stderr import classify, joined
from aibs.proofs.verdict import Ending, Rules, judge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from aibs.eventstore.state import TermState
    from aibs.proofs.document import HandoverGate, RunReport, Stderr, Variant
    from aibs.proofs.keeping import Keep
    from aibs.proofs.monitors import Monitor
    from aibs.proofs.namespaces import Namespaces
    from aibs.settings import Settings

LOOK_EVERY_S = 0.02
START_S = 15.0
"""How long a monitor may take to start, beside what the settings promise."""

SAMPLES_A_READ = 1000
PROVER = "proof"

STEPS: dict[str, str] = {
    "namespace": "an isolated namespace",
    "owner": "monitor A is elected",
    "samples": "A has observed every node",
    "standby": "monitor B stands by",
    "kill": "A writes no more, without a word",
    "takeover": "B is elected, and has observed every node",
    "deposed": "A's fence is refused",
    "evidence": "the log is read",
}


class StepFailed(AibsError):
    """A step of the proof did not come about in its time."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What all runs share. `start` makes a monitor by its name, `overrides` replaces script parts
    of the proof's own calls (tests take the fence check away with it).
    """

    settings: Settings
    client: Any
    namespaces: Namespaces
    start: Callable[[str, str, Path], Monitor]
    directory: Path
    variant: Variant
    gate: HandoverGate
    tell: Callable[[str], None]
    patience_s: float = 0.0
    overrides: Mapping[str, str] | None = None

    @property
    def step_s(self) -> float:
        """The longest that a step may take."""
        return self.patience_s or START_S + 2 * self.settings.takeover_bound_ms / 1000


@dataclass(slots=True)
class _Seen:
    """What a run has found so far."""

    step: str = "namespace"
    killed_ms: int | None = None
    attempts: list[str] = field(default_factory=list)
    why: str | None = None


class Run:
    """One run. `prove` never raises for what the proof is about: that is in the report.

    Raises CoordinationUnavailable where the server cannot be reached before anything was begun.
    """

    def __init__(self, proof: Proof, number: int, keep: Keep | None = None) -> None:
        self._proof = proof
        self._number = number
        self._keep = keep
        self.unreachable = False
        self._seen = _Seen()
        self._nodes = tuple(node.node_id for node in proof.settings.fleet().nodes)
        self._monitors: list[Monitor] = []

    async def prove(self) -> RunReport:
        """All steps, the verdict, and the namespace gone."""
        proof = self._proof
        name = await proof.namespaces.make(
            proof.settings.model_cluster_namespace, live_ms=round(10 * proof.step_s * 1000)
        )
        self._done("namespace", name)
        self._keys = Keys(name)
        self._live = LiveState(proof.client, self._keys)
        self._log = Log(proof.client, self._keys)
        recorded = Recorded((), (), {}, self._nodes)
        deleted = False
        try:
            recorded = await self._recorded()
        finally:
            # Also on Ctrl-C: the children first, so that nothing is written after the deletion.
            with contextlib.suppress(AibsError):
                deleted = await asyncio.shield(proof.namespaces.delete(name))
        rules = Rules(
            proof.settings.takeover_bound_ms,
            proof.settings.max_residency_staleness_ms,
            proof.gate,
        )
        return judge(self._number, recorded, self._ending(name, deleted), rules)

    def _ending(self, name: str, deleted: bool) -> Ending:
        seen = self._seen
        return Ending(
            namespace=name,
            deleted=deleted,
            stderr=self._stderr(),
            stopped_at=None if seen.why is None else seen.step,
            why=seen.why or "",
        )

    def _stderr(self) -> Stderr:
        paused = self._proof.variant == "pause"
        return joined(
            classify(one.lines(), paused=paused and one is self._monitors[0])
            for one in self._monitors
        )

    async def _recorded(self) -> Recorded:
        async with contextlib.AsyncExitStack() as children:
            try:
                await self._steps(children)
            except AibsError as error:
                self._seen.why = str(error)
                self.unreachable = isinstance(error, Unreachable)
                self._proof.tell(f"  ✗ {STEPS[self._seen.step]}: {error}")
            return await self._read()

    async def _steps(self, children: contextlib.AsyncExitStack) -> None:
        self._seen.step = "owner"
        first = await self._start("A", children)
        old = await self._elected(first, above=0)
        self._done("owner", f"fence {old.fence}")
        await self._observed("samples", old.fence - 1)
        self._seen.step = "standby"
        second = await self._start("B", children)
        await self._until(lambda: self._said(second, "standing_by"), "monitor B stands by")
        self._done("standby")
        await self._end(first)
        self._seen.step = "takeover"
        new = await self._elected(second, above=old.fence)
        await self._observed("takeover", old.fence)
        await self._try_as(old, new)
        if self._proof.variant == "pause":
            await self._resume(first)

    async def _start(self, name: str, children: contextlib.AsyncExitStack) -> Monitor:
        monitor = self._proof.start(name, self._keys.namespace, self._proof.directory)
        self._monitors.append(monitor)
        await children.enter_async_context(monitor)
        await self._proof.namespaces.add_child(self._keys.namespace, monitor.pid)
        return monitor

    async def _end(self, first: Monitor) -> None:
        self._seen.step = "kill"
        self._seen.killed_ms = await self._live.server_now_ms()
        if self._proof.variant == "kill":
            await first.kill()
        else:
            first.signal(signal.SIGSTOP)
        self._done("kill", "kill -9" if self._proof.variant == "kill" else "SIGSTOP")

    async def _try_as(self, old: TermState, new: TermState) -> None:
        """Write with the deposed owner's fence, as it would: the server must refuse each."""
        self._seen.step = "deposed"
        proof, owner = self._proof, old.owner or ""
        pool = CoordinationPool(
            proof.client, self._keys, PROVER, recovery_ms=1, overrides=proof.overrides
        )
        node = proof.settings.fleet().nodes[0]
        poll = PollRecord(
            node.node_id, old.fence, 2**40, node.base_url, 0, True, "", 0, False, b"[]", b""
        )
        limits = ObserveLimits(2, proof.settings.max_residency_staleness_ms, 1000, 1000, 60_000)
        fingerprint = proof.settings.fleet().fingerprint
        attempts: tuple[Awaitable[Any], ...] = (
            pool.renew(owner, old.fence, ttl_ms=old.ttl_ms, mono_ms=1),
            pool.observe(owner, old.fence, fingerprint, (poll,), limits),
        )
        for attempt in attempts:
            try:
                await attempt
            except Fenced:
                self._seen.attempts.append("fenced")
            else:
                self._seen.attempts.append("accepted")
        refused = self._seen.attempts.count("fenced")
        self._done("deposed", f"{refused} writes with fence {old.fence} refused, not {new.fence}")

    async def _resume(self, first: Monitor) -> None:
        before = len(first.lines())
        first.signal(signal.SIGCONT)

        async def stands_by() -> bool:
            return any('"standing_by"' in line for line in first.lines()[before:])

        await self._until(stands_by, "the resumed owner stands by again")
        self._proof.tell("  ✓ A was resumed, and stands by again")

    # --- looking

    async def _said(self, monitor: Monitor, event: str) -> bool:
        return any(f'"{event}"' in line for line in monitor.lines())

    async def _elected(self, monitor: Monitor, *, above: int) -> TermState:
        term: TermState | None = None

        async def elected() -> bool:
            nonlocal term
            term = await self._live.term()
            return (
                term is not None and term.fence > above and f":{monitor.pid}:" in (term.owner or "")
            )

        await self._until(elected, f"monitor {monitor.name} is elected")
        assert term is not None
        return term

    async def _observed(self, step: str, above: int) -> None:
        self._seen.step = step
        missing: list[str] = []

        async def seen() -> bool:
            stamps = await self._live.stamps()
            missing[:] = [
                node_id
                for node_id in self._nodes
                if (stamp := stamps.get(node_id)) is None
                or stamp.observed_fence <= above
                or not stamp.healthy
            ]
            return not missing

        await self._until(
            seen,
            "every node is observed",
            lambda: f"{', '.join(missing)} had no good answer under a fence above {above}",
        )
        self._done(step)

    async def _until(
        self,
        condition: Callable[[], Awaitable[bool]],
        what: str,
        missing: Callable[[], str] | None = None,
    ) -> None:
        try:
            async with asyncio.timeout(self._proof.step_s):
                while not await condition():
                    for monitor in self._monitors:
                        monitor.check()
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError as error:
            detail = f": {missing()}" if missing else ""
            raise StepFailed(
                f"Waited {self._proof.step_s:.0f} s until {what}, in vain{detail}."
            ) from error

    def _done(self, step: str, detail: str = "") -> None:
        self._seen.step = step
        self._proof.tell(f"  ✓ {STEPS[step]}{f' ({detail})' if detail else ''}")

    # --- reading

    async def _read(self) -> Recorded:
        """The stamps before the samples, so that each stamp's sample is among them."""
        if self._seen.why is None:
            self._seen.step = "evidence"
        try:
            stamps = await self._live.stamps()
            events = [event async for event in self._log.read()]
            samples = await self._samples()
            if self._keep is not None:
                await self._keep(self._proof.client, self._proof.settings, self._keys.namespace)
        except AibsError as error:
            self._seen.why = self._seen.why or str(error)
            return Recorded((), (), {}, self._nodes)
        return Recorded(
            events,
            samples,
            stamps,
            self._nodes,
            self._seen.killed_ms,
            tuple(self._seen.attempts),
            PROVER,
        )

    async def _samples(self) -> list[Sample]:
        found: list[Sample] = []
        start = "-"
        while True:
            with answered("the samples"):
                entries = await self._proof.client.xrange(
                    self._keys.key("samples"), start, "+", count=SAMPLES_A_READ
                )
            found += [_sample(fields) for _, fields in entries]
            if len(entries) < SAMPLES_A_READ:
                return found
            start = f"({entries[-1][0].decode()}"


def _sample(fields: dict[bytes, bytes]) -> Sample:
    return Sample(
        fields[b"node"].decode(),
        int(fields[b"at_ms"]),
        int(fields[b"elapsed_ms"]),
        int(fields[b"fence"]),
        fields[b"outcome"] == b"ok",
        fields[b"healthy"] == b"1",
    )
