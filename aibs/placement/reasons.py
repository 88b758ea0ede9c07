"""The reason codes of denials: one list, in the three groups that tell a caller what to do."""

from __future__ import annotations

from typing import Final

NEVER: Final = (
    "unknown_model",
    "unmeasured_weight",
    "never_fits",
    "affinity",
    "request_conflict",
    "request_ended",
)
"""Asking again with the same parameters cannot help."""

FOR_NOW: Final = (
    "no_memory",
    "no_slot",
    "draining",
    "stale_residency",
    "no_owner",
    "unaccounted_resident",
    "node_unhealthy",
    "node_loading",
    "node_tripped",
    "node_cordoned",
    "reserved",
    "pool_recovering",
)
"""Waiting may help: a caller with waiting time is queued. `no_owner` explains stale_residency."""

AROUND: Final = (
    "queue_full",
    "wait_timeout",
    "coordination_unavailable",
    "pool_version",
    "fleet_mismatch",
    "lease_lost",
)
"""What went wrong around the decision."""

ALL: Final = NEVER + FOR_NOW + AROUND
