"""The bounds of keeping and trimming: how much one call does, and what stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aibs.errors import RewoundLog
from aibs.eventstore.anchor import Anchor, LogEnds
from aibs.eventstore.snapshots import SnapshotInfo, pack
from aibs.monitor import keeper as keeping
from aibs.monitor.keeper import Keeper, KeepingRules, base_for_trim
from aibs.placement.values import Queued
from tests.kept_world import LONG_MS, MUCH, KeptWorld, StillClock
from tests.property.placement_world import key_of, request

if TYPE_CHECKING:
    from collections.abc import Iterator

MEGABYTE = 1_048_576


@pytest.fixture
def kept(valkey_url: str) -> Iterator[KeptWorld]:
    world = KeptWorld(valkey_url, 31)
    yield world
    world.close()


def quiet(kept: KeptWorld) -> None:
    """Nothing lives and nobody waits."""
    kept.world.clock.set(kept.world.clock.now_ms + 10**6)
    for _ in range(10):
        kept.walk.reap()
    kept.world.check()


def lengthen(kept: KeptWorld, count: int) -> None:
    """So many events more than a test has the time to make by the scripts."""
    world = kept.world
    stream, pool = world.keys.key("log"), world.keys.key("pool")
    seq = world.folded.seq
    pipeline = world.plain.pipeline(transaction=False)
    for number in range(1, count + 1):
        told: dict[Any, Any] = {
            "type": "SessionEnded", "v": 1, "seq": seq + number, "actor": "past",
            "at_ms": world.clock.now_ms, "fence": "", "token": "",
            "data": '{"holder":"nobody","why":"gone"}',
        }  # fmt: skip
        pipeline.xadd(stream, told)
    last = pipeline.execute()[-1]
    world.plain.hset(pool, mapping={"seq": seq + count, "last_id": last})
    world.clock.set(world.clock.now_ms + 1)


def part(kept: KeptWorld, snapshot_id: str, name: str, body: bytes) -> str:
    answer = kept.world.call(
        "snapshot_part",
        {
            "owner": "owner",
            "fence": kept.world.fence,
            "snapshot_id": snapshot_id,
            "part": name,
            "body": body,
        },
    )
    word: str = answer.word
    return word


def hash_of(kept: KeptWorld, name: str) -> set[str]:
    held: Any = kept.world.plain.hkeys(kept.world.keys.key(name))
    return {one.decode() for one in held}


# --- trimming


def test_one_call_of_the_script_lets_go_a_thousand_events_whatever_it_is_asked_for(
    kept: KeptWorld,
) -> None:
    quiet(kept)
    lengthen(kept, 1_200)
    kept.take()
    done = kept.trim(batch_max=10**6)
    assert (done.removed, done.stopped) == (1_000, "more")


def test_the_owner_goes_on_until_all_is_gone_that_may_go(
    kept: KeptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "TRIM_BATCH", 5)
    quiet(kept)
    lengthen(kept, 23)
    kept.take()
    world = kept.world
    world.clock.set(world.clock.now_ms + 61_000)
    world.observe_all()
    rules = KeepingRules(1, MUCH, snapshot_events=10**9, snapshot_ms=10**12)
    keeper = Keeper(world.pool, world.log, "owner", world.fence, rules, StillClock())
    world.run(keeper.look())
    assert keeper.removed > 15
    assert kept.in_log()[0].id == kept.listed()[0].upto_id


def test_what_is_as_old_as_the_retention_stays_and_what_is_older_goes(kept: KeptWorld) -> None:
    quiet(kept)
    kept.take()
    first = kept.in_log()[0]
    age_ms = kept.world.clock.now_ms - first.at_ms
    done = kept.trim(retention_ms=age_ms)
    assert (done.removed, done.stopped) == (0, "kept")
    assert kept.trim(retention_ms=age_ms - 1).removed >= 1


def test_a_log_that_is_too_large_by_a_byte_loses_an_event(kept: KeptWorld) -> None:
    quiet(kept)
    kept.take()
    size = kept.trim(retention_ms=LONG_MS).log_bytes
    assert kept.trim(retention_ms=LONG_MS, max_bytes=size).removed == 0
    assert kept.trim(retention_ms=LONG_MS, max_bytes=size - 1).removed == 1


def test_a_waiter_whose_name_json_writes_otherwise_holds_the_log_too(kept: KeptWorld) -> None:
    quiet(kept)
    kept.world.observe_all()
    granted = []
    for number in range(20):
        name = f'odd"\\{number}' if number else "first"
        asked = request(number, f"m|{key_of('small:7b')}", wait_ms=120_000, holder=name)
        found = kept.world.run(
            kept.world.backend.acquire(asked, lease_id=f"{number:016x}", call_id="c")
        )
        if isinstance(found, Queued):
            break
        granted.append(found.lease)
    kept.world.check()
    queued = next(event for event in kept.in_log() if event.type == "LeaseQueued")
    assert '"' in queued.data["waiter"]["request_key"]
    # Every lease goes; the waiter alone holds the log.
    for lease in granted:
        kept.world.run(kept.world.backend.release(lease, "completed", call_id="r"))
    kept.world.check()
    assert kept.world.folded.queue.waiters
    assert not kept.world.folded.leases.living
    kept.take()
    while kept.trim().removed:
        pass
    assert kept.in_log()[0].id == queued.id


@pytest.mark.parametrize("lacking", [b"seq", b"at_ms"])
def test_an_entry_without_number_or_time_stops_the_trim(kept: KeptWorld, lacking: bytes) -> None:
    quiet(kept)
    kept.take()
    stream = kept.world.keys.key("log")
    entries: Any = kept.world.plain.xrange(stream)
    kept.world.plain.delete(stream)
    for place, (entry_id, fields) in enumerate(entries):
        told = {k: v for k, v in fields.items() if place != 1 or k != lacking}
        kept.world.plain.xadd(stream, told, id=entry_id)
    done = kept.trim()
    assert (done.removed, done.stopped) == (1, "snapshot")
    assert kept.trim().removed == 0


def test_one_call_takes_along_at_most_four_states_that_are_older(kept: KeptWorld) -> None:
    for _ in range(7):
        kept.walk.take(3)
        kept.take()
    quiet(kept)
    kept.take()
    kept.trim()
    assert len(kept.listed()) == 4
    quiet(kept)
    lengthen(kept, 3)
    kept.take()
    kept.trim()
    assert len(kept.listed()) < 4


def _info(seq: int) -> SnapshotInfo:
    return SnapshotInfo(f"s{seq}", "p", f"{seq}-0", seq, seq, "", "", "", ())


def test_what_is_too_much_is_counted_from_where_the_log_begins() -> None:
    known = [_info(seq) for seq in (1_400, 1_300, 1_200, 1_100)]
    # 450 events from number 1,001 on, twice as large as it may be: 225 are to go.
    ends = LogEnds("1001-0", 1_001, "1450-0", 1_450, 450)
    base = base_for_trim(known, ends, 2_000, 1_000, KeepingRules(10**6, 1_000))
    assert base is not None
    assert base.upto_seq == 1_300


# --- keeping


def test_a_state_of_an_event_whose_number_the_pool_has_not_reached_is_refused(
    kept: KeptWorld,
) -> None:
    kept.walk.take(5)
    anchor, packed = kept.read().anchor, [pack(fold.document()) for fold in kept.read().folds]
    ahead = Anchor(anchor.id, anchor.seq + 1, anchor.hash)
    with pytest.raises(RewoundLog):
        kept.world.run(kept.writer.take("ahead", ahead, 1, packed))
    assert kept.listed() == ()


def test_a_part_above_a_megabyte_is_refused_and_one_of_it_is_not(kept: KeptWorld) -> None:
    assert part(kept, "one", "a|1", b"x" * MEGABYTE) == "ok"
    assert part(kept, "one", "a|2", b"x" * (MEGABYTE + 1)) == "too_large"
    assert hash_of(kept, "snapshot_parts") == {"one|a|1"}


def test_a_state_of_more_than_a_thousand_parts_is_refused(kept: KeptWorld) -> None:
    opened = kept.world.keys.key("snapshot_open")
    kept.world.plain.hset(opened, mapping={f"one|a|{n}": "one" for n in range(1_023)})
    assert part(kept, "one", "b|1", b"x") == "ok"
    assert part(kept, "one", "b|2", b"x") == "too_large"


def test_parts_of_a_state_that_was_never_completed_are_no_longer_counted(kept: KeptWorld) -> None:
    assert part(kept, "left", "a|1", b"x") == "ok"
    assert part(kept, "left", "a|2", b"x") == "ok"
    assert part(kept, "next", "a|1", b"x") == "ok"
    assert hash_of(kept, "snapshot_open") == {"next|a|1"}
    assert hash_of(kept, "snapshot_parts") == {"next|a|1"}


def test_a_part_of_a_state_that_is_kept_already_changes_nothing(kept: KeptWorld) -> None:
    kept.walk.take(5)
    kept.take("one")
    before = kept.world.run(kept.snapshots.read_back(kept.listed()[0]))
    assert part(kept, "one", "coordination|1", b"another") == "duplicate"
    assert kept.world.run(kept.snapshots.read_back(kept.listed()[0])) == before
    assert hash_of(kept, "snapshot_open") == set()
