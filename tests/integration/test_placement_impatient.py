"""A thousand requests that cannot wait, and a coordination server that does not serve them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from aibs.errors import PlacementDenied
from aibs.placement.acquisition import IMPATIENT_ANSWER_S
from aibs.placement.outage import PROBE_S
from tests.integration.in_loop import in_loop
from tests.placement_scene import MODEL, scene, until_true

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aibs.placement import Placer
    from tests.placement_scene import Scene
    from tests.valkey_server import ValkeyServer

CLIENT_S = 5.0
"""After so long the client of the server would give up by itself, with these settings."""

SLOW_HEART = {
    "AIBS_MODEL_CLUSTER_HEARTBEAT_INTERVAL_SECONDS": "20",
    "AIBS_MODEL_CLUSTER_ACTIVE_LEASE_TTL_SECONDS": "90",
}


def _mode(mode: str) -> Callable[[Scene], object]:
    def turn(drill: Scene) -> None:
        drill.proxy.mode = cast("Any", mode)

    return turn


FAULTS: dict[str, tuple[Callable[[Scene], object], Callable[[Scene], object]]] = {
    "hangs": (lambda drill: drill.server.pause(), lambda drill: drill.server.resume()),
    "refuses connections": (_mode("cut"), _mode("pass")),
    "answers to nobody": (_mode("drop_replies"), _mode("pass")),
}
"""How each begins, and how it is healed."""


async def _refused(placer: Placer) -> float:
    """One request: how long its refusal took."""
    began = time.monotonic()
    with pytest.raises(PlacementDenied) as denied:
        async with placer.lease(model=MODEL, timeout=30, patient=False):
            raise AssertionError("granted by a server that does not serve")
    assert denied.value.reason == "coordination_unavailable"
    return time.monotonic() - began


@pytest.mark.parametrize("fault", FAULTS)
def test_requests_that_cannot_wait_are_refused_at_once_and_served_when_the_server_is_back(
    fault: str, own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    begin, heal = FAULTS[fault]

    @in_loop
    async def run() -> None:
        async with scene(own_valkey, tmp_path) as drill:
            placer = await drill.placer(**SLOW_HEART)
            async with placer.lease(model=MODEL, timeout=10, patient=False):
                pass
            begin(drill)
            first = await asyncio.gather(*(_refused(placer) for _ in range(200)))
            assert max(first) < CLIENT_S - 1, "each waited for the client's own time"
            then = await asyncio.gather(*(_refused(placer) for _ in range(1_000)))
            assert max(then) < IMPATIENT_ANSWER_S, "each waited to find out by itself"
            assert PROBE_S < IMPATIENT_ANSWER_S
            heal(drill)

            async def served() -> bool:
                try:
                    async with placer.lease(model=MODEL, timeout=10, patient=False):
                        return True
                except PlacementDenied as denied:
                    reasons.add(denied.reason)
                    return False

            reasons: set[str] = set()

            await until_true(served, "a request served once the server was back")
            assert reasons <= {"coordination_unavailable"}
            await drill.free()
            await drill.audited()

    run()


@in_loop
async def test_a_waiter_of_the_queue_survives_a_short_absence_of_the_server(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with scene(own_valkey, tmp_path) as drill:
        placer = await drill.placer(**SLOW_HEART)
        queued, release = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with placer.lease(model=MODEL, timeout=10):
                await release.wait()

        async def wait() -> str:
            async with placer.lease(
                model=MODEL, timeout=30, patient=False, on_queue=lambda *_: queued.set()
            ) as lease:
                return lease.lease_id

        held = [asyncio.create_task(hold()) for _ in drill.nodes.urls]

        async def full() -> bool:
            return len(await drill.state.leases()) == len(held)

        await until_true(full, "every slot taken")
        waiting = asyncio.create_task(wait())
        await queued.wait()
        drill.proxy.mode = "cut"
        release.set()
        await asyncio.sleep(1)
        assert not waiting.done()
        drill.proxy.mode = "pass"
        assert await waiting
        await asyncio.gather(*held)
        await drill.free()
        await drill.audited()
