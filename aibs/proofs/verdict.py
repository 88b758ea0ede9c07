"""From what a run left behind to its report: what passed, what did not, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.codec import rfc3339
from aibs.proofs.document import NodeEvidence, Parts, RunReport, Stderr
from aibs.proofs.evidence import takeover_of

if TYPE_CHECKING:
    from aibs.proofs.document import HandoverGate
    from aibs.proofs.evidence import Recorded, Takeover


@dataclass(frozen=True, slots=True)
class Rules:
    """What the run is held to, from the settings."""

    bound_ms: int
    staleness_ms: int
    gate: HandoverGate


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run itself went: the step that did not come about, what became of the namespace."""

    namespace: str
    deleted: bool
    stderr: Stderr
    stopped_at: str | None = None
    why: str = ""


def judge(number: int, recorded: Recorded, ending: Ending, rules: Rules) -> RunReport:
    """The report of one run."""
    told = takeover_of(recorded)
    handover_ms = _handover(told, recorded)
    wrong = [*_incomplete(ending), *_correctness(told, recorded, ending)]
    late = [*_staleness(told, recorded, rules), *_too_long(handover_ms, rules)]
    correct, available = not wrong, not late and ending.stopped_at is None
    return RunReport(
        run=number,
        passed=correct and (available or (rules.gate == "report-only")),
        correctness_passed=correct,
        availability_passed=available,
        stopped_at=ending.stopped_at,
        owner_a=told.before.owner if told.before else None,
        fence_a=told.before.fence if told.before else None,
        owner_b=told.after.owner if told.after else None,
        fence_b=told.after.fence if told.after else None,
        killed_at=None if recorded.killed_ms is None else rfc3339(recorded.killed_ms),
        handover_ms=handover_ms,
        parts=_parts(told, recorded),
        nodes=[_node(node_id, told) for node_id in recorded.nodes],
        fenced_writes_rejected=told.rejected,
        fenced_writes_accepted=len(told.accepted),
        pre_kill_owner_losses=told.losses_before,
        stderr=ending.stderr,
        namespace=ending.namespace,
        namespace_deleted=ending.deleted,
        findings=[*wrong, *late, *_churn(ending)],
    )


def _incomplete(ending: Ending) -> list[str]:
    found = []
    if ending.stopped_at is not None:
        found.append(f"The run stopped at {ending.stopped_at}: {ending.why}")
    if not ending.deleted:
        found.append(f"The namespace {ending.namespace} was left behind.")
    if ending.stderr.unexplained:
        found.append(
            f"The monitors wrote {len(ending.stderr.unexplained)} lines that nothing explains, "
            f"the first: {ending.stderr.unexplained[0]}"
        )
    return found


def _correctness(told: Takeover, recorded: Recorded, ending: Ending) -> list[str]:
    found = []
    if told.losses_before:
        found.append(f"The owner lost its term {told.losses_before} times before it was killed.")
    before, after = told.before, told.after
    if before is None or after is None:
        return found
    if before.ended != "expired":
        found.append(
            f"The owner's term was {before.ended or 'never ended'}, not expired: it was not killed "
            "without warning."
        )
    if after.fence <= before.fence:
        found.append(f"The new fence {after.fence} is not above the old one, {before.fence}.")
    if told.accepted:
        found.append(
            f"{len(told.accepted)} writes of the deposed owner were accepted, the first: "
            f"{told.accepted[0]}."
        )
    if not told.rejected and ending.stopped_at is None:
        found.append("No write of the deposed owner was tried, so none was seen refused.")
    if told.untrue_stamps and ending.stopped_at is None:
        found.append(
            f"The stamps of {', '.join(told.untrue_stamps)} tell a beginning that no poll had: "
            "they hide their age."
        )
    return [*found, *_interleaved(recorded)]


def _interleaved(recorded: Recorded) -> list[str]:
    highest = 0
    for event in recorded.events:
        if event.type == "FencedWriteRejected" or event.fence is None:
            continue
        if event.fence < highest and event.type != "OwnerExpired":
            return [f"Event {event.seq} {event.type} has fence {event.fence}, after {highest}."]
        highest = max(highest, event.fence)
    return []


def _staleness(told: Takeover, recorded: Recorded, rules: Rules) -> list[str]:
    if told.after is None:
        return []
    found = []
    for node_id in recorded.nodes:
        before, after = told.last_before.get(node_id), told.first_after.get(node_id)
        if before is None or after is None:
            which = "before" if before is None else "after"
            found.append(f"{node_id} has no good sample {which} the kill.")
        elif after.at_ms - before > rules.staleness_ms:
            found.append(
                f"{node_id} was without a fresh observation: {after.at_ms - before} ms lie between "
                f"its last poll before and the first answer after, allowed are "
                f"{rules.staleness_ms} ms."
            )
    return found


def _too_long(handover_ms: int | None, rules: Rules) -> list[str]:
    if handover_ms is None or handover_ms <= rules.bound_ms:
        return []
    return [
        f"The handover took {handover_ms} ms, over the bound of {rules.bound_ms} ms that the "
        "settings promise."
    ]


def _churn(ending: Ending) -> list[str]:
    if not ending.stderr.churn:
        return []
    return [
        f"The monitors wrote {len(ending.stderr.churn)} lines of churn, the first: "
        f"{ending.stderr.churn[0]}"
    ]


def _handover(told: Takeover, recorded: Recorded) -> int | None:
    fresh_ms = told.all_fresh_ms
    if recorded.killed_ms is None or fresh_ms is None:
        return None
    if set(told.first_after) != set(recorded.nodes):
        return None
    return fresh_ms - recorded.killed_ms


def _parts(told: Takeover, recorded: Recorded) -> Parts:
    killed_ms, before, after = recorded.killed_ms, told.before, told.after
    over_ms = before.deadline_ms if before else None
    elected_ms = after.elected_ms if after else None
    first_ms = min((one.at_ms for one in told.first_after.values()), default=None)
    last_ms = told.all_fresh_ms if set(told.first_after) == set(recorded.nodes) else None
    return Parts(
        lease_expiry_ms=_between(killed_ms, over_ms),
        election_ms=_between(over_ms, elected_ms),
        first_sample_ms=_between(elected_ms, first_ms),
        all_nodes_fresh_ms=_between(first_ms, last_ms),
    )


def _between(start_ms: int | None, end_ms: int | None) -> int | None:
    return None if start_ms is None or end_ms is None else end_ms - start_ms


def _node(node_id: str, told: Takeover) -> NodeEvidence:
    before, after = told.last_before.get(node_id), told.first_after.get(node_id)
    return NodeEvidence(
        node_id=node_id,
        last_before=None if before is None else rfc3339(before),
        first_after=None if after is None else rfc3339(after.begun_ms),
    )
