"""Placement for applications: a lease on a node that can run the model, held while it is used.

    async with open_placer(settings) as placer:
        async with placer.lease(model="llama3:70b", timeout=30) as lease:
            await lease.prepare()
            ...  # talk to lease.node_base_url, about lease.model

                       ┌────────┐  wake, poll   ┌──────────────────────────────┐
      asked ─────────▶ │ queued │ ────────────▶ │ held: beats renew it         │
        │  │           └────────┘               └──────────────────────────────┘
        │  └──────── granted at once ──────────▶   │          │           │
        ▼                  │                       ▼          ▼           ▼
      denied ◀── time over ┘                   released     lost       expired
      (PlacementDenied)      interrupted:      completed,   (LeaseLost: revoked,
                             cancelled         cancelled,    expired, unknown,
                             at the back end   failed        trust over, closed)

It decides only how long this process trusts what it holds: from before each heartbeat was sent,
plus what the answer gave, less a margin, on a clock that counts suspended time. When trust ends,
or the back end says that the lease is over, the work's task is cancelled and its block raises
LeaseLost.

It never decides which node, never admits anything by itself, and never infers from a lost answer
that a call was not done: the same call is repeated, and an interrupted request is cancelled at the
back end until that is answered.

Failure: a coordination server that is away denies new requests (`coordination_unavailable`; those
that are not patient, at once) and ends the leases whose trust runs out. A process that dies leaves
leases that end by their deadline, or sooner by its successor on the host. Every refusal is typed,
with a code, each node's reason, and a sentence that says what would help.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aibs.errors import LeaseLost, PlacementDenied
    from aibs.placement.asking import PlacerTiming
    from aibs.placement.backend import Backend
    from aibs.placement.held import HeldLease
    from aibs.placement.opening import open_placer
    from aibs.placement.placer import Placer
    from aibs.placement.sync import SyncLease, SyncPlacer
    from aibs.placement.values import Lease, NodeReason

__all__ = [
    "Backend",
    "HeldLease",
    "Lease",
    "LeaseLost",
    "NodeReason",
    "PlacementDenied",
    "Placer",
    "PlacerTiming",
    "SyncLease",
    "SyncPlacer",
    "open_placer",
]

# Loaded when it is asked for: commands that only read the log need no client for nodes.
_HOMES = {
    "Backend": "aibs.placement.backend",
    "HeldLease": "aibs.placement.held",
    "Lease": "aibs.placement.values",
    "LeaseLost": "aibs.errors",
    "NodeReason": "aibs.placement.values",
    "PlacementDenied": "aibs.errors",
    "Placer": "aibs.placement.placer",
    "PlacerTiming": "aibs.placement.asking",
    "SyncLease": "aibs.placement.sync",
    "SyncPlacer": "aibs.placement.sync",
    "open_placer": "aibs.placement.opening",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
