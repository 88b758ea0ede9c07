"""What a placer needs of a back end: the Valkey pool, or one process's memory. One contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aibs.placement.values import (
        Beat,
        Denied,
        Granted,
        Lease,
        Outcome,
        Place,
        Queued,
        Released,
        ReportKind,
        Request,
        Session,
    )


class Backend(Protocol):
    """Every call may be repeated: the same request, lease and call id get the same answer.

    All raise OutcomeUnknown when the answer was lost, and CoordinationUnavailable when the
    coordinating server cannot serve; a caller that needs to know repeats the call.
    """

    async def acquire(
        self, request: Request, *, lease_id: str, call_id: str
    ) -> Granted | Queued | Denied:
        """Place the request, queue it, or say why not. `lease_id` is used if it is granted now."""
        ...

    async def heartbeat(self, holder: str, leases: Sequence[Lease]) -> list[Beat]:
        """Renew up to 256 leases of one holder, one answer each, in their order."""
        ...

    async def release(self, lease: Lease, outcome: Outcome, *, call_id: str) -> Released:
        """End a lease."""
        ...

    async def cancel(self, request: Request) -> str:
        """End a request whatever became of it: queued, leased, ended or unseen (the answer)."""
        ...

    async def refresh(self, holder: str, request_keys: Sequence[str]) -> list[Place]:
        """Keep up to 256 waiters of one holder in the queue, one answer each, in their order."""
        ...

    async def report(
        self, lease: Lease, kind: ReportKind, model: str, *, ms: int, outcome: str
    ) -> None:
        """Log that a model is being loaded, was loaded, or was unloaded for this lease."""
        ...

    async def trip(self, node_id: str, why: str) -> bool:
        """Close a node whose answers failed, for everybody; one lease tries it again later.

        False where it was closed already, or is not declared.
        """
        ...

    async def open_session(self, session: Session) -> None:
        """Make the holder known, and end what dead holders of its host left behind."""
        ...

    async def ping(self) -> None:
        """The smallest call that shows whether the coordinating server is there."""
        ...

    def wakes(self) -> AsyncIterator[frozenset[str]]:
        """Request keys that may go now, as they are told; ends never, survives reconnections."""
        ...

    async def aclose(self) -> None:
        """Give back connections. Leases are not touched."""
        ...
