"""One poll as what the log needs of it. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.codec import dumps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aibs.ollama.ownership import ClassifiedModel, Residency

MAX_MODELS = 256
"""More entries in one answer are no list of resident models: the node is unaccounted."""


@dataclass(frozen=True, slots=True)
class PollOutcome:
    """What a poll came to. Times on the boot-time clock, in milliseconds.

    `reason` is empty for a good poll, else the failure's code.
    """

    node_id: str
    base_url: str
    seq: int
    fence: int
    begun_at_ms: int
    latency_ms: int
    reason: str
    unaccounted: bool
    models_json: bytes
    telemetry_json: bytes

    @property
    def good(self) -> bool:
        """Whether the node answered with a readable list."""
        return not self.reason


def _model(entry: ClassifiedModel) -> dict[str, Any]:
    model = entry.model
    return {
        "name": model.name,
        "key": model.key,
        "digest": model.digest,
        "size_bytes": model.size_bytes,
        "size_vram_bytes": model.size_vram_bytes,
        "context_length": model.context_length,
        "placement": model.placement,
        "ownership": entry.ownership,
        "worker_ids": list(entry.worker_ids),
        "keeps_forever": model.keeps_forever,
        "expires_at_ms": model.expires_at_ms,
        "charge_bytes": entry.charge_bytes,
    }


def _order(document: dict[str, Any]) -> tuple[str, str, int, str]:
    return (
        document["key"] or "",
        document["digest"] or "",
        document["size_bytes"] or 0,
        document["name"],
    )


def observed(residency: Residency, keys: Mapping[str, str]) -> tuple[bytes, bool]:
    """The models in canonical order as JSON, and whether something could not be accounted for.

    `keys` has the comparison key of each worker's model: one resident file may serve several.
    """
    models = sorted(
        (
            {
                **_model(entry),
                "roster_keys": sorted(
                    {keys[worker_id] for worker_id in entry.worker_ids if worker_id in keys}
                ),
            }
            for entry in residency.models
        ),
        key=_order,
    )
    unaccounted = residency.unaccounted or len(models) > MAX_MODELS
    return dumps(models[:MAX_MODELS]), unaccounted


def telemetry(node_id: str, residency: Residency, *, version: str | None, latency_ms: int) -> bytes:
    """The richer record of a good poll, for people: kept apart from the stamp, with a TTL."""
    return dumps(
        {
            "node_id": node_id,
            "ollama_version": version,
            "latency_ms": latency_ms,
            "own_bytes": residency.own_bytes,
            "foreign_bytes": residency.foreign_bytes,
            "unaccounted": residency.unaccounted,
            "warnings": list(residency.warnings),
            "models": [_model(entry) for entry in residency.models[:MAX_MODELS]],
        }
    )
