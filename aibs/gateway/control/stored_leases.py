"""Where living leases are looked up by their ids: in the pool, or in this process's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.eventstore.placement_state import PlacementState
from aibs.placement.memory import MemoryBackend
from aibs.placement.valkey import lease_of

if TYPE_CHECKING:
    from aibs.gateway.control.link import PoolLink
    from aibs.placement.backend import Backend
    from aibs.placement.values import Lease


class PoolLeases:
    """As every instance sees them."""

    def __init__(self, link: PoolLink) -> None:
        self._link = link

    async def lease(self, lease_id: str) -> Lease | None:
        """A living lease. Its deadline is not looked up. Raises CoordinationUnavailable."""
        async with self._link.use() as client:
            found = await PlacementState(client, self._link.keys).lease(lease_id)
        return None if found is None else lease_of(found, 0)


class MemoryLeases:
    """Of a process that admits by itself."""

    def __init__(self, backend: Backend) -> None:
        assert isinstance(backend, MemoryBackend)
        self._backend = backend

    async def lease(self, lease_id: str) -> Lease | None:
        """A living lease."""
        return self._backend.lease(lease_id)
