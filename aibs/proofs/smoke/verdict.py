"""From what was sent and what the log has of it to the steps of the document. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aibs.proofs.smoke.document import Outcome, SmokeRequest, SmokeStep
from aibs.proofs.smoke.evidence import wrong_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aibs.audit.document import AuditDocument
    from aibs.proofs.smoke.asks import Ask
    from aibs.proofs.smoke.document import StepName
    from aibs.proofs.smoke.evidence import Evidence, Grant

NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as its client saw it. `error` says what was wrong with the answer, None where
    it was whole (or was cut on purpose); `status` None: there was no answer.
    """

    ask: Ask
    duration_ms: int
    status: int | None = None
    error: str | None = None
    request_id: str | None = None
    lease_id: str | None = None
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    """What leases are compared with: each node's URL, and the pool that they must be in."""

    namespace: str
    nodes: Mapping[str, str] = field(default_factory=dict)


def judge_audit(document: AuditDocument, *, local_at: str | None = None) -> SmokeStep:
    """The runbook's three words, and the gates that say no. `local_at`: a gateway that says that
    it admits requests by itself, whatever the settings are here.
    """
    wrong = []
    if local_at is not None:
        wrong.append(
            f"the gateway at {local_at} admits requests by itself, without the shared pool: "
            "restart it with AIBS_MODEL_CLUSTER_ENABLED=true"
        )
    if not document.cluster_enabled:
        wrong.append(
            "cluster_enabled is false: AIBS_MODEL_CLUSTER_ENABLED is not set here, and a gateway "
            "with these settings admits requests by itself, without the shared pool"
        )
    wrong += [f"{gate.name}: {gate.detail}" for gate in document.gates if not gate.passed]
    if not wrong and not (
        document.ready_to_enable_global_scheduler and document.ready_for_global_scheduler
    ):
        wrong.append("the audit does not say ready")
    seen = f"enabled and ready: {len(document.gates)} gates passed"
    return SmokeStep(name="audit", passed=not wrong, requests=[], detail=_sentence(wrong, seen))


def judge_served(
    name: StepName, sent: Sequence[Sent], evidence: Evidence, ground: Ground
) -> SmokeStep:
    """A step whose requests must all have been placed, answered and given back as completed."""
    wrong = [text for one in sent for text in _wrong(one, evidence, ground)]
    return SmokeStep(
        name=name,
        passed=not wrong,
        requests=[report(one, evidence) for one in sent],
        detail=_sentence(wrong, "" if wrong else _seen(sent, evidence)),
    )


def judge_cut(
    sent: Sequence[Sent], evidence: Evidence, *, cut_at_ms: int | None, bound_ms: int
) -> SmokeStep:
    """The step of the request whose client left: its lease must have ended as cancelled in time.

    The last of `sent` left at `cut_at_ms` by the server's clock; the others had their whole
    answers before they could leave. None: the last one had, too.
    """
    last = sent[-1]
    grants = evidence.of(last.request_id) if last.request_id else ()
    seen = ""
    if last.error is not None:
        wrong = [_named(last, last.error)]
    elif cut_at_ms is None or not grants:
        wrong = [
            f"{_named(last, 'no cancellation was seen')}: each of {len(sent)} requests that its "
            "client left had ended before, or is not in the log"
        ]
    else:
        wrong = list(_cut(last, grants[-1], bound_ms=bound_ms, cut_at_ms=cut_at_ms))
        if not wrong:
            after_ms = max(0, grants[-1].ends[0].at_ms - cut_at_ms)
            seen = (
                f"the lease on {grants[-1].node_id} was given back {after_ms} ms after its client "
                "had left"
            )
    return SmokeStep(
        name="cancelled",
        passed=not wrong,
        requests=[report(one, evidence) for one in sent],
        detail=_sentence(wrong, seen),
    )


def _cut(last: Sent, grant: Grant, *, bound_ms: int, cut_at_ms: int) -> Iterator[str]:
    if not grant.ends:
        yield _named(last, f"its lease was not given back within {bound_ms / 1000:g} s")
    elif grant.how != "cancelled":
        yield _named(last, f"its lease ended as {grant.how}, not as cancelled")
    elif grant.ends[0].at_ms - cut_at_ms > bound_ms:
        late_ms = grant.ends[0].at_ms - cut_at_ms
        yield _named(last, f"its lease was given back only after {late_ms} ms")


def judge_leaks(
    sent: Sequence[Sent], evidence: Evidence, *, living: Iterable[str], waiting: Iterable[str]
) -> SmokeStep:
    """Nothing of the test may be left. `living` are the pool's leases, `waiting` the requests in
    its queue, both of ours.
    """
    wrong = [text for grant in evidence.grants for text in wrong_with(grant)]
    wrong += [f"lease {lease_id} is still held in the pool" for lease_id in living]
    wrong += [f"request {request_id} still waits in the queue" for request_id in waiting]
    unnamed = sum(one.request_id is None for one in sent)
    if unnamed:
        wrong.append(f"{unnamed} requests have no id, so the log cannot be asked about them")
    if not evidence.grants and not unnamed:
        wrong.append("the log has no grant of any request of this test")
    grants = evidence.grants
    seen = f"{len(grants)} leases, each ended once and on time; none is held, and nobody waits"
    return SmokeStep(name="no_leaks", passed=not wrong, requests=[], detail=_sentence(wrong, seen))


def not_run(name: StepName, why: str) -> SmokeStep:
    """A step that was not reached."""
    return SmokeStep(name=name, passed=False, requests=[], detail=f"{NOT_RUN}: {why}")


def report(sent: Sent, evidence: Evidence) -> SmokeRequest:
    """One request of the document."""
    grants = evidence.of(sent.request_id) if sent.request_id else ()
    last = grants[-1] if grants else None
    return SmokeRequest(
        request_id=sent.request_id,
        lease_id=last.lease_id if last else None,
        node_id=(last.node_id or None) if last else None,
        node_base_url=(last.base_url or None) if last else None,
        queue_ms=sum(one.queue_ms for one in grants) if grants else None,
        duration_ms=sent.duration_ms,
        outcome=last.how if last else _without_grant(sent),
        asked=sent.ask.asked,
        kind=sent.ask.kind,
        status=sent.status,
        grants=len(grants),
    )


def _without_grant(sent: Sent) -> Outcome:
    if sent.status is None:
        return "no_answer"
    return "no_grant" if sent.status < 400 else "refused"


def _wrong(sent: Sent, evidence: Evidence, ground: Ground) -> Iterator[str]:
    if sent.error is not None:
        yield _named(sent, sent.error)
        return
    grants = evidence.of(sent.request_id) if sent.request_id else ()
    if not grants:
        yield _named(
            sent,
            f"answered, and the pool {ground.namespace} has no grant of it: this gateway does not "
            "place through that pool (was it restarted since AIBS_MODEL_CLUSTER_ENABLED was set?)",
        )
        return
    for grant in grants:
        for text in wrong_with(grant):
            yield _named(sent, text)
    last = grants[-1]
    if last.ends and last.how not in ("completed", "expired", "reaped"):
        yield _named(sent, f"answered, and its lease ended as {last.how}")
    if last.node_id and ground.nodes.get(last.node_id) != last.base_url:
        yield _named(sent, f"placed on {last.node_id} at {last.base_url}, which is no node here")
    if (sent.lease_id, sent.node_id) != (last.lease_id, last.node_id):
        yield _named(
            sent,
            f"the gateway named lease {sent.lease_id} on {sent.node_id}, the log has "
            f"{last.lease_id} on {last.node_id}",
        )


def _named(sent: Sent, what: str) -> str:
    return f"{sent.ask.asked} ({sent.ask.kind}): {what}"


def _seen(sent: Sequence[Sent], evidence: Evidence) -> str:
    grants = [evidence.of(one.request_id)[-1] for one in sent if one.request_id]
    nodes = ", ".join(dict.fromkeys(grant.node_id for grant in grants))
    slowest_ms = max(one.duration_ms for one in sent)
    waited_ms = max(grant.queue_ms for grant in grants)
    retried = sum(len(evidence.of(one.request_id)) > 1 for one in sent if one.request_id)
    count = "1 request" if len(sent) == 1 else f"{len(sent)} requests"
    again = f"; {retried} went on to another node after one failed" if retried else ""
    return (
        f"{count} on {nodes}, the slowest {slowest_ms / 1000:.1f} s, the longest wait "
        f"{waited_ms / 1000:.1f} s{again}"
    )


def _sentence(wrong: Sequence[str], seen: str) -> str:
    return "; ".join(wrong) if wrong else seen
