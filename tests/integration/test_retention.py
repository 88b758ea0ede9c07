"""What goes of the log, what never goes, and how a reader learns that its place is gone."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from aibs.clock import SystemClock
from aibs.codec import dumps
from aibs.errors import (
    CoordinationUnavailable,
    OutcomeUnknown,
    ReplacedLog,
    RewoundLog,
    TrimmedLog,
    TruncatedLog,
    UnusableSnapshot,
)
from aibs.eventstore.anchor import Anchor, LogEnds, check_anchor
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool
from aibs.eventstore.replies import Elected
from aibs.eventstore.snapshots import SnapshotInfo, Snapshots, SnapshotWriter, pack
from aibs.history import catch_up, catch_up_all, follow
from aibs.monitor.elector import TermLost
from aibs.monitor.keeper import Keeper, KeepingRules, base_for_trim
from aibs.placement.values import Granted, Queued
from aibs.projections import digest
from tests.integration.in_loop import in_loop, until
from tests.kept_world import LONG_MS, MUCH, KeptWorld, StillClock, folded
from tests.property.placement_world import key_of, request
from tests.tcp_proxy import TcpProxy
from tests.valkey_server import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def kept(valkey_url: str) -> Iterator[KeptWorld]:
    world = KeptWorld(valkey_url, 5)
    yield world
    world.close()


def _quiet(kept: KeptWorld) -> None:
    """Nothing lives and nobody waits."""
    world = kept.world
    world.clock.set(world.clock.now_ms + 10**6)
    for _ in range(10):
        kept.walk.reap()
    world.check()
    assert not world.folded.leases.living
    assert not world.folded.queue.waiters


def _first(kept: KeptWorld) -> Any:
    return kept.in_log()[0]


def _grant(kept: KeptWorld, number: int) -> Granted:
    world = kept.world
    asked = request(number, f"m|{key_of('small:7b')}")
    found = world.run(world.backend.acquire(asked, lease_id=f"{number:016x}", call_id="c"))
    assert isinstance(found, Granted)
    world.check()
    return found


def test_the_log_goes_up_to_the_snapshots_last_event_which_stays(kept: KeptWorld) -> None:
    kept.walk.take(40)
    _quiet(kept)
    events = kept.in_log()
    kept.take()
    kept.walk.take(3)
    _quiet(kept)
    (info,) = kept.listed()
    done = kept.trim()
    assert (done.removed, done.stopped) == (info.upto_seq - 1, "snapshot")
    left = kept.in_log()
    assert left[0].id == info.upto_id
    assert [event.seq for event in left] == list(range(info.upto_seq, left[-1].seq + 1))
    told = left[-1]
    assert told.type == "LogTrimmed"
    assert told.data["first_id"] == info.upto_id
    assert told.data["upto_id"] == events[info.upto_seq - 2].id
    assert told.data["removed"] == done.removed
    again = kept.trim()
    assert (again.removed, again.stopped) == (0, "snapshot"), "nothing is told of nothing"
    assert kept.in_log() == left
    kept.world.check()


def test_the_state_after_trimming_is_the_live_state(kept: KeptWorld) -> None:
    for _ in range(4):
        kept.walk.take(15)
        kept.take()
        kept.walk.take(5)
        kept.trim()
        kept.world.check()
        state = kept.state()
        assert dumps(state.state()) == dumps(kept.world.folded.state())
        assert state.seq == kept.world.folded.seq
    whole = folded(kept.world.events)
    assert digest(kept.state()) == digest(whole)


def test_the_grant_of_a_living_lease_stays_and_all_behind_it(kept: KeptWorld) -> None:
    _quiet(kept)
    kept.world.observe_all()
    granted = _grant(kept, 1)
    acquired = kept.world.folded.last_id
    kept.walk.see_empty()
    kept.world.run(kept.world.backend.heartbeat("holder-a", [granted.lease]))
    kept.take()
    done = kept.trim()
    assert done.stopped == "lease"
    assert _first(kept).id == acquired
    assert kept.trim().removed == 0
    kept.world.run(kept.world.backend.release(granted.lease, "completed", call_id="r"))
    done = kept.trim()
    assert done.removed > 0
    assert _first(kept).id == kept.listed()[0].upto_id


def test_the_queueing_of_a_waiter_stays_and_all_behind_it(kept: KeptWorld) -> None:
    _quiet(kept)
    kept.world.observe_all()
    leases = []
    for number in range(20):
        asked = request(number, f"m|{key_of('small:7b')}", wait_ms=120_000)
        found = kept.world.run(
            kept.world.backend.acquire(asked, lease_id=f"{number:016x}", call_id="c")
        )
        if isinstance(found, Queued):
            break
        assert isinstance(found, Granted)
        leases.append(found.lease)
    kept.world.check()
    (waiter,) = kept.world.folded.queue.waiters
    queued = next(event for event in kept.in_log() if event.type == "LeaseQueued")
    for lease in leases[:-1]:
        kept.world.run(kept.world.backend.release(lease, "completed", call_id="r"))
    kept.world.call("cordon", {"node_id": "box-c", "why": "w", "by": "op", "until_ms": 0})
    kept.take()
    kept.trim()
    kept.world.check()
    assert waiter in kept.world.folded.queue.waiters
    assert any(event.id == queued.id for event in kept.in_log())
    kept.world.run(kept.world.backend.release(leases[-1], "completed", call_id="r"))
    kept.trim()
    assert _first(kept).id == queued.id
    assert kept.trim().stopped == "waiter"
    kept.world.run(kept.world.backend.cancel(asked))
    kept.trim()
    assert _first(kept).id == kept.listed()[0].upto_id
    kept.world.check()


def test_what_is_younger_than_the_retention_stays_while_the_log_is_small(kept: KeptWorld) -> None:
    _quiet(kept)
    old = len(kept.in_log())
    kept.world.clock.set(kept.world.clock.now_ms + 100_000)
    kept.walk.see_empty()
    kept.walk.mark_a_node()
    kept.take()
    done = kept.trim(retention_ms=LONG_MS)
    assert (done.removed, done.stopped) == (0, "kept")
    done = kept.trim(retention_ms=90_000)
    assert (done.removed, done.stopped) == (old, "kept")
    assert kept.in_log()[-1].data["why"] == "age"


def test_what_is_young_goes_while_the_log_is_too_large(kept: KeptWorld) -> None:
    _quiet(kept)
    for _ in range(30):
        kept.walk.see_empty()
        kept.walk.take_over()
    kept.take()
    before = len(kept.in_log())
    size = kept.trim(retention_ms=LONG_MS).log_bytes
    assert size > 0
    assert len(kept.in_log()) == before, "it is young and not too large"
    done = kept.trim(retention_ms=LONG_MS, max_bytes=size * 3 // 4)
    assert before // 8 < done.removed < before // 2, "about a quarter"
    assert kept.in_log()[-1].data["why"] == "bytes"


def test_one_call_lets_go_no_more_than_its_batch(kept: KeptWorld) -> None:
    kept.walk.take(30)
    _quiet(kept)
    kept.take()
    removed = []
    while (done := kept.trim(batch_max=7)).removed:
        removed.append(done.removed)
    assert set(removed[:-1]) == {7}
    assert _first(kept).id == kept.listed()[0].upto_id
    trims = [event for event in kept.in_log() if event.type == "LogTrimmed"]
    assert [event.data["removed"] for event in trims] == removed


def test_nothing_goes_behind_a_snapshot_that_was_not_read_back_or_is_not_there(
    kept: KeptWorld,
) -> None:
    kept.walk.take(20)
    _quiet(kept)
    kept.take()
    (info,) = kept.listed()
    events = kept.in_log()
    with pytest.raises(UnusableSnapshot, match="unverified"):
        kept.trim(digest="0" * 64)
    kept.world.plain.hdel(kept.world.keys.key("snapshots"), info.snapshot_id)
    with pytest.raises(UnusableSnapshot, match="unknown"):
        kept.trim(info, digest=info.digest)
    assert kept.in_log() == events


def test_snapshots_are_kept_as_long_as_the_log_goes_on_from_them(kept: KeptWorld) -> None:
    for _ in range(4):
        kept.walk.take(10)
        kept.take()
    _quiet(kept)
    newest, third, *_ = kept.listed()
    kept.trim(third)
    kept.trim(third)
    assert [info.upto_id for info in kept.listed()] == [newest.upto_id, third.upto_id]
    names: Any = kept.world.plain.hkeys(kept.world.keys.key("snapshot_parts"))
    ids = {name.decode().partition("|")[0] for name in names}
    assert ids == {newest.snapshot_id, third.snapshot_id}
    assert kept.state(third.upto_id).began == third.upto_id


def test_a_reader_behind_the_trim_says_so_and_begins_with_the_snapshot(kept: KeptWorld) -> None:
    kept.walk.take(20)
    behind = kept.read()
    early = kept.world.folded.last_id
    kept.walk.take(20)
    _quiet(kept)
    kept.take()
    kept.trim()
    client, keys = kept.world.client, kept.world.keys
    with pytest.raises(TrimmedLog, match="those between were trimmed"):
        kept.world.run(check_anchor(client, keys, behind.anchor))
    with pytest.raises(TrimmedLog, match="those before it were trimmed"):
        kept.world.run(check_anchor(client, keys, Anchor()))
    with pytest.raises(TrimmedLog, match="No snapshot that can be used"):
        kept.state(early)
    state = kept.state()
    assert state.began == kept.listed()[0].upto_id
    kept.world.check()
    assert dumps(state.state()) == dumps(kept.world.folded.state())


def test_a_reader_whose_next_event_is_the_logs_first_may_go_on(kept: KeptWorld) -> None:
    kept.walk.take(10)
    _quiet(kept)
    level = kept.read()
    kept.world.call("cordon", {"node_id": "box-c", "why": "w", "by": "op", "until_ms": 0})
    kept.take()
    kept.trim()
    assert _first(kept).seq == level.anchor.seq + 1
    kept.world.run(check_anchor(kept.world.client, kept.world.keys, level.anchor))


def test_without_a_usable_snapshot_a_trimmed_log_has_no_state(kept: KeptWorld) -> None:
    kept.walk.take(20)
    _quiet(kept)
    kept.take()
    kept.trim()
    kept.world.plain.hset(
        kept.world.keys.key("snapshot_parts"),
        f"{kept.listed()[0].snapshot_id}|coordination|1",
        b"garbage",
    )
    with pytest.raises(TrimmedLog, match=r"No snapshot that can be used.*damaged"):
        kept.state()


def test_an_entry_that_is_no_event_stops_the_trim_and_breaks_nothing(kept: KeptWorld) -> None:
    kept.walk.take(10)
    _quiet(kept)
    kept.take()
    stream = kept.world.keys.key("log")
    first = _first(kept).id
    assert kept.world.plain.xdel(stream, first) == 1
    done = kept.trim()
    assert done.stopped == "snapshot"


# --- the keeper


def _keeper(kept: KeptWorld, rules: KeepingRules) -> Keeper:
    world = kept.world
    return Keeper(world.pool, world.log, "owner", world.fence, rules, StillClock())


@pytest.mark.parametrize("seed", range(2))
def test_a_kept_log_stays_short_and_every_state_since_its_beginning_can_be_had(
    valkey_url: str, seed: int
) -> None:
    kept, chance = KeptWorld(valkey_url, 40 + seed), random.Random(seed)
    rules = KeepingRules(20_000, MUCH, snapshot_events=25, snapshot_ms=10**9)
    try:
        keeper, fence = _keeper(kept, rules), kept.world.fence
        live: dict[str, bytes] = {}
        for _ in range(300):
            kept.walk.take(1)
            if kept.world.fence != fence:
                keeper, fence = _keeper(kept, rules), kept.world.fence
            live[kept.world.folded.last_id] = dumps(kept.world.folded.document())
            if chance.random() < 0.3:
                kept.world.run(keeper.look())
                kept.world.check()
                live[kept.world.folded.last_id] = dumps(kept.world.folded.document())
        events = kept.in_log()
        assert len(kept.listed()) >= 1
        assert events[0].seq > 1, "something was let go"
        oldest = kept.listed()[-1]
        had = 0
        for last_id, document in live.items():
            if int(last_id.split("-")[0]) < int(oldest.upto_id.split("-")[0]):
                continue
            with contextlib.suppress(TrimmedLog):
                assert dumps(kept.state(last_id).document()) == document
                had += 1
        assert had > 20
    finally:
        kept.close()


def test_the_keeper_of_a_deposed_owner_ends(kept: KeptWorld) -> None:
    kept.walk.take(10)
    keeper = _keeper(kept, KeepingRules(1, MUCH, snapshot_events=1))
    kept.walk.take_over()
    with pytest.raises(TermLost):
        kept.world.run(keeper.run())
    assert kept.listed() == ()


def test_a_fold_that_stopped_is_never_kept_as_a_state(kept: KeptWorld) -> None:
    kept.walk.take(10)
    world = kept.world
    fields: dict[Any, Any] = {
        "type": "LeaseAcquired",
        "v": 9,
        "seq": world.folded.seq + 1,
        "at_ms": world.clock.now_ms,
        "actor": "a newer release",
        "fence": "",
        "token": "",
        "data": "{}",
    }
    world.plain.xadd(world.keys.key("log"), fields)
    world.plain.hincrby(world.keys.key("pool"), "seq", 1)
    keeper = _keeper(kept, KeepingRules(1, MUCH, snapshot_events=1))
    world.run(keeper.look())
    assert kept.listed() == ()
    assert keeper.kept == 0


def test_a_snapshot_is_due_after_its_events_or_its_time_and_not_before(kept: KeptWorld) -> None:
    _quiet(kept)
    world = kept.world
    start = world.folded.seq
    keeper = _keeper(
        kept, KeepingRules(LONG_MS, MUCH, snapshot_events=start + 20, snapshot_ms=50_000)
    )
    world.run(keeper.look())
    assert keeper.kept == 0
    world.clock.set(world.clock.now_ms + 50_001)
    kept.walk.take_over()
    keeper = _keeper(
        kept, KeepingRules(LONG_MS, MUCH, snapshot_events=start + 20, snapshot_ms=1000)
    )
    world.run(keeper.look())
    world.clock.set(world.clock.now_ms + 2_000)
    world.call("cordon", {"node_id": "box-c", "why": "w", "by": "op", "until_ms": 0})
    world.run(keeper.look())
    assert keeper.kept == 1, "an hour passed"
    world.run(keeper.look())
    assert keeper.kept == 1
    few = _keeper(kept, KeepingRules(LONG_MS, MUCH, snapshot_events=4))
    world.run(few.look())
    assert few.kept == 0
    for _ in range(3):
        world.call("cordon", {"node_id": "box-e", "why": "w", "by": "op", "until_ms": 0})
        world.call("uncordon", {"node_id": "box-e", "by": "op"})
    world.run(few.look())
    assert few.kept == 1, "so many events came"


def _info(seq: int, at_ms: int) -> SnapshotInfo:
    return SnapshotInfo(f"s{seq}", "p", f"{seq}-0", seq, at_ms, "", "", "", ())


def test_the_log_begins_with_the_newest_snapshot_that_is_old_or_the_first_that_frees_enough() -> (
    None
):
    known = [_info(seq, seq * 10) for seq in (400, 300, 200, 100)]
    ends = LogEnds("1-0", 1, "450-0", 450, 450)
    rules = KeepingRules(retention_ms=1000, max_bytes=1000)

    def chosen(log_bytes: int, now_ms: int, ends: LogEnds = ends) -> int | None:
        base = base_for_trim(known, ends, log_bytes, now_ms, rules)
        return None if base is None else base.upto_seq

    assert chosen(500, 1500) is None, "young and small"
    assert chosen(500, 3500) == 200
    assert chosen(500, 999_999) == 400
    assert chosen(2000, 1500) == 300, "half of it is to go: 225 events"
    assert chosen(10**6, 1500) == 400, "never more than a snapshot stands in for"
    assert chosen(500, 3500, LogEnds("200-0", 200, "450-0", 450, 251)) is None
    assert base_for_trim([], ends, 10**6, 999_999, rules) is None


# --- other logs under the same name


async def _filled(pool: CoordinationPool, changes: int) -> Elected:
    await pool.open()
    term = await pool.elect(f"attempt-{changes}", "owner", ttl_ms=600_000, mono_ms=1)
    assert isinstance(term, Elected)
    for _ in range(changes):
        await pool.resign("owner", term.fence)
        again = await pool.elect(f"{term.fence}", "owner", ttl_ms=600_000, mono_ms=1)
        assert isinstance(again, Elected)
        term = again
    return term


@in_loop
async def test_a_log_that_was_set_back_is_told_from_one_that_went_on(
    own_valkey: ValkeyServer, namespace: str, tmp_path: Path
) -> None:
    keys = Keys(namespace)
    client = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="write"))
    pool = CoordinationPool(client, keys, "owner", recovery_ms=1)
    log, snapshots = Log(client, keys), Snapshots(client, keys)
    try:
        term = await _filled(pool, 5)
        reading = await catch_up_all(log, snapshots)
        packed = [pack(fold.document()) for fold in reading.folds]
        await SnapshotWriter(pool, "owner", term.fence).take("one", reading.anchor, 1, packed)
        backup = own_valkey.save_files()
        await pool.resign("owner", term.fence)
        ahead = await catch_up_all(log, snapshots)
        assert ahead.began is not None
        own_valkey.restore_files(backup)
        # Its first use finds the connection closed.
        with contextlib.suppress(CoordinationUnavailable):
            await log.last_id()
        with pytest.raises(RewoundLog, match="set back or flushed"):
            await check_anchor(client, keys, ahead.anchor)
        # It goes on from there, with IDs that are higher than those that were read.
        await pool.open()
        await pool.elect("after", "owner", ttl_ms=600_000, mono_ms=1)
        await pool.elect("after", "owner", ttl_ms=600_000, mono_ms=1)
        with pytest.raises(RewoundLog, match="went on otherwise"):
            await check_anchor(client, keys, ahead.anchor)
        state = await catch_up(log, snapshots)
        assert state.began == reading.anchor.id, "the snapshot was set back with the log"
        assert state.last_id == await log.last_id()
        assert digest(state) == digest(folded([event async for event in log.read()]))
    finally:
        await client.aclose()


@in_loop
async def test_a_flushed_log_and_another_one_in_its_place_are_told(
    own_valkey: ValkeyServer, namespace: str, tmp_path: Path
) -> None:
    keys = Keys(namespace)
    client = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="write"))
    pool = CoordinationPool(client, keys, "owner", recovery_ms=1)
    log, snapshots = Log(client, keys), Snapshots(client, keys)
    plain = own_valkey.client()
    try:
        term = await _filled(pool, 3)
        reading = await catch_up_all(log, snapshots)
        packed = [pack(fold.document()) for fold in reading.folds]
        await SnapshotWriter(pool, "owner", term.fence).take("one", reading.anchor, 1, packed)
        entries: Any = plain.xrange(keys.key("log"), reading.anchor.id, reading.anchor.id)
        entry = entries[0]
        plain.delete(keys.key("log"))
        with pytest.raises(RewoundLog):
            await check_anchor(client, keys, reading.anchor)
        # Another event under the same ID.
        fields = {**entry[1], b"actor": b"somebody else"}
        plain.xadd(keys.key("log"), fields, id=entry[0])
        with pytest.raises(ReplacedLog, match="another event"):
            await check_anchor(client, keys, reading.anchor)
        # A log of its own, younger than all that was read.
        plain.delete(keys.key("log"))
        for seq in (1, 2):
            plain.xadd(keys.key("log"), {**fields, b"seq": str(seq).encode()})
        with pytest.raises(ReplacedLog, match="another log"):
            await check_anchor(client, keys, reading.anchor)
        state = await catch_up(log, snapshots)
        assert state.began is None, "a snapshot of the log that is gone is not begun with"
    finally:
        plain.close()
        await client.aclose()


@in_loop
async def test_who_follows_learns_that_the_log_was_trimmed_or_replaced_under_them(
    own_valkey: ValkeyServer, namespace: str, tmp_path: Path
) -> None:
    keys = Keys(namespace)
    client = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="write"))
    follower = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="follow"))
    pool = CoordinationPool(client, keys, "owner", recovery_ms=1)
    log, snapshots = Log(client, keys), Snapshots(client, keys)
    plain = own_valkey.client()
    try:
        term = await _filled(pool, 3)
        reading = await catch_up_all(log, snapshots)
        heard: list[str] = []
        failed: list[TruncatedLog] = []

        async def listen() -> None:
            try:
                followed = follow(Log(follower, keys), snapshots, reading.engine, block_ms=100)
                async for event in followed:
                    heard.append(event.type)
            except TruncatedLog as error:
                failed.append(error)

        listening = asyncio.create_task(listen())
        await pool.resign("owner", term.fence)
        await until(lambda: heard == ["OwnerResigned"])
        assert reading.engine.folds[0].last_id == await log.last_id()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        # What is trimmed while nobody listens is missed at the next beginning.
        await pool.elect("next", "owner", ttl_ms=600_000, mono_ms=1)
        await pool.resign("owner", term.fence + 1)
        last = await log.last_id()
        plain.xtrim(keys.key("log"), minid=last, approximate=False)
        await listen()
        assert isinstance(failed[0], TrimmedLog)
        # What is replaced while somebody listens is told too.
        plain.flushall()
        fresh = CoordinationPool(client, keys, "owner", recovery_ms=1)
        term = await _filled(fresh, 2)
        reading = await catch_up_all(log, snapshots)
        heard.clear()
        listening = asyncio.create_task(listen())
        await fresh.resign("owner", term.fence)
        await until(lambda: heard == ["OwnerResigned"])
        plain.delete(keys.key("log"))
        await until(lambda: len(failed) == 2)
        assert isinstance(failed[1], RewoundLog)
        await listening
    finally:
        plain.close()
        await client.aclose()
        await follower.aclose()


@in_loop
async def test_a_full_server_can_be_trimmed_and_keeps_no_more_states(
    own_valkey: ValkeyServer, namespace: str, tmp_path: Path
) -> None:
    keys = Keys(namespace)
    client = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="write"))
    pool = CoordinationPool(client, keys, "owner", recovery_ms=1)
    log, snapshots = Log(client, keys), Snapshots(client, keys)
    plain = own_valkey.client()
    try:
        term = await _filled(pool, 20)
        writer = SnapshotWriter(pool, "owner", term.fence)
        reading = await catch_up_all(log, snapshots)
        packed = [pack(fold.document()) for fold in reading.folds]
        await writer.take("one", reading.anchor, 1, packed)
        (info,) = await snapshots.list()
        plain.config_set("maxmemory-policy", "noeviction")
        plain.config_set("maxmemory", 1)
        with pytest.raises(CoordinationUnavailable, match="OOM"):
            await writer.take("two", reading.anchor, 1, packed)
        verified = await snapshots.read_back(info)
        done = await writer.trim(
            info, verified, retention_ms=-LONG_MS, max_bytes=MUCH, batch_max=1000
        )
        assert done.removed == info.upto_seq - 1
    finally:
        plain.config_set("maxmemory", 0)
        plain.close()
        await client.aclose()


@in_loop
async def test_a_trim_whose_answer_was_lost_is_done_and_told_once(
    own_valkey: ValkeyServer, namespace: str, tmp_path: Path
) -> None:
    keys = Keys(namespace)
    async with TcpProxy(own_valkey.port) as proxy:
        client = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="write"))
        lossy = commands(await open_client(proxy.url, data_dir=tmp_path, purpose="write"))
        pool = CoordinationPool(client, keys, "owner", recovery_ms=1)
        unsure = CoordinationPool(lossy, keys, "owner", recovery_ms=1)
        log, snapshots = Log(client, keys), Snapshots(client, keys)
        try:
            term = await _filled(pool, 20)
            reading = await catch_up_all(log, snapshots)
            packed = [pack(fold.document()) for fold in reading.folds]
            await SnapshotWriter(pool, "owner", term.fence).take("one", reading.anchor, 1, packed)
            (info,) = await snapshots.list()
            writer, verified = SnapshotWriter(unsure, "owner", term.fence), info.digest

            async def trim() -> int:
                done = await writer.trim(
                    info, verified, retention_ms=-LONG_MS, max_bytes=MUCH, batch_max=1000
                )
                return done.removed

            await unsure.open()
            proxy.mode = "drop_replies"
            # The text of the script may have to be brought first: that answer is lost too.
            for _ in range(3):
                with contextlib.suppress(OutcomeUnknown):
                    await trim()
            proxy.mode = "pass"
            await trim()
            assert await trim() == 0
            events = [event async for event in log.read()]
            trims = [event for event in events if event.type == "LogTrimmed"]
            assert sum(event.data["removed"] for event in trims) == info.upto_seq - 1
            assert len(trims) == 1
            assert events[0].id == info.upto_id
        finally:
            await client.aclose()
            await lossy.aclose()


@in_loop
async def test_a_log_on_a_cluster_is_kept_and_trimmed(tmp_path: Path) -> None:
    with ValkeyServer(cluster=True) as server:
        client = commands(await open_client(server.url, data_dir=tmp_path, purpose="write"))
        keys = Keys("fleet")
        pool = CoordinationPool(client, keys, "owner", recovery_ms=1)
        log, snapshots = Log(client, keys), Snapshots(client, keys)
        async with contextlib.aclosing(client):
            term = await _filled(pool, 10)
            keeper = Keeper(
                pool, log, "owner", term.fence, KeepingRules(-LONG_MS, MUCH, 1), SystemClock()
            )
            await keeper.look()
            assert keeper.kept == 1
            (info,) = await snapshots.list()
            assert keeper.removed == info.upto_seq - 1
            with pytest.raises(TrimmedLog):
                await check_anchor(client, keys, Anchor())
            state = await catch_up(log, snapshots)
            assert state.began == info.upto_id
            assert state.ownership.fence == term.fence
