"""Folds of the log: pure functions (state, event) → state. No I/O, no clock.

Decides what the events add up to; never whether they were right to happen. What only passes with
time (a term that expires, a stamp that ages) is a question to a state, with the time as argument.

Failure: an event that this release cannot read is counted in the fold's `unread` and named by its
last one; what it would have changed is unknown, and the reader is told.
"""

from aibs.projections.coordination import Coordination, evolve, fold

__all__ = ["Coordination", "evolve", "fold"]
