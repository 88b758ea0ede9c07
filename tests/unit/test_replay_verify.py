"""A tampered or damaged log is told, by the event that is wrong, and never ends in a crash."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aibs.errors import CorruptLog
from aibs.eventstore.events import EVENT_TYPES, Event
from aibs.replay.answers import shown_or_told
from aibs.replay.as_of import as_of_document
from aibs.replay.entries import Damaged, Oversized
from aibs.replay.explain import explain
from aibs.replay.folding import Folded
from aibs.replay.lines import line_of
from aibs.replay.source import FileSource
from aibs.replay.states import Past
from aibs.replay.terms import OWNERS_WRITES, UNFENCED
from aibs.replay.verify import PROBLEMS_MAX, Verifier
from tests.incident_log import PATH, header, items, write
from tests.placement_scenarios import SetClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from aibs.replay.entries import Item
    from aibs.replay.verify import Problem


def problems(log: Iterable[Item]) -> list[Problem]:
    verifier = Verifier()
    for item in log:
        verifier.feed(item)
    return verifier.all_problems()


def kinds_of(log: Iterable[Item], event: Event) -> set[str]:
    """What is told of that event."""
    return {problem.kind for problem in problems(log) if problem.id == event.id}


def of(log: list[Event], type_: str, number: int = 0) -> Event:
    return [event for event in log if event.type == type_][number]


def changed(event: Event, change: Callable[[dict[str, Any]], None]) -> Event:
    data = copy.deepcopy(event.data)
    change(data)
    return replace(event, data=data)


def bent_in(event: Event, part: str, field: str, value: Any) -> Event:
    """The event with one field of a part of its data replaced."""
    return changed(event, lambda data: data[part].update({field: value}))


def shown_as_of(log: Iterable[Item]) -> None:
    """Fold and show the state, as --as-of does: an answer, or a sentence."""
    folded = Folded()
    for one in log:
        folded.apply(one)
    source = FileSource(PATH)
    with contextlib.suppress(CorruptLog), shown_or_told(source):
        as_of_document(
            Past(folded, folded.at_ms, partial=False), source.timing, "fleet", generated_ms=0
        )


def put(log: list[Event], event: Event) -> list[Event]:
    """The log with an event in place of the one with its ID."""
    return [event if one.id == event.id else one for one in log]


def test_what_a_working_pool_wrote_has_no_problem() -> None:
    assert problems(items()) == []


@pytest.mark.parametrize("number", range(1, 30))
def test_an_event_that_was_taken_out_is_missed_at_the_next_one(number: int) -> None:
    log = items()
    rest = log[:number] + log[number + 1 :]
    told = [problem for problem in problems(rest) if problem.kind == "hole"]
    assert [problem.id for problem in told] == [log[number + 1].id]
    assert f"number {number + 1} is missing" in told[0].detail


@pytest.mark.parametrize("number", range(31))
def test_an_event_that_stands_twice_is_named(number: int) -> None:
    log = items()
    twice = [*log[: number + 1], log[number], *log[number + 1 :]]
    assert "id_order" in kinds_of(twice, log[number])
    if log[number].type != "PoolCreated":
        assert "repeat" in kinds_of(twice, log[number])


def test_a_copy_under_a_new_id_is_named() -> None:
    log = items()
    copied = replace(log[20], id="1796207912283-5")
    assert "repeat" in kinds_of([*log, copied], copied)


@pytest.mark.parametrize("number", range(1, 30))
def test_events_that_changed_places_are_named(number: int) -> None:
    log = items()
    log[number], log[number + 1] = log[number + 1], log[number]
    found = problems(log)
    assert {"hole", "order", "id_order"} <= {problem.kind for problem in found}
    assert {log[number].id, log[number + 1].id} <= {problem.id for problem in found}


@pytest.mark.parametrize(
    "type_",
    ["OwnerElected", "OwnerExpired", "FleetDeclared", "ResidencyObserved"],
)
@pytest.mark.parametrize("fence", [None, 0, 3, 7000])
def test_a_fence_that_was_altered_is_named(type_: str, fence: int | None) -> None:
    log = items()
    altered = replace(of(log, type_), fence=fence)
    assert "fence" in kinds_of(put(log, altered), altered)


@pytest.mark.parametrize("type_", ["LeaseAcquired", "LeasesRenewed", "LeaseDenied", "WaitEnded"])
def test_a_fence_on_what_is_written_without_one_is_named(type_: str) -> None:
    log = items()
    altered = replace(of(log, type_), fence=1)
    assert "fence" in kinds_of(put(log, altered), altered)


def test_an_election_with_an_older_fence_is_named() -> None:
    log = items()
    second = of(log, "OwnerElected", 1)
    old = replace(changed(second, lambda data: data.update(fence=1)), fence=1)
    assert "fence" in kinds_of(put(log, old), old)


def test_a_write_of_a_deposed_owner_is_named() -> None:
    log = items()
    late = replace(of(log, "ResidencyObserved", -1), fence=1)
    assert "fence" in kinds_of(put(log, late), late)


def test_every_type_is_known_to_be_written_with_or_without_a_fence() -> None:
    either = {"OwnerElected", "OwnerResigned", "OwnerExpired", "FencedWriteRejected"}
    sometimes = {"PoolReopened", "ReservationEnded", "ClockStepped"}
    assert set(EVENT_TYPES) <= OWNERS_WRITES | UNFENCED | either | sometimes


@pytest.mark.parametrize("token", [None, "0", "999", "abc"])
@pytest.mark.parametrize("type_", ["LeaseAcquired", "LeaseReleased", "LeaseExpired", "ModelLoaded"])
def test_a_token_that_was_altered_is_named(type_: str, token: str | None) -> None:
    log = items()
    altered = replace(of(log, type_), token=token)
    assert "token" in kinds_of(put(log, altered), altered)


def test_a_lease_that_is_granted_again_is_named() -> None:
    log = items()
    first, last = of(log, "LeaseAcquired"), of(log, "LeaseAcquired", -1)
    lease_id = first.data["lease"]["lease_id"]
    again = changed(last, lambda data: data["lease"].update(lease_id=lease_id))
    assert "lease_twice" in kinds_of(put(log, again), again)


def test_a_lease_that_ends_twice_or_never_began_is_named() -> None:
    log = items()
    ended = of(log, "LeaseReleased")
    again = replace(ended, id="1796207912283-1", seq=32)
    assert "ended_twice" in kinds_of([*log, again], again)
    other = changed(again, lambda data: data.update(lease_id="no"))
    assert "end_without_beginning" in kinds_of([*log, other], other)


def test_a_wait_that_ends_and_never_began_is_named() -> None:
    log = items()
    ended = changed(of(log, "WaitEnded"), lambda data: data.update(request_key="a|b|c"))
    assert "end_without_beginning" in kinds_of(put(log, ended), ended)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("budget_bytes", 90 * 10**9),
        ("slots", 2),
        ("slots_used_before", 1),
        ("slots_used_after", 2),
        ("leased_before_bytes", 5),
        ("leased_after_bytes", 5),
        ("foreign_bytes", 60 * 10**9),
        ("stamp_age_ms", 7),
        ("observed_at_ms", 1),
        ("weight_bytes", 1),
    ],
)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_evidence_that_does_not_add_up_is_named(field: str, value: int, number: int) -> None:
    log = items()
    grant = changed(
        of(log, "LeaseAcquired", number), lambda data: data["evidence"].update({field: value})
    )
    assert "evidence" in kinds_of(put(log, grant), grant)


def test_a_grant_on_a_node_that_nobody_declared_is_named() -> None:
    log = items()
    grant = changed(of(log, "LeaseAcquired"), lambda data: data["lease"].update(node_id="box-z"))
    assert "evidence" in kinds_of(put(log, grant), grant)


def test_a_grant_while_the_pool_recovers_is_named() -> None:
    log = items()
    grant = of(log, "LeaseAcquired", -1)
    suspect = replace(
        of(log, "WaitEnded"),
        type="PoolSuspect",
        data={"why": "server_restarted", "run_id": "r", "epoch": 2, "recover_at_ms": 1},
    )
    assert "recovering" in kinds_of(put(log, suspect), grant)


def every_field(event: Event) -> list[str]:
    return list(event.data)


@pytest.mark.parametrize("type_", sorted({event.type for event in items()}))
def test_a_field_that_is_missing_is_named_whatever_it_is(type_: str) -> None:
    log = items()
    event = of(log, type_)
    for field in every_field(event):
        if not EVENT_TYPES[type_].model_fields[field].is_required():
            continue
        lacking = changed(event, lambda data, field=field: data.pop(field))  # type: ignore[misc]
        found = [one for one in problems(put(log, lacking)) if one.id == lacking.id]
        assert "invalid_data" in {one.kind for one in found}, field
        assert any(field in one.detail for one in found)


@pytest.mark.parametrize("value", [None, "x", -1, 1.5, [], {}, True, "\ud7ff", 2**63])
def test_a_field_of_another_kind_never_ends_in_a_crash(value: Any) -> None:
    log = items()
    for event in log:
        for field in every_field(event):
            bent = changed(event, lambda data, field=field: data.update({field: value}))  # type: ignore[misc]
            tampered = put(log, bent)
            problems(tampered)
            shown_as_of(tampered)
            line_of(bent)


@pytest.mark.parametrize("value", [None, "x", -1, 1.5, [], {}, [{}], 2**62])
def test_a_nested_field_of_another_kind_never_ends_in_a_crash(value: Any) -> None:
    log = items()
    for type_, part in (
        ("LeaseAcquired", "lease"),
        ("LeaseAcquired", "evidence"),
        ("LeaseQueued", "waiter"),
        ("FleetDeclared", "fleet"),
    ):
        event = of(log, type_)
        for field in event.data[part]:
            bent = bent_in(event, part, field, value)
            tampered = put(log, bent)
            problems(tampered)
            shown_as_of(tampered)
            line_of(bent)


def test_a_type_of_a_later_release_is_named_and_the_rest_is_read() -> None:
    log = items()
    strange = replace(of(log, "LeasesRenewed"), type="LeaseBlessed", data={"any": [1]})
    assert kinds_of(put(log, strange), strange) == {"unknown_type"}
    assert len(problems(put(log, strange))) == 1


def test_a_version_of_a_later_release_is_named() -> None:
    log = items()
    newer = replace(of(log, "LeasesRenewed"), version=2)
    assert kinds_of(put(log, newer), newer) == {"newer_version"}


def test_an_oversized_or_damaged_entry_is_named_and_leaves_no_hole() -> None:
    log: list[Item] = list(items())
    event = items()[18]
    assert kinds_of([*log[:18], Oversized(event), *log[19:]], event) == {"oversized"}
    damaged = Damaged(event.id, "has no field seq")
    assert kinds_of([*log[:18], damaged, *log[19:]], event) == {"damaged"}
    assert {problem.kind for problem in problems([*log[:18], damaged, *log[19:]])} == {"damaged"}


def test_a_log_that_begins_late_is_sound_where_it_is() -> None:
    verifier = Verifier()
    for event in items()[14:]:
        verifier.feed(event)
    assert verifier.all_problems() == []
    assert verifier.begins_late


def test_a_log_that_begins_late_still_tells_what_cannot_be() -> None:
    log = items()[14:]
    bad = replace(of(log, "ResidencyObserved", -1), fence=1)
    assert "fence" in kinds_of(put(log, bad), bad)


@pytest.mark.parametrize("number", [3, 8, 14, 21, 27, 29])
def test_a_log_that_begins_with_a_stored_state_is_verified_from_there(number: int) -> None:
    log = items()
    folded = Folded()
    for event in log[:number]:
        folded.apply(event)
    verifier = Verifier(folded.coordination)
    for event in log[number:]:
        verifier.feed(event)
    assert verifier.all_problems() == []
    assert not verifier.begins_late
    without = Verifier(folded.coordination)
    for event in log[number + 1 :]:
        without.feed(event)
    assert without.all_problems()[0].kind == "hole"


def test_a_log_that_is_wrong_throughout_is_bounded() -> None:
    log = [replace(event, type="Nonsense") for _ in range(60) for event in items()]
    found = problems(log)
    assert len(found) == PROBLEMS_MAX + 1
    assert found[-1].kind == "more"


def test_every_question_is_answered_of_a_log_with_every_kind_of_damage(tmp_path: Path) -> None:
    log: list[Item] = list(items())
    log[18] = Damaged(log[18].id, "has no field seq")
    log[19] = replace(items()[19], type="Strange")
    log[21] = changed(items()[21], lambda data: data.clear())
    log[24] = Oversized(items()[24])
    path = write(tmp_path / "log.gz", log)
    story = asyncio.run(explain(FileSource(path), "urgent-1", SetClock()))
    assert story.outcome == "completed"
    assert any("could not be read" in note for note in story.notes)
    folded = Folded()
    for item in log:
        folded.apply(item)
    document = as_of_document(
        Past(folded, folded.at_ms, partial=False), header().timing, "fleet", generated_ms=0
    )
    assert any("could not be read" in note for note in document.notes)
