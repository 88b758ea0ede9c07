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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aibs.codec import dumps
from aibs.errors import PoolMissing, Refused
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.placement_state import PlacementState
from aibs.eventstore.pool import CoordinationPool
from aibs.eventstore.reading import answered
from aibs.eventstore.snapshots import Snapshots
from aibs.eventstore.state import LiveState
from aibs.history import catch_up_all
from aibs.projections.leaks import Leaks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aibs.settings import Settings

ANSWER_TIMEOUT_S = 5.0
DRAIN_LOOK_S = 0.5
RECORDED_A_CALL = 64
NAMES_MAX = 8
RECOVERY_MS_LEAST = 1


def whoami() -> str:
    """The person at the terminal: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Taken:
    """A lease taken from its holder: reaped in `due_ms`. `already`: it was taken before."""

    due_ms: int
    already: bool


class Hand:
    """What an operator may do. Every method raises Refused with a mend where it cannot be done."""

    def __init__(self, pool: CoordinationPool, by: str) -> None:
        self._pool = pool
        self._by = by
        self._live = LiveState(pool.client, pool.keys)
        self._state = PlacementState(pool.client, pool.keys)

    async def cordon(self, node_id: str, why: str, *, for_ms: int = 0) -> bool:
        """Close a node for new leases, for so long or for good; False where it was so already."""
        # By the server's clock, which is the one that ends it.
        until_ms = await self._live.server_now_ms() + for_ms if for_ms else 0
        answer = await self._pool.call(
            "cordon", {"node_id": node_id, "why": why, "by": self._by, "until_ms": until_ms}
        )
        if answer.word == "undeclared":
            await self._require_declared(node_id)
        return answer.word == "ok"

    async def now_ms(self) -> int:
        """The server's clock."""
        return await self._live.server_now_ms()

    async def uncordon(self, node_id: str) -> bool:
        """Open a node again; False where it was open."""
        answer = await self._pool.call("uncordon", {"node_id": node_id, "by": self._by})
        if answer.word == "unchanged":
            await self._require_declared(node_id)
        return answer.word == "ok"

    async def forget(self, node_id: str) -> int:
        """Drop what models were seen to weigh on a node; how many."""
        answer = await self._pool.call("forget", {"node_id": node_id, "by": self._by})
        if answer.word == "unchanged":
            await self._require_declared(node_id)
            return 0
        return int(answer.texts[1])

    async def drain(self, node_id: str, *, timeout_s: float) -> int:
        """Wait until no lease is left on a cordoned node; how many are left at the end."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            # In this order: a lease that ends between the two is seen draining.
            leases = await self._state.leases()
            left = len([one for one in leases.values() if one["node_id"] == node_id])
            left += len([one for one in await self._state.drains() if one.node_id == node_id])
            if not left or asyncio.get_running_loop().time() >= deadline:
                return left
            await asyncio.sleep(DRAIN_LOOK_S)

    async def reap(self, lease_id: str, why: str, *, force: bool, heartbeat_ms: int) -> Taken:
        """Take a lease from its holder: revoked now, reaped when it is due unless given back."""
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
                raise _no_lease(lease_id)
            case "renewed_recently":
                raise Refused(
                    f"Lease {lease_id} was renewed {int(answer.texts[1]) / 1000:.1f} s ago: its "
                    "holder is alive.",
                    mend="Use --force to take it all the same; the holder's work is cancelled.",
                )
        due_ms = max(0, int(answer.texts[1]) - int(answer.texts[0]))
        return Taken(due_ms, already=answer.word == "already")

    async def lease(self, lease_id: str) -> dict[str, Any]:
        """A living lease's document. Raises Refused where there is none of that id."""
        found = (await self._state.leases()).get(lease_id)
        if found is None:
            raise _no_lease(lease_id)
        return found

    async def acknowledge(self, lease_ids: Sequence[str]) -> int:
        """Note that leaks are known; how many were new. Raises Refused, with nothing noted, where
        one of them never leaked.
        """
        lease_ids = list(dict.fromkeys(lease_ids))
        client, keys = self._pool.client, self._pool.keys
        with answered("the log"):
            # From the newest snapshot on: a leak is known when its events were let go, too.
            reading = await catch_up_all(Log(client, keys), Snapshots(client, keys), (Leaks,))
        (known,) = reading.folds
        assert isinstance(known, Leaks)
        known_ids = known.ended.keys() | (await self._state.leases()).keys()
        known_ids |= known.acknowledged.keys()
        unknown = [lease_id for lease_id in lease_ids if lease_id not in known_ids]
        if unknown:
            if known.unlisted:
                raise Refused(
                    f"No lease {_names(unknown)} is a leak that is listed, so nothing is "
                    "acknowledged.",
                    mend=f"Acknowledge those that `aibs leaks` lists: the {known.unlisted} oldest "
                    "are known with the last of them.",
                )
            raise Refused(
                f"No lease {_names(unknown)} leaked, so nothing is acknowledged.",
                mend="`aibs leaks --since 7d` lists what leaked.",
            )
        answer = await self._pool.call("acknowledge", {"by": self._by}, lease_ids)
        return int(answer.texts[1]) if answer.word == "ok" else 0

    async def record(self, measured: Sequence[dict[str, Any]]) -> int:
        """Note what a warm-up measured, an event each; how many."""
        call_id = secrets.token_hex(8)
        for start in range(0, len(measured), RECORDED_A_CALL):
            part = [dumps({**one, "by": self._by}) for one in measured[start:][:RECORDED_A_CALL]]
            await self._pool.call("record", {"call_id": f"{call_id}-{start}"}, part)
        return len(measured)

    async def _require_declared(self, node_id: str) -> None:
        fleet = await self._live.fleet()
        if fleet is None:
            raise Refused("No fleet is declared in this pool.", mend="Start `aibs monitor`.")
        node_ids = [node["node_id"] for node in fleet.document["nodes"]]
        if node_id not in node_ids:
            raise Refused(
                f"The declared fleet has no node {node_id}; its nodes are {_names(node_ids)}."
            )


def _no_lease(lease_id: str) -> Refused:
    return Refused(f"There is no living lease {lease_id}.", mend="`aibs leaks` lists the leases.")


def _names(found: Sequence[str]) -> str:
    shown = ", ".join(found[:NAMES_MAX])
    return shown if len(found) <= NAMES_MAX else f"{shown} and {len(found) - NAMES_MAX} more"


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
