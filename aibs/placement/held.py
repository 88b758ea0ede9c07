"""A lease in the hands of the application."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aibs import logs
from aibs.placement.wording import Subject, lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from aibs.clock import Clock
    from aibs.errors import LeaseLost
    from aibs.fleet import Worker
    from aibs.ollama.client import NodeClient
    from aibs.placement.loading import Loads
    from aibs.placement.values import Lease, Outcome


class HeldLease:
    """What `async with placer.lease(...)` gives: where to go, and whether that still holds.

    `lost` is set when the lease ended under the work; the block's task is cancelled with it.
    """

    def __init__(self, grant: Lease, *, trusted_until_ms: int, clock: Clock, loads: Loads) -> None:
        self.grant = grant
        self.lost = asyncio.Event()
        self.outcome: Outcome = "completed"
        self._trusted_until_ms = trusted_until_ms
        self._clock = clock
        self._loads = loads
        self._why_lost = ""
        self._on_lost: list[Callable[[], object]] = []

    @property
    def lease_id(self) -> str:
        return self.grant.lease_id

    @property
    def request_id(self) -> str:
        return self.grant.request_id

    @property
    def token(self) -> str:
        """The fencing token: it grows from grant to grant."""
        return self.grant.token

    @property
    def node_id(self) -> str:
        return self.grant.node_id

    @property
    def node_base_url(self) -> str:
        """Where the node's Ollama API is, without a last slash."""
        return self.grant.base_url

    @property
    def model(self) -> str:
        """The model's name as the roster spells it: what to send to the node."""
        return self.grant.model

    @property
    def model_key(self) -> str:
        """What the model's name is compared by."""
        return self.grant.key

    @property
    def worker_id(self) -> str:
        return self.grant.worker_id

    @property
    def role(self) -> str | None:
        return self.grant.role

    @property
    def warm(self) -> bool:
        """Whether the model was resident, or leased there, when the lease was granted."""
        return self.grant.warm

    @property
    def probe(self) -> bool:
        """Whether this lease tries out a node that was closed after failures."""
        return self.grant.probe

    @property
    def unload_first(self) -> tuple[str, ...]:
        """Comparison keys of the idle models that `prepare` unloads before it loads."""
        return self.grant.unload_first

    @property
    def queue_ms(self) -> int:
        """How long the request waited."""
        return self.grant.queue_ms

    @property
    def trusted_until_ms(self) -> int:
        """When trust ends unless a heartbeat is answered, on the clock of `boottime_ms`."""
        return self._trusted_until_ms

    @property
    def remaining_ms(self) -> int:
        """How long this process may go on without another answered heartbeat; 0 when lost."""
        if self._why_lost:
            return 0
        return max(0, self._trusted_until_ms - self._clock.boottime_ms())

    @property
    def error(self) -> LeaseLost | None:
        """Why the lease is lost, or None."""
        if not self._why_lost:
            return None
        subject = Subject(self.model, self.role, self.request_id)
        return lost(subject, self._why_lost, self.lease_id, self.node_id)

    @property
    def worker(self) -> Worker:
        """The roster's worker for it. A load with other options than the traffic's warms nothing:
        both take them from here. Raises FleetMismatch where this process's roster has none.
        """
        return self._loads.worker_of(self)

    @property
    def needs_load(self) -> bool:
        """Whether `prepare` has anything to do now."""
        return self._loads.is_needed(self)

    @property
    def load_is_shared(self) -> bool:
        """Whether another lease of this process waits for the load of this one's model on this
        node: then `prepare` may be cancelled without breaking the load off. Ollama begins a load
        that was broken off from zero.
        """
        return self._loads.is_shared(self)

    async def prepare(self, client: NodeClient | None = None) -> None:
        """Have the model loaded: unload what the grant lists, wait until it is gone, then load.

        A warm lease returns at once, or as soon as this process has loaded the model for another
        lease. `client` talks to the lease's node; without it one is made. Raises NodeError with
        its kinds, FleetMismatch; the lease then ends as failed.
        """
        try:
            await self._loads.prepare(self, client)
        except Exception:
            self.outcome = "failed"
            raise

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Call back, in the event loop, when the lease is lost; at once where it is already."""
        if self._why_lost:
            self._call(callback)
        else:
            self._on_lost.append(callback)

    def end_as(self, outcome: Outcome) -> None:
        """What the release says where the block ends without an exception."""
        self.outcome = outcome

    def raise_if_lost(self) -> None:
        """Raises LeaseLost where the lease is lost."""
        error = self.error
        if error is not None:
            raise error

    def renew(self, trusted_until_ms: int) -> None:
        """A heartbeat was answered. Not for applications: the placer's heart calls it."""
        # Answers may come out of order; trust never gets shorter by an older one.
        self._trusted_until_ms = max(self._trusted_until_ms, trusted_until_ms)

    def lose(self, why: str) -> None:
        """The lease is over. Not for applications: the placer's heart calls it."""
        if self._why_lost:
            return
        self._why_lost = why
        self._log().warning("lease_lost", why=why, node_id=self.node_id, model=self.model)
        self.lost.set()
        callbacks, self._on_lost = self._on_lost, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - one callback must not keep others from theirs
            self._log().error("on_lost_failed", error=repr(error))

    def _log(self) -> FilteringBoundLogger:
        # Made where there is something to say: most leases say nothing.
        return logs.get("aibs.placement.lease", lease_id=self.lease_id)
