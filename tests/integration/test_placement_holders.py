"""Holders, from their opening to their death, on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.placement_scenarios import SCENARIOS, MemoryBench, ValkeyBench, play

if TYPE_CHECKING:
    from tests.placement_scenarios import Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_the_server_keeps_the_contract_and_answers_as_memory_does(
    scenario: Scenario, valkey_url: str
) -> None:
    found = play(scenario, ValkeyBench(valkey_url))
    assert found == play(scenario, MemoryBench())
