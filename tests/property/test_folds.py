"""Folds over histories that the scripts wrote: cut anywhere, damaged anywhere, on any hash seed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aibs.codec import dumps, loads
from aibs.errors import CorruptLog
from aibs.eventstore.events import EVENT_TYPES, Event, Unreadable, decode
from aibs.eventstore.events.registry import UPCASTERS
from aibs.projections import Coordination, Engine, UnusableDocument, digest, fold
from aibs.projections.capacity import Capacity
from aibs.projections.catalogue import FOLDS, all_folds
from aibs.projections.shapes import BEYOND_THE_MODELS, Damaged, check_of
from tests.property.placed_histories import placed_histories

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aibs.projections import Fold

ANY = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def histories(valkey_url: str) -> list[list[Event]]:
    return placed_histories(valkey_url, range(4), 300)


def _read(folds: Sequence[Fold], events: Sequence[Event]) -> None:
    Engine.joining(folds).apply_all(events)


def _digests(folds: Sequence[Fold]) -> dict[str, str]:
    return {one.name: digest(one) for one in folds}


def _stored_and_back(folds: Sequence[Fold]) -> tuple[Fold, ...]:
    return tuple(type(one).from_document(loads(dumps(one.document()))) for one in folds)


def _states(folds: Sequence[Fold]) -> dict[str, bytes]:
    return {one.name: dumps(one.state()) for one in folds if one.name != "timeline"}


@given(data=st.data())
@ANY
def test_from_any_snapshot_the_rest_leads_to_the_same_state(
    histories: list[list[Event]], data: st.DataObject
) -> None:
    events = data.draw(st.sampled_from(histories))
    whole = all_folds()
    _read(whole, events)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(events)), max_size=6)))
    folds: Sequence[Fold] = all_folds()
    begun = 0
    for cut in [*cuts, len(events)]:
        _read(folds, events[begun:cut])
        folds, begun = _stored_and_back(folds), cut
    assert _digests(folds) == _digests(whole)


@given(data=st.data())
@ANY
def test_a_fold_read_alone_is_the_fold_read_with_others(
    histories: list[list[Event]], data: st.DataObject
) -> None:
    events = data.draw(st.sampled_from(histories))
    together = all_folds()
    _read(together, events)
    name = data.draw(st.sampled_from(sorted(FOLDS)))
    alone = FOLDS[name]()
    for event in events:
        alone.apply(event)
    assert digest(alone) == _digests(together)[name]


_REPLAYER = """
import sys, orjson
from aibs.eventstore.events import Event
from aibs.projections import Engine, digest
from aibs.projections.catalogue import all_folds
folds = all_folds()
engine = Engine.joining(folds)
for number, line in enumerate(open(sys.argv[1], "rb")):
    engine.apply(Event(**orjson.loads(line)))
    if number == int(sys.argv[2]):
        stored = [orjson.loads(orjson.dumps(fold.document())) for fold in folds]
        folds = [type(fold).from_document(one) for fold, one in zip(folds, stored)]
        engine = Engine.joining(folds)
print(*[digest(one) for one in folds])
"""


def test_the_state_does_not_depend_on_the_seed_of_hashes(
    histories: list[list[Event]], tmp_path: Path
) -> None:
    events = histories[-1]
    path = tmp_path / "events"
    fields = tuple(Event.__dataclass_fields__)
    path.write_bytes(
        b"".join(orjson.dumps({n: getattr(e, n) for n in fields}) + b"\n" for e in events)
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", _REPLAYER, str(path), str(len(events) // (2 + seed))],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in range(4)
    }
    assert len(answers) == 1


def _damage(chance: random.Random, value: Any) -> Any:
    """The value with one thing wrong with it, somewhere inside."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(sorted(value))
        if chance.random() < 0.3:
            return {key: held for key, held in value.items() if key != name}
        return {**value, name: _damage(chance, value[name])}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], _damage(chance, value[place]), *value[place + 1 :]]
    return chance.choice([None, True, 1.5, "x", -1, [], {}, [7], {"x": None}])


@pytest.mark.parametrize("seed", range(3))
def test_what_the_engine_calls_damaged_is_what_the_types_models_refuse(
    histories: list[list[Event]], seed: int
) -> None:
    chance = random.Random(seed)
    refused = accepted = 0
    for event in histories[-1 - seed]:
        assert not isinstance(decode(event), Unreadable)
        check_of(event.type)(event.data)
        for _ in range(20):
            damaged = replace(event, data=_damage(chance, event.data))
            read = decode(damaged)
            try:
                check_of(event.type)(damaged.data)
            except Damaged:
                refused += 1
                assert isinstance(read, Unreadable) or event.type in BEYOND_THE_MODELS
            else:
                accepted += 1
                assert not isinstance(read, Unreadable), (damaged, read)
    assert refused > 1000
    assert accepted > 10


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_event_changes_nothing_anywhere_and_is_named(
    histories: list[list[Event]], seed: int
) -> None:
    chance = random.Random(seed)
    folds = all_folds()
    engine = Engine.joining(folds)
    met = 0
    for event in histories[-1 - seed]:
        damaged = replace(event, data=_damage(chance, event.data), seq=engine.position.seq + 1)
        try:
            check_of(event.type)(damaged.data)
        except Damaged:
            before = _states(folds)
            unread = engine.position.unread
            engine.apply(damaged)
            assert _states(folds) == before, damaged
            assert engine.position.unread == unread + 1
            assert event.id in engine.position.last_unread
            met += 1
        engine.apply(replace(event, seq=engine.position.seq + 1))
    assert met > len(histories[-1 - seed]) // 2
    assert engine.position.holes == 0
    alone = fold(histories[-1 - seed])
    assert dumps(folds[0].state()) == dumps(alone.state())


def test_whatever_a_damaged_log_says_no_fold_crashes(histories: list[list[Event]]) -> None:
    chance = random.Random(5)
    for _ in range(30):
        events = list(chance.choice(histories))
        for _ in range(len(events) // 4):
            place = chance.randrange(len(events))
            kind = chance.randrange(4)
            if kind == 0:
                del events[place]
            elif kind == 1:
                events.insert(chance.randrange(len(events)), events[place])
            elif kind == 2:
                events[place] = replace(events[place], data=_damage(chance, events[place].data))
            else:
                other = chance.randrange(len(events))
                events[place], events[other] = events[other], events[place]
        folds = all_folds()
        _read(folds, events)
        again = _stored_and_back(folds)
        assert _digests(again) == _digests(folds)


def _entry(event: Event) -> tuple[bytes, dict[bytes, bytes]]:
    """The event as the log stores it."""
    return event.id.encode(), {
        b"type": event.type.encode(),
        b"v": str(event.version).encode(),
        b"seq": str(event.seq).encode(),
        b"at_ms": str(event.at_ms).encode(),
        b"actor": event.actor.encode(),
        b"fence": b"" if event.fence is None else str(event.fence).encode(),
        b"token": b"" if event.token is None else event.token.encode(),
        b"data": dumps(event.data),
    }


@pytest.mark.parametrize("seed", range(4))
def test_folding_stored_entries_is_folding_their_events(
    histories: list[list[Event]], seed: int
) -> None:
    chance = random.Random(seed)
    events = []
    for event in histories[seed]:
        roll = chance.random()
        if roll < 0.05:
            events.append(replace(event, data={"damaged": _damage(chance, event.data)}))
        elif roll < 0.08:
            events.append(replace(event, type="SomethingNew"))
        elif roll < 0.98:
            events.append(event)
    if seed == 3:
        events[-5] = replace(events[-5], version=2)
    kinds = [kind for name, kind in FOLDS.items() if name != "timeline"]
    one_by_one, stored = Engine.joining([k() for k in kinds]), Engine.joining([k() for k in kinds])
    one_by_one.apply_all(events)
    begun = 0
    while begun < len(events):
        end = begun + chance.randrange(1, 40)
        stored.apply_entries(map(_entry, events[begun:end]))
        assert stored.position.last_id == events[min(end, len(events)) - 1].id
        begun = end
    for left, right in zip(one_by_one.folds, stored.folds, strict=True):
        assert digest(left) == digest(right)
    assert one_by_one.position.unread > 3
    with pytest.raises(CorruptLog):
        stored.apply_entries([(b"1-1", {b"type": b"OwnerElected"})])


def test_a_newer_version_stops_the_folds_of_its_type_and_no_other(
    histories: list[list[Event]],
) -> None:
    events = histories[-1]
    place = next(i for i, e in enumerate(events) if e.type == "LeaseAcquired" and i > 20)
    newer = [*events[:place], replace(events[place], version=2), *events[place + 1 :]]
    folds = all_folds()
    _read(folds, newer)
    whole = all_folds()
    _read(whole, events)
    before = all_folds()
    _read(before, events[:place])
    concerned = {"coordination", "capacity", "leaks", "workload"}
    for one, other, untouched in zip(folds, before, whole, strict=True):
        if one.name in concerned:
            assert one.stopped_at == events[place].id
            assert "LeaseAcquired version 2, this release reads up to 1" in one.stopped_why
            assert one.last_id == events[place].id, "it stays where it stopped"
            assert one.state() == other.state()
        else:
            assert one.stopped_at is None
            assert one.last_id == events[-1].id
            assert one.unread == 1
            if one.name != "timeline":
                assert one.state() == untouched.state()
    again = _stored_and_back(folds)
    assert _digests(again) == _digests(folds)
    again[0].apply(events[-1])
    assert digest(again[0]) == digest(folds[0]), "a stopped fold stays stopped when read back"


def test_an_unknown_type_is_counted_shown_and_stops_nothing(histories: list[list[Event]]) -> None:
    events = list(histories[-1])
    unknown = replace(events[10], type="SomethingNew", data={"x": 1}, seq=events[10].seq)
    folds = all_folds()
    _read(folds, [*events[:10], unknown, *events[11:]])
    assert all(one.stopped_at is None and one.unread == 1 for one in folds)
    assert folds[0].position.unknown == 1
    assert "no type SomethingNew" in folds[0].last_unread


def test_an_older_version_is_lifted_before_it_is_folded(
    histories: list[list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = histories[-1]

    def lifted(data: dict[str, Any]) -> dict[str, Any]:
        return {**{key: value for key, value in data.items() if key != "who"}, "owner": data["who"]}

    monkeypatch.setitem(UPCASTERS, ("OwnerElected", 0), lifted)

    def old(event: Event) -> Event:
        if event.type != "OwnerElected":
            return event
        data = {**event.data, "who": event.data["owner"]}
        del data["owner"]
        return replace(event, version=0, data=data)

    assert dumps(fold(map(old, events)).state()) == dumps(fold(events).state())
    damaged = [
        replace(old(event), data={}) if event.type == "OwnerElected" else event for event in events
    ]
    assert fold(damaged).unread >= 1
    # What is lifted is looked at like any other: no fold hears of a fence that is text.
    wrong = [
        replace(old(event), data={**old(event).data, "fence": "4"})
        if event.type == "OwnerElected"
        else event
        for event in events
    ]
    found = fold(wrong)
    assert found.unread >= 1
    assert "fence is text" in found.last_unread
    assert found.ownership.elections == 0


def test_folding_on_leaves_the_state_it_began_from_as_it_was(
    histories: list[list[Event]],
) -> None:
    events = histories[-1]
    half = fold(events[: len(events) // 2])
    before = digest(half)
    whole = fold(events[len(events) // 2 :], half)
    assert digest(half) == before
    assert digest(whole) == digest(fold(events))


def test_a_document_of_another_fold_or_version_or_none_is_refused() -> None:
    document = Coordination().document()
    for wrong in (
        {},
        {**document, "version": 99},
        {**document, "name": "queue"},
        {**document, "state": {}},
        {**document, "position": {"x": 1}},
        Capacity().document(),
    ):
        with pytest.raises(UnusableDocument):
            Coordination.from_document(wrong)


def test_what_capacity_says_after_a_grant_is_the_grants_own_evidence(
    histories: list[list[Event]],
) -> None:
    compared = drained = 0
    for events in histories:
        capacity = Capacity()
        for event in events:
            capacity.apply(event)
            if event.type != "LeaseAcquired":
                continue
            node_id, evidence = event.data["lease"]["node_id"], event.data["evidence"]
            node = capacity.node_at(node_id, event.at_ms)
            assert (node.budget_bytes, node.slots) == (
                evidence["budget_bytes"],
                evidence["slots"],
            )
            assert event.data["lease"]["lease_id"] in node.leases
            assert node.leased_bytes == evidence["leased_after_bytes"]
            assert node.slots_used == evidence["slots_used_after"]
            compared += 1
            drained += node.slots_draining > 0
    assert compared > 40
    assert drained


def test_every_type_of_event_has_a_shape() -> None:
    for type_ in EVENT_TYPES:
        with pytest.raises(Damaged):
            check_of(type_)({})


def test_a_fleet_whose_budgets_nobody_declared_is_a_fleet() -> None:
    node = {
        "node_id": "box-c",
        "base_url": "http://c",
        "vram_budget_bytes": None,
        "max_parallel_requests": None,
        "memory": "unified",
    }
    data = {"revision": 0, "fingerprint": "f", "fleet": {"nodes": [node]}, "changes": []}
    capacity = Capacity()
    capacity.apply(Event("1-0", 1, 1000, "FleetDeclared", 1, "a", 1, None, data))
    assert capacity.unread == 0, capacity.last_unread
    found = capacity.node_at("box-c", 1000)
    assert (found.budget_bytes, found.free_bytes, found.slots_free) == (None, None, None)
