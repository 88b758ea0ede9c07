"""Decisions of the model that no scenario of the back ends comes to: others' bytes on the nodes."""

from __future__ import annotations

import pytest

from aibs.placement.model.decide import PlacementModel
from aibs.placement.model.observe import Poll, observe
from aibs.placement.values import Denied, Granted, NodeReason, Queued
from tests.property.placement_world import GB, LIMITS, fleet, key_of, request

SMALL, MEDIUM = (f"m|{key_of(name)}" for name in ("small:7b", "medium:30b"))
FOREIGN = {"box-c": 55 * GB, "box-e": 70 * GB}
"""Beside these a medium model fits once the small one has ended, and not before."""


@pytest.mark.parametrize(("avoided", "kept"), [("box-c", "box-e"), ("box-e", "box-c")])
def test_a_waiter_reserves_no_node_that_it_avoids(avoided: str, kept: str) -> None:
    model = PlacementModel(LIMITS)
    model.declare(fleet())
    for node_id, foreign in FOREIGN.items():
        observe(model, Poll(node_id, 1_000, good=True, foreign=foreign), 1_000)

    def ask(number: int, lane: str, avoid: str = "", wait_ms: int = 0) -> Granted | Queued | Denied:
        asked = request(number, lane, wait_ms=wait_ms, avoid=(avoid,) if avoid else ())
        return model.acquire(asked, lease_id=f"l{number}", now=1_001)

    for number, other in enumerate((avoided, kept)):
        assert isinstance(ask(number, SMALL, other), Granted)
    assert isinstance(ask(2, MEDIUM, avoided, 60_000), Queued)
    younger = ask(3, SMALL)
    assert isinstance(younger, Granted)
    assert younger.lease.node_id == avoided, "nobody waits for that one"
    refused = ask(4, SMALL, avoided)
    assert isinstance(refused, Denied)
    assert NodeReason(kept, "reserved") in refused.nodes
