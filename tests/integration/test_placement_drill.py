"""Holders killed, paused and cut off at random, and the nodes' own counts of what that led to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.drills.placement_drill import drill, judge
from tests.integration.in_loop import in_loop

if TYPE_CHECKING:
    from pathlib import Path

    from tests.valkey_server import ValkeyServer


def _run(server: ValkeyServer, directory: Path, seconds: float, seed: int) -> None:
    @in_loop
    async def run() -> None:
        result = await drill(server, directory, processes=8, tasks=16, seconds=seconds, seed=seed)
        judge(result)
        assert any(word.startswith("served 200") for word in result.outcomes), result.outcomes

    run()


def test_ten_seconds_of_trouble_overcommit_no_node_and_end_every_lease(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    _run(own_valkey, tmp_path, 10, seed=1)


@pytest.mark.soak
def test_a_minute_of_trouble_overcommits_no_node_and_ends_every_lease(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    _run(own_valkey, tmp_path, 60, seed=2)
