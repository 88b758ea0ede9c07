"""Resident weights out of what was seen resident. Pure.

A suggestion is a weight only. Active parameters are never inferred: nothing that a node says
tells how many parameters a token touches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aibs.audit.document import Suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aibs.audit.facts import NodeFinding
    from aibs.fleet import Worker

SIZE_MAX_BYTES = 2**50
"""No model is larger; what claims to be is not a size."""

_MB = 10**6


@dataclass(frozen=True, slots=True)
class Measurement:
    """A worker's model as it was seen resident on a node."""

    worker_id: str
    node_id: str
    source: Literal["ps", "warmup"]
    size_bytes: int
    size_vram_bytes: int
    context_length: int | None

    @property
    def resident_bytes(self) -> int:
        """What it occupies. A server may count either number higher, so the larger one holds."""
        return max(self.size_bytes, self.size_vram_bytes)


def measurement(
    worker_id: str,
    node_id: str,
    source: Literal["ps", "warmup"],
    *,
    size_bytes: int | None,
    size_vram_bytes: int | None,
    context_length: int | None,
) -> Measurement | None:
    """A measurement, None where the sizes say nothing (absent, 0 while loading, implausible).

    An absent size_vram is 0: servers before 0.1.42 left it out for a model on the CPU.
    """
    size, size_vram = size_bytes or 0, size_vram_bytes or 0
    if min(size, size_vram) < 0 or not 0 < max(size, size_vram) <= SIZE_MAX_BYTES:
        return None
    return Measurement(worker_id, node_id, source, size, size_vram, context_length or None)


def measurements_of(findings: Iterable[NodeFinding]) -> tuple[Measurement, ...]:
    """Every worker's model that a node lists with a size."""
    found = []
    for finding in findings:
        for entry in finding.residency.models if finding.residency else ():
            model = entry.model
            if not model.readable or model.placement == "loading":
                continue
            for worker_id in entry.worker_ids:
                seen = measurement(
                    worker_id,
                    finding.node.node_id,
                    "ps",
                    size_bytes=model.size_bytes,
                    size_vram_bytes=model.size_vram_bytes,
                    context_length=model.context_length,
                )
                if seen is not None:
                    found.append(seen)
    return tuple(found)


def weight_gb(resident_bytes: int) -> float:
    """Decimal GB with 3 places, rounded up: a weight rounded down promises memory that is taken."""
    return -(-resident_bytes // _MB) / 1000


def suggest(measurements: Iterable[Measurement]) -> dict[str, Suggestion]:
    """For each measured worker the largest size seen, because it may be placed on any node."""
    largest: dict[str, Measurement] = {}
    for seen in measurements:
        known = largest.get(seen.worker_id)
        if known is None or seen.resident_bytes > known.resident_bytes:
            largest[seen.worker_id] = seen
    return {
        worker_id: Suggestion(
            resident_weight_gb=weight_gb(seen.resident_bytes),
            node_id=seen.node_id,
            source=seen.source,
            size_bytes=seen.size_bytes,
            size_vram_bytes=seen.size_vram_bytes,
        )
        for worker_id, seen in largest.items()
    }


def suggested_roster(
    workers: Iterable[Worker], suggestions: Mapping[str, Suggestion]
) -> list[dict[str, Any]]:
    """The roster in the shape of AIBS_MODEL_ADMISSION_WORKER_ROSTER, suggestions filled in."""
    return [_entry(worker, suggestions.get(worker.worker_id)) for worker in workers]


def _entry(worker: Worker, suggestion: Suggestion | None) -> dict[str, Any]:
    weight: float | None = None
    if suggestion is not None:
        weight = suggestion.resident_weight_gb
    elif worker.resident_weight_bytes is not None:
        weight = worker.resident_weight_bytes / 10**9
    active = worker.active_parameter_billions
    entry: dict[str, Any] = {
        "worker_id": worker.worker_id,
        "model": worker.model,
        "roles": list(worker.roles),
        "kind": worker.kind,
        "resident_weight_gb": weight,
        "active_parameter_billions": None if active is None else float(active),
        "num_ctx": worker.num_ctx,
        "keep_alive": worker.keep_alive,
    }
    # Left out rather than null: an absent key is what the operator wrote.
    return {name: value for name, value in entry.items() if value is not None}
