"""Loads that several leases wait for, on a real server: what the pool knows of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aibs.ollama.sim import SimModel, SimServer, SimSpec
from tests.integration.in_loop import in_loop
from tests.placement_desk import GB, MODEL, desk
from tests.placement_scene import until_true

if TYPE_CHECKING:
    from pathlib import Path

    from aibs.placement import HeldLease


@in_loop
async def test_the_pool_knows_of_a_load_until_it_ends_though_the_lease_that_began_it_ended_before(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    """What it does not know of, it would take for a node that has stopped answering."""
    slow = SimSpec("box-c", 90 * GB, (SimModel(MODEL, 7 * GB, load_seconds=1.5),))
    async with (
        SimServer([slow]) as node,
        desk(valkey_url, namespace, tmp_path, node_url=node.url()) as table,
    ):
        placer = await table.placer()
        leases: list[HeldLease] = []

        async def work() -> None:
            async with placer.lease(model=MODEL, timeout=5) as lease:
                leases.append(lease)
                await lease.prepare()

        async def loading_under(number: int) -> bool:
            if number >= len(leases):
                return False
            marks = (await table.state.read_all()).marks
            return [mark for mark in marks if mark.startswith("loading|")] == [
                f"loading|{leases[number].lease_id}"
            ]

        async with placer:
            first, second = asyncio.create_task(work()), asyncio.create_task(work())
            await until_true(lambda: loading_under(0), "the load told under its first lease")
            first.cancel()
            await asyncio.wait({first})
            await until_true(lambda: loading_under(1), "the load told under the other lease")
            await second
        told = [
            (event.type, event.data["lease_id"])
            for event in await table.events("ModelLoading", "ModelLoaded")
        ]
        assert told == [
            ("ModelLoading", leases[0].lease_id),
            ("ModelLoading", leases[1].lease_id),
            ("ModelLoaded", leases[1].lease_id),
        ]
        assert node.node().stats.loads[MODEL] == 1
        await table.nothing_left()
