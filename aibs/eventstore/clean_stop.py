"""Recording that an embedded server is about to be stopped with nothing in flight."""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING

from aibs.errors import AibsError
from aibs.eventstore.keys import POOL_KEY_PATTERN, Keys, namespace_of_pool_key
from aibs.eventstore.pool import CoordinationPool

if TYPE_CHECKING:
    from aibs.eventstore.commands import Commands

SCAN_COUNT = 500


async def namespaces(client: Commands) -> list[str]:
    """The namespaces of every pool on the server."""
    found: set[str] = set()
    cursor = 0
    while True:
        cursor, keys = await client.scan(cursor, match=POOL_KEY_PATTERN, count=SCAN_COUNT)
        found.update(name for key in keys if (name := namespace_of_pool_key(key)) is not None)
        if cursor == 0:
            return sorted(found)


async def record_clean_stop(client: Commands) -> None:
    """Append PoolClosed to each pool that is open and has no living term.

    A pool that refuses, or that another release wrote, takes the safe way at the next start.
    """
    actor = f"{socket.gethostname()}:{os.getpid()}:embedded:{secrets.token_hex(4)}"
    for namespace in await namespaces(client):
        pool = CoordinationPool(client, Keys(namespace), actor, recovery_ms=0)
        try:
            await pool.close_cleanly()
        except AibsError:
            continue
