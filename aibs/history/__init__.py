"""The way to a state: the newest snapshot that can be used, and the log from there on.

Decides where reading begins: at a snapshot whose last event the log still confirms, or at the
log's own beginning. It never folds over a gap: a log that was trimmed past every usable snapshot,
set back or replaced is refused with an error that says which.
"""

from aibs.history.catch_up import (
    Reading,
    catch_up,
    catch_up_all,
    follow,
    newest_state,
    oldest_state,
)

__all__ = ["Reading", "catch_up", "catch_up_all", "follow", "newest_state", "oldest_state"]
