"""Snapshots on a real server: whole or not there, by the owner only, never believed blindly."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from aibs.codec import dumps, loads
from aibs.errors import Fenced, OutcomeUnknown, RewoundLog, UnusableSnapshot
from aibs.eventstore.anchor import Anchor
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool
from aibs.eventstore.replies import Elected
from aibs.eventstore.snapshots import Snapshots, SnapshotWriter, pack
from aibs.history import catch_up_all
from aibs.projections import Coordination, digest
from aibs.projections.catalogue import FOLDS
from tests.integration.in_loop import in_loop
from tests.kept_world import KeptWorld, folded, states
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aibs.eventstore.snapshots import Packed
    from tests.valkey_server import ValkeyServer


@pytest.fixture
def kept(valkey_url: str) -> Iterator[KeptWorld]:
    world = KeptWorld(valkey_url, 11)
    yield world
    world.close()


def _types(kept: KeptWorld) -> list[str]:
    return [event.type for event in kept.in_log()]


def _parts(kept: KeptWorld) -> list[str]:
    names: Any = kept.world.plain.hkeys(kept.world.keys.key("snapshot_parts"))
    return [name.decode() for name in names]


@pytest.mark.parametrize("seed", range(2))
def test_states_read_from_snapshots_are_the_states_that_were_live(
    valkey_url: str, seed: int
) -> None:
    kept, chance = KeptWorld(valkey_url, seed), random.Random(seed)
    try:
        live: dict[str, bytes] = {}
        for _ in range(60):
            kept.walk.take(1)
            folded_now = kept.world.folded
            live[folded_now.last_id] = dumps(folded_now.document())
            if chance.random() < 0.15:
                kept.take()
                kept.world.check()
        for last_id, document in live.items():
            assert dumps(kept.state(last_id).document()) == document
        began = {kept.state(last_id).began for last_id in live}
        assert len(began) > 3, "states were read from several snapshots and from the beginning"
        whole = folded(kept.in_log())
        assert digest(kept.state()) == digest(whole)
    finally:
        kept.close()


def test_every_fold_is_in_the_snapshot_and_says_up_to_where(kept: KeptWorld) -> None:
    kept.walk.take(40)
    before = states(kept.read())
    event_id = kept.take()
    (info,) = kept.listed()
    assert info.upto_id == kept.world.folded.last_id
    assert info.upto_seq == kept.world.folded.seq
    assert [fold.name for fold in info.folds] == list(FOLDS)
    assert all(fold.parts >= 1 and len(fold.sha256) == 64 for fold in info.folds)
    again = kept.read(info.upto_id)
    assert again.began == info
    assert states(again) == before
    assert kept.read().began == info
    event = kept.in_log()[-1]
    assert (event.id, event.type) == (event_id, "SnapshotTaken")
    assert event.data["upto_id"] == info.upto_id
    assert event.data["digest"] == info.digest


def test_a_state_before_every_snapshot_is_read_from_the_logs_beginning(kept: KeptWorld) -> None:
    kept.walk.take(10)
    early = kept.world.folded.last_id
    kept.walk.take(20)
    kept.take()
    state = kept.state(early)
    assert state.began is None
    assert state.last_id == early
    assert kept.state().began is not None


def test_a_deposed_owner_keeps_nothing_and_lets_nothing_go(kept: KeptWorld) -> None:
    kept.walk.take(20)
    kept.take()
    deposed = kept.writer
    kept.walk.take_over()
    length, hashes = len(kept.in_log()), kept.listed()
    with pytest.raises(Fenced):
        kept.take("late", deposed)
    with pytest.raises(Fenced):
        kept.trim(writer=deposed)
    last = kept.in_log()[-1].id
    with pytest.raises(Fenced):
        kept.world.run(
            deposed.take("late", Anchor(last, 1, ""), 1, [])  # nothing to store: only to complete
        )
    assert kept.listed() == hashes
    kinds = _types(kept)[length:]
    assert set(kinds) == {"FencedWriteRejected"}
    assert not [name for name in _parts(kept) if name.startswith("late|")]


def test_the_same_snapshot_again_is_one_snapshot(kept: KeptWorld) -> None:
    kept.walk.take(20)
    first = kept.take("same")
    kept.walk.take(5)
    kept.walk.take_over()
    assert kept.take("same") == first, "a repeat gets the first answer, whoever holds the term"
    assert len(kept.listed()) == 1
    assert _types(kept).count("SnapshotTaken") == 1


def test_a_snapshot_that_was_never_completed_is_none_and_its_parts_go_with_the_next(
    kept: KeptWorld,
) -> None:
    kept.walk.take(20)
    packed = [pack(fold.document()) for fold in kept.read().folds]

    async def half() -> None:
        for one in packed[:3]:
            await kept.world.pool.call(
                "snapshot_part",
                {
                    "owner": "owner",
                    "fence": kept.world.fence,
                    "snapshot_id": "half",
                    "part": one.stored.part_names()[0],
                    "body": one.parts[0],
                },
            )

    kept.world.run(half())
    assert kept.listed() == ()
    assert kept.read().began is None
    anchor = kept.read().anchor
    assert kept.world.run(_complete_only(kept, "half", anchor, packed)) == "missing_part"
    assert kept.listed() == ()
    kept.take()
    assert _parts(kept)
    assert not [name for name in _parts(kept) if name.startswith("half|")]
    assert kept.world.plain.exists(kept.world.keys.key("snapshot_open")) == 0


async def _complete_only(
    kept: KeptWorld, snapshot_id: str, anchor: Anchor, packed: list[Packed]
) -> str:
    answer = await kept.world.pool.call(
        "snapshot",
        {
            "owner": "owner",
            "fence": kept.world.fence,
            "snapshot_id": snapshot_id,
            "upto_id": anchor.id,
            "upto_seq": anchor.seq,
            "upto_at_ms": 1,
            "anchor": anchor.hash,
            "digest": "d",
            "folds": dumps([one.stored.document() for one in packed]),
        },
        [name for one in packed for name in one.stored.part_names()],
    )
    return answer.word


def test_a_snapshot_of_events_that_the_log_has_not_is_refused(kept: KeptWorld) -> None:
    kept.walk.take(5)
    packed = [pack(fold.document()) for fold in kept.read().folds]
    for anchor in (Anchor("9999999999999-0", 3, "x"), Anchor("1-1", 1, "x")):
        with pytest.raises(RewoundLog):
            kept.world.run(kept.writer.take("ahead", anchor, 1, packed))
    assert kept.listed() == ()


def _damage(kept: KeptWorld, name: bytes, body: bytes | None) -> None:
    key = kept.world.keys.key("snapshot_parts")
    if body is None:
        kept.world.plain.hdel(key, name)
    else:
        kept.world.plain.hset(key, name, body)


@pytest.mark.parametrize("how", ["lost", "garbage", "another_fold", "old_version", "other_anchor"])
def test_a_snapshot_that_is_damaged_or_of_another_log_or_release_is_passed_over(
    kept: KeptWorld, how: str
) -> None:
    kept.walk.take(20)
    kept.take("good")
    kept.walk.take(20)
    kept.take("bad")
    part, key = b"bad|coordination|1", kept.world.keys.key("snapshots")
    if how == "lost":
        _damage(kept, part, None)
    elif how == "garbage":
        _damage(kept, part, b"garbage")
    elif how == "another_fold":
        other = kept.world.plain.hget(kept.world.keys.key("snapshot_parts"), "bad|queue|1")
        assert isinstance(other, bytes)
        _damage(kept, part, other)
    else:
        told = loads(kept.world.plain.hget(key, "bad"))  # type: ignore[arg-type]
        if how == "other_anchor":
            told["anchor"] = "0" * 64
        else:
            document = {**Coordination().document(), "version": 99}
            packed = pack(document)
            told["folds"][0] = packed.stored.document()
            _damage(kept, part, packed.parts[0])
        kept.world.plain.hset(key, "bad", dumps(told))
    reading = kept.read()
    assert reading.began is not None
    assert reading.began.snapshot_id == "good"
    assert len(reading.passed_over) == 1
    assert digest(reading.folds[0]) == digest(folded(kept.in_log()))
    if how in ("lost", "garbage", "another_fold"):
        with pytest.raises(UnusableSnapshot):
            kept.world.run(kept.snapshots.read_back(kept.listed()[0]))


def test_a_snapshot_whose_record_is_no_record_is_left_out(kept: KeptWorld) -> None:
    kept.walk.take(10)
    kept.take("good")
    kept.world.plain.hset(kept.world.keys.key("snapshots"), "bad", b'{"snapshot_id": 7}')
    kept.world.plain.hset(kept.world.keys.key("snapshots"), "worse", b"\xff")
    assert [info.snapshot_id for info in kept.listed()] == ["good"]


def test_a_large_state_is_stored_in_parts_of_at_most_a_megabyte(kept: KeptWorld) -> None:
    kept.walk.take(5)
    chance = random.Random(1)
    state = Coordination.from_document(kept.state().document())
    for number in range(300):
        # Random text: what does not compress is stored as it is.
        state.marks.sessions[f"holder-{number}"] = {"noise": chance.randbytes(5000).hex()}
    packed = pack(state.document())
    assert packed.stored.parts > 1
    anchor = kept.read().anchor
    kept.world.run(kept.writer.take("large", anchor, 1, [packed]))
    key = kept.world.keys.key("snapshot_parts")
    for name in packed.stored.part_names():
        assert 0 < kept.world.plain.hstrlen(key, f"large|{name}") <= 2**20
    document = kept.world.run(kept.snapshots.document(kept.listed()[0], "coordination"))
    assert dumps(document) == dumps(state.document())


@in_loop
async def test_a_lost_answer_at_any_call_leaves_one_snapshot(
    own_valkey: ValkeyServer, namespace: str, tmp_path: Path
) -> None:
    async with TcpProxy(own_valkey.port) as proxy:
        direct = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="write"))
        lossy = commands(await open_client(proxy.url, data_dir=tmp_path, purpose="write"))
        keys = Keys(namespace)
        try:
            steady = CoordinationPool(direct, keys, "steady", recovery_ms=1000)
            await steady.open()
            term = await steady.elect("a", "owner", ttl_ms=60_000, mono_ms=1)
            assert isinstance(term, Elected)
            log, snapshots = Log(direct, keys), Snapshots(direct, keys)
            reading = await catch_up_all(log, snapshots)
            packed = [pack(fold.document()) for fold in reading.folds]
            unsure = CoordinationPool(lossy, keys, "unsure", recovery_ms=1000)
            writer = SnapshotWriter(unsure, "owner", term.fence)
            calls = len(packed) + 1
            for _ in range(calls):
                proxy.mode = "drop_replies"
                with contextlib.suppress(OutcomeUnknown):
                    await writer.take("one", reading.anchor, 1, packed)
                proxy.mode = "pass"
            assert proxy.replies_dropped >= calls
            answer = await writer.take("one", reading.anchor, 1, packed)
            events = [event async for event in log.read()]
            taken = [event for event in events if event.type == "SnapshotTaken"]
            assert [event.id for event in taken] == [answer]
            assert (await snapshots.read_back((await snapshots.list())[0])) == taken[0].data[
                "digest"
            ]
        finally:
            await direct.aclose()
            await lossy.aclose()
