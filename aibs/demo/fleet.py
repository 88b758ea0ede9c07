"""The demo's two nodes, its roster, and the environment that its commands get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.codec import BYTES_PER_GB, dumps_text
from aibs.ollama.sim.spec import SimModel, SimSpec

if TYPE_CHECKING:
    from pathlib import Path

GB = BYTES_PER_GB

TOKEN_S = 0.04
"""Slow enough that a request keeps its slot while others wait."""

LOAD_S = 0.4

NODES: tuple[SimSpec, ...] = (
    SimSpec(
        name="box-c",
        vram_bytes=90 * GB,
        token_seconds=TOKEN_S,
        models=(
            SimModel("qwen3:32b", 24 * GB, loaded=True),
            SimModel("nomic-embed-text", GB, kind="embedding", loaded=True),
        ),
    ),
    SimSpec(
        name="box-e",
        vram_bytes=104 * GB,
        token_seconds=TOKEN_S,
        load_seconds=LOAD_S,
        models=(
            SimModel("somebody/elses:70b", 43 * GB, loaded=True),
            SimModel("qwen3:32b", 24 * GB),
        ),
    ),
)

ROSTER = (
    {
        "worker_id": "answer",
        "model": "qwen3:32b",
        "roles": ["answer"],
        "kind": "chat",
        "resident_weight_gb": 24,
        "active_parameter_billions": 32.8,
    },
    {
        "worker_id": "semantic_profile",
        "model": "nomic-embed-text",
        "roles": ["semantic_profile"],
        "kind": "embedding",
        "resident_weight_gb": 1,
        "active_parameter_billions": 0.137,
    },
)

# Shorter than the defaults, so that a takeover takes seconds; the same rules bind them.
TIMING = {
    "RESIDENCY_MONITOR_POLL_INTERVAL_SECONDS": "1",
    "RESIDENCY_MONITOR_POLL_TIMEOUT_SECONDS": "0.5",
    "RESIDENCY_MONITOR_LEASE_TTL_SECONDS": "3",
    "RESIDENCY_MONITOR_STANDBY_RETRY_SECONDS": "0.5",
    "MAX_RESIDENCY_STALENESS_MS": "10000",
    "ACTIVE_LEASE_TTL_SECONDS": "60",
    "HEARTBEAT_INTERVAL_SECONDS": "10",
}


def environment(data_dir: Path, urls: tuple[str, ...]) -> dict[str, str]:
    """The settings of every process of the demo."""
    cluster = {
        "NODE_IDS": ",".join(spec.name for spec in NODES),
        "NODE_URLS": ",".join(urls),
        "NODE_VRAM_GB": ",".join(str(spec.vram_bytes // GB) for spec in NODES),
        "NODE_MAX_PARALLEL_REQUESTS": ",".join("1" for _ in NODES),
        "ROLE_AFFINITY_JSON": '{"semantic_profile":["box-c"]}',
        "ENABLED": "true",
        "SINGLE_HOST": "true",
        **TIMING,
    }
    return {
        "AIBS_DATA_DIR": str(data_dir),
        "AIBS_VALKEY_URL": "embedded",
        "AIBS_MODEL_ADMISSION_WORKER_ROSTER": dumps_text(list(ROSTER)),
        **{f"AIBS_MODEL_CLUSTER_{name}": value for name, value in cluster.items()},
    }
