"""The usual world: two simulated nodes and a scripted one, a model for each kind of request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aibs.ollama.sim import SimModel
from tests.gateway_world.world import GB, Box, World

if TYPE_CHECKING:
    from pathlib import Path

CHAT: Final = "chat:8b"
EMBED: Final = "embed"
SCRIPTED: Final = "scripted:1b"
CONTEXT: Final = "context:8b"
"""The roster says its num_ctx and keep_alive."""

ANSWER: Final = " ".join(f"token{number}" for number in range(1, 9))
"""What a simulated node generates."""

ROSTER: Final[tuple[dict[str, Any], ...]] = (
    {
        "worker_id": "answer",
        "model": CHAT,
        "roles": ["answer"],
        "kind": "chat",
        "resident_weight_gb": 8,
        "active_parameter_billions": 8,
    },
    {
        "worker_id": "semantic",
        "model": EMBED,
        "roles": ["semantic"],
        "kind": "embedding",
        "resident_weight_gb": 1,
        "active_parameter_billions": 0.1,
    },
    {
        "worker_id": "context",
        "model": CONTEXT,
        "roles": ["context"],
        "kind": "chat",
        "resident_weight_gb": 8,
        "active_parameter_billions": 8,
        "num_ctx": 8192,
        "keep_alive": "30m",
    },
    {
        "worker_id": "raw",
        "model": SCRIPTED,
        "roles": ["raw"],
        "kind": "chat",
        "resident_weight_gb": 1,
        "active_parameter_billions": 1,
    },
)
AFFINITY: Final = {
    "answer": ["box-a", "box-b"],
    "semantic": ["box-a"],
    "context": ["box-b"],
    "raw": ["box-raw"],
}


def boxes() -> tuple[Box, ...]:
    """All that is asked for is resident but the model with a context of its own."""
    return (
        Box("box-a", (SimModel(CHAT, 8 * GB, loaded=True), SimModel(EMBED, GB, **_EMBEDS))),
        Box("box-b", (SimModel(CHAT, 8 * GB, loaded=True), SimModel(CONTEXT, 8 * GB))),
        Box("box-raw", (SimModel(SCRIPTED, GB),), scripted=True),
    )


def plain_world(directory: Path, valkey_url: str, **settings: str) -> World:
    """The world, to be entered."""
    return World(directory, valkey_url, boxes(), ROSTER, affinity=AFFINITY, settings=settings)


COLD: Final = "cold:8b"
"""Not resident, and slow to load."""

COLD_LOAD_S: Final = 0.8


def cut_world(directory: Path, valkey_url: str, **settings: str) -> World:
    """A scripted node with one slot, and a simulated one where a model must be loaded first. No
    poll that is not answered, and no failed request, takes a node out.
    """
    cold = {
        "worker_id": "cold",
        "model": COLD,
        "roles": ["cold"],
        "kind": "chat",
        "resident_weight_gb": 8,
        "active_parameter_billions": 8,
    }
    return World(
        directory,
        valkey_url,
        (
            Box("box-raw", (SimModel(SCRIPTED, GB),), slots=1, scripted=True),
            Box("box-cold", (SimModel(COLD, 8 * GB, load_seconds=COLD_LOAD_S),), slots=2),
        ),
        [cold, next(worker for worker in ROSTER if worker["model"] == SCRIPTED)],
        affinity={"cold": ["box-cold"], "raw": ["box-raw"]},
        settings={
            "API_TRIP_AFTER_FAILURES": "1000",
            "MODEL_CLUSTER_RESIDENCY_MONITOR_FAILURE_THRESHOLD": "1000",
            **settings,
        },
    )


_EMBEDS: Final[dict[str, Any]] = {"kind": "embedding", "loaded": True, "max_context": 2048}


def twin_world(directory: Path, valkey_url: str, *, slots: int = 1, **settings: str) -> World:
    """Two scripted nodes with one model, by default with one slot each."""
    return World(
        directory,
        valkey_url,
        tuple(
            Box(name, (SimModel(SCRIPTED, GB),), slots=slots, scripted=True)
            for name in ("box-a", "box-b")
        ),
        [next(worker for worker in ROSTER if worker["model"] == SCRIPTED)],
        settings={"API_TRIP_AFTER_FAILURES": "1000", **settings},
    )
