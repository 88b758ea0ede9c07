"""The takeover proof as a whole: every run, the verdict over all, what the audit is told."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.codec import rfc3339
from aibs.errors import AibsError, ConfigurationError
from aibs.proofs.document import SCHEMA, TakeoverDocument
from aibs.proofs.keeping import keep_log
from aibs.proofs.namespaces import Namespaces
from aibs.proofs.takeover import Proof, Run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aibs.proofs.document import HandoverGate, RunReport, Variant
    from aibs.proofs.ground import Ground

REPEAT_MAX = 100


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """What the operator asked for."""

    repeat: int = 1
    variant: Variant = "kill"
    gate: HandoverGate = "strict"
    keep_log: Path | None = None
    self_contained: bool = False


@dataclass(frozen=True, slots=True)
class Proved:
    """The document, and whether a run ended because something could not be reached."""

    document: TakeoverDocument
    unreachable: bool


def check(ground: Ground, options: ProofOptions) -> None:
    """Refuse what cannot be proved. Raises ConfigurationError."""
    if not 1 <= options.repeat <= REPEAT_MAX:
        raise ConfigurationError(
            f"--repeat {options.repeat} is not between 1 and {REPEAT_MAX}.", mend="Name a number."
        )
    if ground.settings.coordination_backend != "valkey":
        raise ConfigurationError(
            "AIBS_COORDINATION_BACKEND is memory: there is no server on which to prove anything.",
            mend="Set it to valkey, or use --self-contained.",
        )
    if not ground.settings.fleet().nodes:
        raise ConfigurationError(
            "AIBS_MODEL_CLUSTER_NODE_IDS is empty: there is no node to watch.",
            mend="Describe the nodes, or use --self-contained.",
        )


async def prove(
    ground: Ground,
    options: ProofOptions,
    tell: Callable[[str], None],
    *,
    proof: Proof | None = None,
) -> Proved:
    """Run the proof. `proof` replaces what the runs share; tests break it there.

    Raises ConfigurationError, CoordinationUnavailable.
    """
    check(ground, options)
    namespaces = proof.namespaces if proof else Namespaces(ground.client)
    for name in await namespaces.sweep():
        tell(f"Deleted {name}, which an earlier proof left behind.")
    proof = proof or Proof(
        settings=ground.settings,
        client=ground.client,
        namespaces=namespaces,
        start=ground.start,
        directory=ground.directory,
        variant=options.variant,
        gate=options.gate,
        tell=tell,
    )
    reports: list[RunReport] = []
    unreachable = False
    for number in range(1, options.repeat + 1):
        tell(f"Run {number} of {options.repeat}:")
        run = Run(proof, number, keep_log(options.keep_log, number, options.repeat))
        reports.append(await run.prove())
        unreachable = unreachable or run.unreachable
    now_ms = await namespaces.now_ms()
    settings = ground.settings
    document = TakeoverDocument(
        schema=SCHEMA,
        generated_at=rfc3339(now_ms),
        passed=all(one.passed for one in reports),
        correctness_passed=all(one.correctness_passed for one in reports),
        availability_passed=all(one.availability_passed for one in reports),
        handover_gate=options.gate,
        bound_ms=settings.takeover_bound_ms,
        max_residency_staleness_ms=settings.max_residency_staleness_ms,
        variant=options.variant,
        self_contained=options.self_contained,
        fingerprint=settings.fleet().fingerprint,
        runs=reports,
    )
    if not options.self_contained:
        with contextlib.suppress(AibsError):
            await namespaces.remember(
                settings.model_cluster_namespace, _remembered(document, now_ms)
            )
    return Proved(document, unreachable)


def _remembered(document: TakeoverDocument, now_ms: int) -> dict[str, object]:
    last = document.runs[-1]
    return {
        "at_ms": now_ms,
        "passed": document.passed,
        "correctness_passed": document.correctness_passed,
        "availability_passed": document.availability_passed,
        "handover_gate": document.handover_gate,
        "variant": document.variant,
        "runs": len(document.runs),
        "fence": last.fence_b,
        "handover_ms": last.handover_ms,
        "fingerprint": document.fingerprint,
    }
