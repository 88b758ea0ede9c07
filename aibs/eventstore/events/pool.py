"""What happened to the pool itself."""

from __future__ import annotations

from typing import ClassVar

from aibs.eventstore.events.envelope import EventData


class PoolCreated(EventData):
    """The pool was made: its first event, or the first after its state was lost."""

    TYPE: ClassVar[str] = "PoolCreated"

    pool_id: str
    run_id: str
    state_version: str
    epoch: int


class PoolSuspect(EventData):
    """The server may have lost writes; grants are refused until `recover_at_ms` at the earliest.

    `why` is server_restarted, fence_regressed or pool_missing.
    """

    TYPE: ClassVar[str] = "PoolSuspect"

    why: str
    run_id: str
    epoch: int
    recover_at_ms: int


class PoolReopened(EventData):
    """Grants are possible again, on each node after its next observation.

    `why` is recovered or clean_shutdown.
    """

    TYPE: ClassVar[str] = "PoolReopened"

    why: str
    run_id: str
    epoch: int


class PoolClosed(EventData):
    """The server's last holder is about to stop it, with nothing in flight."""

    TYPE: ClassVar[str] = "PoolClosed"

    run_id: str
