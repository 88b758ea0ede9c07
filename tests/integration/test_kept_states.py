"""States that are kept: which one is begun with, what is not believed, what the owner checks."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aibs.errors import (
    OutcomeUnknown,
    ReplacedLog,
    RewoundLog,
    TrimmedLog,
    UnusableSnapshot,
)
from aibs.eventstore.anchor import Anchor, check_anchor
from aibs.eventstore.snapshots import digest_of, pack
from aibs.history import follow, newest_state, oldest_state
from aibs.monitor.keeper import Keeper, KeepingRules
from aibs.projections.catalogue import FOLDS
from aibs.projections.leaks import Leaks
from tests.kept_world import LONG_MS, MUCH, KeptWorld, StillClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def kept(valkey_url: str) -> Iterator[KeptWorld]:
    world = KeptWorld(valkey_url, 23)
    yield world
    world.close()


def keeper_of(kept: KeptWorld, **rules: int) -> Keeper:
    world = kept.world
    told = KeepingRules(**{"retention_ms": LONG_MS, "max_bytes": MUCH, **rules})
    return Keeper(world.pool, world.log, "owner", world.fence, told, StillClock())


def entries_of(kept: KeptWorld) -> Any:
    return kept.world.plain.xrange(kept.world.keys.key("log"))


# --- the anchor


def test_a_log_that_begins_with_its_second_event_is_trimmed(kept: KeptWorld) -> None:
    kept.walk.take(3)
    world, (first, *_) = kept.world, entries_of(kept)
    world.plain.xdel(world.keys.key("log"), first[0])
    with pytest.raises(TrimmedLog, match="begins with event 2"):
        world.run(check_anchor(world.client, world.keys, Anchor()))


def test_an_empty_log_that_never_had_so_many_events_is_another(kept: KeptWorld) -> None:
    kept.walk.take(5)
    world, anchor = kept.world, kept.read().anchor
    stream = world.keys.key("log")
    fields = entries_of(kept)[-1][1]
    world.plain.delete(stream)
    # One event, under a younger ID, that is gone as well: its counter alone tells.
    world.plain.xadd(stream, fields)
    world.plain.xtrim(stream, maxlen=0, approximate=False)
    with pytest.raises(ReplacedLog, match="another log"):
        world.run(check_anchor(world.client, world.keys, anchor))


# --- which state is begun with


def test_an_id_of_more_digits_is_younger_though_its_text_sorts_before(
    kept: KeptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.walk.take(5)
    kept.take()
    (info,) = kept.listed()
    # The same state under an ID whose text is greater, and whose number is smaller.
    early = replace(info, upto_id="9-0")

    async def listed() -> tuple[Any, ...]:
        return (early,)

    monkeypatch.setattr(kept.snapshots, "list", listed)
    seen: list[str] = []

    async def looked_at(_client: Any, _keys: Any, anchor: Anchor) -> None:
        seen.append(anchor.id)
        raise RewoundLog("not this one")

    monkeypatch.setattr(sys.modules["aibs.history.catch_up"], "check_anchor", looked_at)
    assert kept.world.run(newest_state(kept.snapshots, "10-0")) is None
    assert seen == ["9-0"]
    assert kept.world.run(newest_state(kept.snapshots, "8-9")) is None
    assert seen == ["9-0"]


def test_a_state_of_another_event_than_it_is_kept_for_is_passed_over(kept: KeptWorld) -> None:
    kept.walk.take(10)
    earlier = kept.read()
    documents = [fold.document() for fold in earlier.folds]
    kept.walk.take(10)
    reading, world = kept.read(), kept.world
    at_ms = reading.engine.position.at_ms
    world.run(kept.writer.take("wrong", reading.anchor, at_ms, [pack(one) for one in documents]))
    found = kept.read()
    assert found.began is None
    assert "tells of another event" in found.passed_over[0]


def test_a_state_that_its_fold_had_stopped_at_is_passed_over(kept: KeptWorld) -> None:
    kept.walk.take(10)
    reading, world = kept.read(), kept.world
    documents = [fold.document() for fold in reading.folds]
    stopped = {"at": reading.anchor.id, "why": "a newer release wrote it"}
    told = [pack({**one, "stopped": stopped}) for one in documents]
    at_ms = reading.engine.position.at_ms
    world.run(kept.writer.take("stopped", reading.anchor, at_ms, told))
    found = kept.read()
    assert found.began is None
    assert found.folds[0].stopped_at is None


def test_a_trimmed_log_is_told_from_its_oldest_state_on(kept: KeptWorld) -> None:
    kept.walk.take(5)
    assert kept.world.run(oldest_state(kept.snapshots)) is None, "it reaches back to its beginning"
    kept.world.clock.set(kept.world.clock.now_ms + 10**6)
    for _ in range(5):
        kept.walk.reap()
    kept.world.check()
    kept.take("first")
    (first,) = kept.listed()
    kept.walk.take(10)
    kept.take("second")
    assert kept.trim(first).removed
    state = kept.world.run(oldest_state(kept.snapshots))
    assert state is not None
    assert state.began == first.upto_id
    newest = kept.world.run(newest_state(kept.snapshots))
    assert newest is not None
    assert newest.began != first.upto_id


# --- following


def heard_of(kept: KeptWorld, engine: Any, count: int) -> list[int]:
    """The numbers of so many events that come."""

    async def listen() -> list[int]:
        found: list[int] = []
        followed = follow(kept.world.log, kept.snapshots, engine, block_ms=100)
        async for event in followed:
            found.append(event.seq)
            if len(found) == count:
                break
        await followed.aclose()
        return found

    numbers: list[int] = kept.world.run(asyncio.wait_for(listen(), 20))
    return numbers


def test_who_follows_a_log_that_was_replaced_meanwhile_hears_nothing_of_it(
    kept: KeptWorld,
) -> None:
    kept.walk.take(5)
    reading, world = kept.read(), kept.world
    stream, entries = world.keys.key("log"), entries_of(kept)
    world.plain.delete(stream)
    for entry_id, fields in entries:
        world.plain.xadd(stream, {**fields, b"actor": b"another"}, id=entry_id)
    world.call("cordon", {"node_id": "box-c", "why": "w", "by": "op", "until_ms": 0})
    with pytest.raises(ReplacedLog):
        heard_of(kept, reading.engine, 1)


def test_a_hole_that_shows_while_following_asks_whether_it_is_the_same_log(
    kept: KeptWorld,
) -> None:
    kept.walk.take(5)
    reading, world = kept.read(), kept.world
    stream, last = world.keys.key("log"), entries_of(kept)[-1]
    ms, number = last[0].decode().split("-")

    async def replaced() -> None:
        # After the first look, before the first event: under the same IDs stands another log.
        world.plain.delete(stream)
        world.plain.xadd(stream, {**last[1], b"actor": b"another"}, id=last[0])
        seq = str(reading.anchor.seq + 5)
        world.plain.xadd(stream, {**last[1], b"seq": seq}, id=f"{ms}-{int(number) + 1}")

    real = type(world.log).follow

    def follow_late(log: Any, last_id: str, *, block_ms: int) -> Any:
        async def events() -> Any:
            await replaced()
            async for event in real(log, last_id, block_ms=block_ms):
                yield event

        return events()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world.log), "follow", follow_late)
        with pytest.raises(ReplacedLog):
            heard_of(kept, reading.engine, 1)


# --- what the owner checks


def test_a_digest_tells_states_of_the_same_folds_apart() -> None:
    one, other = [("leaks", "a"), ("queue", "b")], [("leaks", "a"), ("queue", "c")]
    assert digest_of(one) != digest_of(other)
    assert digest_of(one) == digest_of(reversed(one))


def test_what_reads_back_as_another_state_is_not_counted_as_kept(
    kept: KeptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.walk.take(10)

    class Forgetful(Leaks):
        """Loses what it is made from."""

        def restore(self, state: dict[str, Any]) -> None:
            super().restore({**state, "acknowledged": {"made up": 1}})

    monkeypatch.setitem(FOLDS, "leaks", Forgetful)
    keeper = keeper_of(kept, snapshot_events=1)
    with pytest.raises(UnusableSnapshot, match="reads back as another state"):
        kept.world.run(keeper.look())
    assert keeper.kept == 0
    monkeypatch.undo()
    # Nor is anything let go behind it.
    behind = keeper_of(kept, snapshot_events=10**9, retention_ms=-LONG_MS)
    (info,) = kept.listed()
    told = replace(info, digest="0" * 64)
    with pytest.raises(UnusableSnapshot, match="reads back as another state"):
        kept.world.run(behind._verify(told))


def test_a_state_that_cannot_be_read_back_is_not_counted_as_kept(
    kept: KeptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.walk.take(10)
    keeper, world = keeper_of(kept, snapshot_events=1), kept.world
    real = keeper._writer.take

    async def take_and_lose(*arguments: Any) -> str:
        event_id = await real(*arguments)
        parts = world.keys.key("snapshot_parts")
        for name in world.plain.hkeys(parts):
            if b"|waits|" in name or b"|queue|" in name:
                world.plain.hdel(parts, name)
        return event_id

    monkeypatch.setattr(keeper._writer, "take", take_and_lose)
    with pytest.raises(UnusableSnapshot, match="lost its part"):
        world.run(keeper.look())
    assert keeper.kept == 0


def test_an_answer_that_was_lost_is_asked_for_again_and_one_state_is_kept(
    kept: KeptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.walk.take(10)
    keeper = keeper_of(kept, snapshot_events=1)
    real, asked = keeper._writer.take, [0]

    async def take_unheard(*arguments: Any) -> str:
        event_id = await real(*arguments)
        asked[0] += 1
        if asked[0] == 1:
            raise OutcomeUnknown("nothing was heard")
        return event_id

    monkeypatch.setattr(keeper._writer, "take", take_unheard)
    kept.world.run(keeper.look())
    assert (keeper.kept, asked[0]) == (1, 2)
    taken = [event for event in kept.in_log() if event.type == "SnapshotTaken"]
    assert len(taken) == len(kept.listed()) == 1


def test_an_owner_whose_log_was_set_back_reads_it_anew_and_keeps_on(kept: KeptWorld) -> None:
    kept.walk.take(10)
    keeper, world = keeper_of(kept, snapshot_events=10**9), kept.world
    world.run(keeper.look())
    assert keeper._reading is not None
    before = keeper._reading
    world.plain.xdel(world.keys.key("log"), before.anchor.id)

    class Thrice(StillClock):
        """Ends the keeper after so many looks."""

        looks = 0

        async def sleep(self, seconds: float) -> None:
            self.looks += 1
            if self.looks == 3:
                raise asyncio.CancelledError
            await super().sleep(seconds)

    keeper._clock = Thrice()
    with pytest.raises(asyncio.CancelledError):
        world.run(keeper.run())
    assert keeper._reading is not None
    assert keeper._reading is not before
    assert keeper._reading.anchor.seq == before.anchor.seq - 1


def test_every_fold_is_kept_under_its_own_name() -> None:
    assert all(name == fold.name for name, fold in FOLDS.items())
