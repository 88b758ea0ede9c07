"""States that an older release kept: they are begun with, and the log is let go behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aibs.codec import dumps, loads
from aibs.eventstore.snapshots import pack
from aibs.history import newest_state
from aibs.monitor.keeper import Keeper, KeepingRules
from tests.kept_world import MUCH, KeptWorld, StillClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def kept(valkey_url: str) -> Iterator[KeptWorld]:
    world = KeptWorld(valkey_url, 5)
    yield world
    world.close()


def first_version(document: dict[str, Any]) -> dict[str, Any]:
    """As the first release wrote it: no slots that drain, but for how long capacity's do."""
    old: dict[str, Any] = loads(dumps(document))
    if old["version"] == 1:
        return old
    old["version"] = 1
    state = old["state"]
    if old["name"] == "coordination":
        del state["drains"]
        del state["ownership"]["ended_at_ms"]
    elif old["name"] == "leaks":
        expired, unlisted = state.pop("expired"), state.pop("unlisted")
        assert not unlisted
        # The last field says whether it is acknowledged: that was kept apart.
        state["ended"] = [one[:-1] for one in (*state["ended"], *expired)]
    else:
        for node in state["nodes"].values():
            del node["seen_at_ms"]
            for one in node["draining"]:
                del one["ended_at_ms"]
    return old


def take_an_old_one(kept: KeptWorld) -> None:
    reading = kept.read()
    documents = [first_version(fold.document()) for fold in reading.folds]
    assert {one["version"] for one in documents} == {1}
    world = kept.world
    at_ms = reading.engine.position.at_ms
    world.run(kept.writer.take("old", reading.anchor, at_ms, [pack(one) for one in documents]))


def test_a_state_of_an_older_release_is_begun_with_and_trimmed_behind(kept: KeptWorld) -> None:
    kept.walk.take(40)
    take_an_old_one(kept)
    kept.walk.take(5)
    world = kept.world
    state = world.run(newest_state(kept.snapshots))
    assert state is not None
    assert state.drains.unknown_at_ms == state.position.at_ms
    # What it does tell of is the live state.
    live = kept.state()
    assert live.began == state.began
    assert live.leases.live_part() == world.folded.leases.live_part()
    # A minute later the log tells of polls again, and of its time.
    world.clock.set(world.clock.now_ms + 61_000)
    world.observe_all()
    before = kept.in_log()[0].seq
    keeper = Keeper(
        world.pool,
        world.log,
        "owner",
        world.fence,
        KeepingRules(1, MUCH, snapshot_events=10**6),
        StillClock(),
    )
    world.run(keeper.look())
    assert keeper.kept == 0, "it is the old one that is trimmed behind"
    assert kept.in_log()[0].seq > before


def test_a_state_of_an_older_release_that_is_damaged_is_passed_over(kept: KeptWorld) -> None:
    kept.walk.take(10)
    world = kept.world
    reading = kept.read()
    documents = [first_version(fold.document()) for fold in reading.folds]
    for one in documents:
        one["state"] = {}
    at_ms = reading.engine.position.at_ms
    world.run(kept.writer.take("old", reading.anchor, at_ms, [pack(one) for one in documents]))
    assert world.run(newest_state(kept.snapshots)) is None
    assert kept.state().began is None
