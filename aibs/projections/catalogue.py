"""Every projection there is, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.projections.capacity import Capacity
from aibs.projections.coordination import Coordination
from aibs.projections.health_history import HealthHistory
from aibs.projections.leaks import Leaks
from aibs.projections.recent import Recent
from aibs.projections.terms import Terms
from aibs.projections.waits import Waits
from aibs.projections.workload import Workload

if TYPE_CHECKING:
    from aibs.projections.engine import Fold

FOLDS: dict[str, type[Fold]] = {
    fold.name: fold
    for fold in (Coordination, Capacity, HealthHistory, Leaks, Terms, Waits, Recent, Workload)
}


def all_folds() -> tuple[Fold, ...]:
    """One of each, that has heard of nothing."""
    return tuple(fold() for fold in FOLDS.values())
