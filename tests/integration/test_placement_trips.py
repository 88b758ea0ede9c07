"""Nodes that a placer closes, on a real server: what the log tells of it, and who tries them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aibs.errors import PlacementDenied
from tests.integration.in_loop import in_loop
from tests.placement_desk import MODEL, desk

if TYPE_CHECKING:
    from pathlib import Path


@in_loop
async def test_a_trip_names_its_holder_and_closes_the_node_for_others(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with desk(valkey_url, namespace, tmp_path) as table:
        one, other = await table.placer(), await table.placer()
        async with one, other:
            assert await one.trip("box-c", "3 requests in a row failed there")
            assert not await other.trip("box-c", "another reason")
            with pytest.raises(PlacementDenied) as denied:
                await other.lease(model=MODEL, timeout=0).__aenter__()
        assert denied.value.reason == "node_tripped"
        (event,) = await table.events("NodeTripped")
        assert event.data["by"] == one.holder
        assert event.data["why"] == "3 requests in a row failed there"
