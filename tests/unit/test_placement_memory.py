"""The memory back end keeps the contract of back ends, and admits within its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.placement_scenarios import SCENARIOS, MemoryBench, play

if TYPE_CHECKING:
    from tests.placement_scenarios import Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_memory_keeps_the_contract(scenario: Scenario) -> None:
    play(scenario, MemoryBench())
