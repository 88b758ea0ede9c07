"""An operator's hand on a pool: leases reaped and acknowledged, nodes cordoned, drained, forgotten.

Each is one script with an event that says who did it; a pool that is not there is never made.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import secrets
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aibs.errors import PoolMissing, Refused
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.placement_state import PlacementState
from aibs.eventstore.pool import CoordinationPool
from aibs.eventstore.state import LiveState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aibs.eventstore.replies import Answer
    from aibs.settings import Settings

ANSWER_TIMEOUT_S = 5.0
DRAIN_LOOK_S = 0.5
RECOVERY_MS_LEAST = 1


def whoami() -> str:
    """The person at the terminal: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


class Hand:
    """What an operator may do. Every method raises Refused with a mend where it cannot be done."""

    def __init__(self, pool: CoordinationPool, by: str) -> None:
        self._pool = pool
        self._by = by

    async def cordon(self, node_id: str, why: str, *, until_ms: int = 0) -> bool:
        """Close a node for new leases; False where it was so already."""
        answer = await self._pool.call(
            "cordon", {"node_id": node_id, "why": why, "by": self._by, "until_ms": until_ms}
        )
        self._require_declared(answer, node_id)
        return answer.word == "ok"

    async def uncordon(self, node_id: str) -> bool:
        """Open a node again; False where it was open."""
        answer = await self._pool.call("uncordon", {"node_id": node_id, "by": self._by})
        return answer.word == "ok"

    async def forget(self, node_id: str) -> int:
        """Drop what models were seen to weigh on a node; how many."""
        answer = await self._pool.call("forget", {"node_id": node_id, "by": self._by})
        return int(answer.texts[1]) if answer.word == "ok" else 0

    async def drain(self, node_id: str, why: str, *, timeout_s: float) -> int:
        """Cordon a node and wait until no lease is left on it; how many are left at the end."""
        await self.cordon(node_id, why)
        state = PlacementState(self._pool.client, self._pool.keys)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            leases = await state.leases()
            left = len([one for one in leases.values() if one["node_id"] == node_id])
            left += len([one for one in await state.drains() if one.node_id == node_id])
            if not left or asyncio.get_running_loop().time() >= deadline:
                return left
            await asyncio.sleep(DRAIN_LOOK_S)

    async def reap(self, lease_id: str, why: str, *, force: bool, heartbeat_ms: int) -> int:
        """Take a lease from its holder: revoked now, reaped in so many ms unless given back."""
        answer = await self._pool.call(
            "revoke",
            {
                "by": self._by,
                "why": why,
                "lease_id": lease_id,
                "force": "1" if force else "",
                "heartbeat_ms": heartbeat_ms,
            },
        )
        match answer.word:
            case "unknown":
                raise Refused(
                    f"There is no living lease {lease_id}.",
                    mend="`aibs leaks` lists the leases.",
                )
            case "renewed_recently":
                raise Refused(
                    f"Lease {lease_id} was renewed {int(answer.texts[1]) / 1000:.1f} s ago: its "
                    "holder is alive.",
                    mend="Use --force to take it all the same; the holder's work is cancelled.",
                )
        return max(0, int(answer.texts[1]) - int(answer.texts[0]))

    async def acknowledge(self, lease_ids: Sequence[str]) -> int:
        """Note that leaks are known; how many were new."""
        answer = await self._pool.call("acknowledge", {"by": self._by}, lease_ids)
        return int(answer.texts[1]) if answer.word == "ok" else 0

    def _require_declared(self, answer: Answer, node_id: str) -> None:
        if answer.word == "undeclared":
            raise Refused(
                f"The declared fleet has no node {node_id}.",
                mend="`aibs status` lists the nodes.",
            )


@asynccontextmanager
async def open_hand(settings: Settings) -> AsyncIterator[Hand]:
    """A hand on the settings' pool. Never starts a server, never makes a pool."""
    client = commands(
        await open_client(
            settings.model_pool_url,
            data_dir=Path(settings.data_dir),
            purpose="write",
            timeout_s=ANSWER_TIMEOUT_S,
        )
    )
    keys = Keys(settings.model_cluster_namespace)
    try:
        if await LiveState(client, keys).pool() is None:
            raise PoolMissing(
                f"There is no pool {keys.namespace} on the coordination server.",
                mend="Start `aibs monitor`, or name the pool's namespace in "
                "AIBS_MODEL_CLUSTER_NAMESPACE.",
            )
        actor = f"{socket.gethostname()}:{os.getpid()}:operator:{secrets.token_hex(4)}"
        pool = CoordinationPool(client, keys, actor, recovery_ms=RECOVERY_MS_LEAST)
        yield Hand(pool, whoami())
    finally:
        await client.aclose()
