"""Folds of the log: what the events add up to. No I/O, no clock.

Decides what the events add up to; never whether they were right to happen. What only passes with
time (a term that expires, a stamp that ages) is a question to a state, with the time as argument.

    Fold            state that is told of events one after the other; a JSON document, and back
    Engine          reads each event once, checks it whole, and tells the folds of its type
    Coordination    everything that the scripts keep live
    all_folds()     the projections: coordination, capacity, health history, leaks, ownership,
                    queue, timeline, workload

Failure: an event that this release cannot read is counted in the position's `unread` and named by
its last one; it changes nothing. A newer version of a type that a fold folds stops that fold: it
stays at that event and says why.
"""

from aibs.projections.coordination import Coordination, evolve, fold
from aibs.projections.engine import Engine, Fold, Position, UnusableDocument, digest

__all__ = [
    "Coordination",
    "Engine",
    "Fold",
    "Position",
    "UnusableDocument",
    "digest",
    "evolve",
    "fold",
]
