"""The sentences of denials and lost leases, for an operator: what, where, how much, what helps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aibs.errors import LeaseLost, PlacementDenied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aibs.placement.values import NodeReason

NODES_MAX: Final = 8
"""Nodes that a sentence names before it counts the rest."""

TEXT_MAX: Final = 120
DETAIL_MAX: Final = 400
"""Of a sentence within the sentence: its end says what helps."""

_BYTES_PER_TENTH_GB: Final = 10**8

_NODE_CLAUSES: Final[Mapping[str, str]] = {
    "unknown_model": "has no worker for it",
    "unmeasured_weight": "has no measured worker for it",
    "never_fits": "is too small for it",
    "affinity": "is not among its role's nodes",
    "no_memory": "lacks memory",
    "no_slot": "has no free slot",
    "draining": "has a slot that still drains",
    "stale_residency": "was not seen recently",
    "no_owner": "is observed by nobody",
    "unaccounted_resident": "holds something whose size cannot be read",
    "node_unhealthy": "does not answer",
    "node_loading": "is loading or unloading a model",
    "node_tripped": "is closed after failures",
    "node_cordoned": "is cordoned",
    "reserved": "is kept for an older request",
    "pool_recovering": "was not seen since the coordination server came back",
}
"""What stands behind a node's name."""

_MENDS: Final[Mapping[str, str]] = {
    "unknown_model": "Add a worker for it to AIBS_MODEL_ADMISSION_WORKER_ROSTER.",
    "unmeasured_weight": "Measure it with `aibs audit --warmup` and set resident_weight_gb and "
    "active_parameter_billions of its worker.",
    "never_fits": "Raise AIBS_MODEL_CLUSTER_NODE_VRAM_GB of a node that has the memory, or use a "
    "smaller model.",
    "affinity": "Name a declared node for the role in AIBS_MODEL_CLUSTER_ROLE_AFFINITY_JSON.",
    "request_conflict": "Use another request_id for another request.",
    "request_ended": "Ask again with a new request_id.",
    "no_memory": "Wait for a lease to end, or raise AIBS_MODEL_CLUSTER_NODE_VRAM_GB where the "
    "machine has more.",
    "no_slot": "Wait for a lease to end, or raise AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS.",
    "draining": "Wait: a slot whose lease ended without a release rests for "
    "AIBS_MODEL_CLUSTER_DRAIN_SECONDS.",
    "stale_residency": "Look at `aibs audit`: the monitor does not reach the nodes, or is behind.",
    "no_owner": "Start `aibs monitor`: nobody observes the nodes.",
    "unaccounted_resident": "Look at the node's /api/ps: unload what has no readable size there.",
    "node_unhealthy": "Look at Ollama on the node; it is used again after two good polls.",
    "node_loading": "Wait until it is loaded.",
    "node_tripped": "Wait until it is tried again, or look at Ollama on the node.",
    "node_cordoned": "Run `aibs node uncordon` for it when it may be used again.",
    "reserved": "Wait: older requests go first.",
    "pool_recovering": "Wait until the holders were heard and the nodes were polled again.",
    "queue_full": "Ask later, or raise AIBS_MODEL_CLUSTER_QUEUE_MAX_WAITERS.",
    "wait_timeout": "Wait longer, or ask for less.",
    "coordination_unavailable": "Look at the coordination server; nothing is placed without it.",
    "pool_version": "Run the same release of aibs in every process.",
    "fleet_mismatch": "Use the same fleet settings in every process, or raise "
    "AIBS_MODEL_CLUSTER_FLEET_REVISION to declare the new ones.",
    "lease_lost": "Run the work again under a new lease.",
    "avoided": "Ask again in a while, or look at Ollama on the nodes that failed it.",
}

_WHOLE: Final[Mapping[str, str]] = {
    "unknown_model": "{what} is served by no worker of the roster",
    "unmeasured_weight": "{what} has no worker whose weight was measured, so it is never placed",
    "never_fits": "{what} is larger than the budget of every node that may run it",
    "affinity": "{what} may run on no declared node: its role is tied to others",
    "request_conflict": "The request {request_id} was made before with other parameters, or is in "
    "use elsewhere",
    "request_ended": "The request {request_id} has ended already",
    "pool_recovering": "{what} cannot be placed yet: the coordination server restarted, and its "
    "leases are being confirmed",
    "queue_full": "{what} fits nowhere now, and the queue is full",
    "wait_timeout": "{what} got no place in time",
    "coordination_unavailable": "{what} was not placed: the coordination server does not serve",
    "pool_version": "{what} was not placed: the pool was written by another release",
    "fleet_mismatch": "{what} was not placed: the declared fleet is not this process's",
    "lease_lost": "The lease of {what} is lost",
}
"""Sentences without their end. Every other code means: no node now."""

_WHY_LOST: Final[Mapping[str, tuple[str, str]]] = {
    "revoked": ("an operator took it back", "Ask whoever revoked it, then run the work again."),
    "expired": (
        "its deadline passed before a heartbeat was heard",
        "Look at this process's load and its way to the coordination server; run the work again.",
    ),
    "unknown": (
        "the coordination server does not know it (any more)",
        "Look whether that server was restarted or restored; run the work again.",
    ),
    "trust_over": (
        "no heartbeat was answered in time",
        "Look at the way to the coordination server; run the work again.",
    ),
    "closed": ("its placer was closed", "Keep the placer open until the work is done."),
}

LOSSES: Final = tuple(_WHY_LOST)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a sentence speaks of. `weight_bytes` None: not known."""

    model: str | None
    role: str | None
    request_id: str
    weight_bytes: int | None = None

    @property
    def text(self) -> str:
        """`llama3:70b (43 GB)`, `the role chat`."""
        size = "" if self.weight_bytes is None else f" ({gb(self.weight_bytes)})"
        if self.model is None:
            return f"The role {printable(self.role or '')}"
        role = f" as {printable(self.role)}" if self.role else ""
        return f"{printable(self.model)}{size}{role}"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known beside the code. Times in milliseconds."""

    nodes: Sequence[NodeReason] = ()
    others: Mapping[str, int] | None = None
    retry_after_ms: int | None = None
    position: int | None = None
    detail: str | None = None
    no_owner: bool = False
    waited_ms: int | None = None


def gb(size_bytes: int) -> str:
    """`12.3 GB`, one decimal, rounded up: what is missing must not read as nothing."""
    tenths = -(-size_bytes // _BYTES_PER_TENTH_GB)
    return f"{tenths // 10} GB" if tenths % 10 == 0 else f"{tenths / 10:.1f} GB"


def seconds(duration_ms: int) -> str:
    """`0.3 s`, `12 s`, `5 min`."""
    if duration_ms < 10_000:
        return f"{max(duration_ms, 0) / 1000:.1f} s"
    return f"{duration_ms // 1000} s" if duration_ms < 120_000 else f"{duration_ms // 60_000} min"


def printable(text: str, most: int = TEXT_MAX) -> str:
    """Text from outside on one line of a terminal."""
    safe = "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[: most + 1]
    )
    return safe if len(safe) <= most else f"{safe[:most]}…"


def denied(subject: Subject, reason: str, around: Circumstances) -> PlacementDenied:
    """The error for a denial, with its sentence and its mend."""
    shown = "no_owner" if reason == "stale_residency" and around.no_owner else reason
    return PlacementDenied(
        _sentence(subject, reason, around),
        reason=reason,
        nodes=around.nodes,
        others=around.others,
        retry_after_ms=around.retry_after_ms,
        position=around.position,
        mend=_mend(shown, around),
    )


def lost(subject: Subject, why: str, lease_id: str, node_id: str) -> LeaseLost:
    """The error for a lease that ended under its work."""
    because, mend = _WHY_LOST[why]
    return LeaseLost(
        f"The lease of {subject.text} on {node_id} is lost: {because}.",
        why=why,
        lease_id=lease_id,
        mend=mend,
    )


def node_clause(node: NodeReason) -> str:
    """`box-c lacks 12.3 GB`."""
    clause = _NODE_CLAUSES.get(node.reason, f"has the reason {printable(node.reason)}")
    if node.reason == "no_memory" and node.missing_bytes:
        clause = f"lacks {gb(node.missing_bytes)}"
    if node.why == "stays":
        # The grant would unload a model that was loaded a moment ago and is asked for.
        clause = "keeps a model that was just loaded and is waited for"
    elif node.why == "avoided":
        clause = "failed this request before, or has not its model"
    elif node.why:
        clause = f"{clause} ({printable(node.why)})"
    if node.wait_ms:
        clause = f"{clause} for about {seconds(node.wait_ms)}"
    return f"{printable(node.node_id)} {clause}"


def _sentence(subject: Subject, reason: str, around: Circumstances) -> str:
    template = _WHOLE.get(reason)
    beginning = (
        template.format(what=subject.text, request_id=printable(subject.request_id))
        if template
        else f"{subject.text} fits on no node now"
    )
    if reason == "wait_timeout" and around.waited_ms is not None:
        beginning += f" (waited {seconds(around.waited_ms)})"
    clauses = _clauses(around)
    if not clauses and template is None:
        # No node was told: the code itself says what all of them have.
        clauses = f"every node {_NODE_CLAUSES.get(reason, f'has the reason {printable(reason)}')}"
    if around.detail:
        clauses = (
            f"{clauses}; {printable(around.detail, DETAIL_MAX)}"
            if clauses
            else printable(around.detail, DETAIL_MAX)
        )
    return f"{beginning}: {clauses.rstrip('.')}." if clauses else f"{beginning}."


def _clauses(around: Circumstances) -> str:
    shown = [node_clause(node) for node in around.nodes[:NODES_MAX]]
    rest = Counter(dict(around.others or {}))
    rest.update(node.reason for node in around.nodes[NODES_MAX:])
    for reason, count in sorted(rest.items()):
        nodes = "1 more node" if count == 1 else f"{count} more nodes"
        clause = _NODE_CLAUSES.get(reason, f"has the reason {printable(reason)}")
        shown.append(f"{nodes}: {clause}")
    if around.no_owner:
        shown.append("nobody observes the nodes")
    return ", ".join(shown)


def _to_mend(node: NodeReason) -> str:
    return "avoided" if node.why == "avoided" else node.reason


def _mend(reason: str, around: Circumstances) -> str:
    if reason == "node_unhealthy" and around.nodes:
        reason = _to_mend(around.nodes[0])
    mend = _MENDS.get(reason, "Look at `aibs audit`.")
    if reason == "wait_timeout" and around.nodes:
        # What held it up to the end is what would help.
        first = _to_mend(around.nodes[0])
        mend = _MENDS["no_owner" if around.no_owner else first] if first in _MENDS else mend
    if around.retry_after_ms:
        mend = f"{mend} Asking again may help in {seconds(around.retry_after_ms)}."
    return mend
