"""A process that holds leases and works under them until it is told to stop, or loses them.

Prints one JSON line for each: `held` and `lost`. Settings from the environment; the argument: how
many leases.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import httpx

from aibs import settings
from aibs.errors import LeaseLost
from aibs.placement import Placer, open_placer
from tests.placement_scene import MODEL, generate_long

WAIT_S = 20.0


def say(**fields: object) -> None:
    """One line."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def hold(placer: Placer, stop: asyncio.Event) -> None:
    """One lease, with work under it. A node that dies ends the work, not the lease."""
    try:
        async with placer.lease(model=MODEL, timeout=WAIT_S) as lease:
            say(held=lease.lease_id, node=lease.node_id, holder=placer.holder)
            try:
                await generate_long(lease.node_base_url)
            except httpx.HTTPError as error:
                say(broken=repr(error))
            await stop.wait()
    except LeaseLost as lost:
        say(lost=lost.lease_id, why=lost.why)


async def main() -> None:
    """Until SIGTERM, or until nothing is left."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_placer(settings.load()) as placer, asyncio.TaskGroup() as group:
        for _ in range(int(sys.argv[1])):
            group.create_task(hold(placer, stop))


if __name__ == "__main__":
    asyncio.run(main())
