"""The proof for a terminal: each run's timeline, and the verdict in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aibs.proofs.document import RunReport, TakeoverDocument


def lines_of(document: TakeoverDocument) -> Iterator[str]:
    """Everything that is printed after the last run."""
    for run in document.runs:
        yield ""
        yield from _run(run)
    yield ""
    yield verdict_of(document)


def verdict_of(document: TakeoverDocument) -> str:
    """The whole proof in a sentence."""
    handovers = [run.handover_ms for run in document.runs if run.handover_ms is not None]
    longest = f", the longest handover took {_s(max(handovers))}" if handovers else ""
    runs = f"{len(document.runs)} run{'s' if len(document.runs) > 1 else ''}"
    if document.passed and document.availability_passed:
        return (
            f"PASSED: in {runs} nothing stale was trusted and no write of a deposed owner was "
            f"accepted{longest} (bound {_s(document.bound_ms)})."
        )
    if document.passed:
        return (
            f"PASSED for correctness in {runs}; availability is reported, not required: see the "
            f"findings{longest} (bound {_s(document.bound_ms)})."
        )
    if document.correctness_passed:
        return f"FAILED: the takeover was correct and too late{longest}. See the findings."
    return "FAILED: do not enable the scheduler. See the findings."


def _run(run: RunReport) -> Iterator[str]:
    yield f"Run {run.run}: {'passed' if run.passed else 'FAILED'}"
    if run.owner_a is not None:
        yield f"  owner A  fence {run.fence_a}  {run.owner_a}"
    if run.owner_b is not None:
        yield f"  owner B  fence {run.fence_b}  {run.owner_b}"
    for label, value in (
        ("until the term was over", run.parts.lease_expiry_ms),
        ("until B was elected", run.parts.election_ms),
        ("until its first good sample", run.parts.first_sample_ms),
        ("until every node was observed", run.parts.all_nodes_fresh_ms),
        ("in all", run.handover_ms),
    ):
        yield f"  {label:30} {'-' if value is None else _s(value)}"
    for node in run.nodes:
        yield (
            f"  {node.node_id}: last seen before {node.last_before or '-'}, first after "
            f"{node.first_after or '-'}"
        )
    yield (
        f"  writes of the deposed owner: {run.fenced_writes_rejected} refused, "
        f"{run.fenced_writes_accepted} accepted"
    )
    for finding in run.findings:
        yield f"  ! {finding}"


def _s(duration_ms: int) -> str:
    return f"{duration_ms / 1000:.2f} s"
