"""`aibs replay --what-if`: changes of a fleet, and what is said of both runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aibs.errors import ConfigurationError
from aibs.replay.what_if.changes import changed, read_changes, require_names, switched_off
from aibs.replay.what_if.recorded import Agreement, Tally
from aibs.replay.what_if.report import agreement_of, document_of, json_schema, rows_of
from tests.what_if_histories import FLEET, GB, LARGE, asked, history, run, simulated


@pytest.mark.parametrize(
    "text",
    [
        "box-c",
        "box-c=",
        "=5",
        "box-c.vram=5",
        "box-c.vram_gb=much",
        "box-c.vram_gb=-1",
        "box-c.vram_gb=nan",
        "box-c.vram_gb=1e99",
        "box-c.slots=0",
        "box-c.slots=1.5",
        "box-c.slots=٣",
        "box-c=on",
        "worker.large=5",
        "worker..resident_weight_gb=5",
        "worker.large.num_ctx=5",
    ],
)
def test_what_is_no_change_is_refused_in_a_sentence_that_names_it(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_changes([text])
    assert text in str(refused.value)


def test_a_name_that_the_fleet_has_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean box-c"):
        require_names([FLEET], read_changes(["bx-c.slots=2"]))
    with pytest.raises(ConfigurationError, match="They are: large, small"):
        require_names([FLEET], read_changes(["worker.qqq.resident_weight_gb=1"]))


def test_changes_are_of_the_fleet_alone() -> None:
    changes = read_changes(
        ["box-c.vram_gb=47.2", "box-e.slots=3", "worker.small.resident_weight_gb=12", "box-e=off"]
    )
    fleet = changed(FLEET, changes)
    assert [node.vram_budget_bytes for node in fleet.nodes] == [47_200_000_000, 50 * GB]
    assert [node.max_parallel_requests for node in fleet.nodes] == [1, 3]
    assert [worker.resident_weight_bytes for worker in fleet.workers] == [12 * GB, 60 * GB]
    assert switched_off(changes) == {"box-e"}
    assert FLEET.nodes[0].vram_budget_bytes == 90 * GB


def test_the_document_has_a_row_for_each_figure_and_a_schema() -> None:
    recorded = history(asked(0, 1_000, LARGE, 10_000), asked(1, 2_000, LARGE, 5_000))
    document = document_of(
        recorded,
        read_changes(["box-e.vram_gb=90"]),
        run(recorded),
        run(recorded, "box-e.vram_gb=90"),
        Agreement(),
        generated_ms=1_796_126_460_000,
    )
    rows = {row[0]: row[1:] for row in rows_of(document)}
    assert rows["wait, longest"] == ("-", "11.0 s", "0.0 s")
    assert rows["box-e, most leased"][2] == "60 GB, 2 slots"
    assert document.agreement.compared == 0
    assert document.generated_at == "2026-12-01T12:01:00.000Z", "not the last event's time"
    assert json_schema()["$id"] == "aibs.replay.what-if/1"


@pytest.mark.parametrize(
    ("waits", "p95"), [([5], 5), (range(1, 21), 19), (range(1, 101), 95), (range(1, 22), 20)]
)
def test_of_twenty_waits_the_nineteenth_is_the_95_of_100(waits: list[int], p95: int) -> None:
    told = Tally(granted=len(waits), waits_ms=sorted(waits, reverse=True))
    document = document_of(history(), (), told, told, Agreement(), generated_ms=1)
    assert document.before.wait_p95_ms == p95


def test_no_wait_is_not_a_wait_of_nothing() -> None:
    document = document_of(history(), (), Tally(), Tally(), Agreement(), generated_ms=1)
    assert document.before.wait_p95_ms is None
    assert document.before.wait_longest_ms is None


def test_a_run_that_ends_far_from_the_log_is_called_a_hint() -> None:
    near = document_of(history(), (), Tally(), Tally(), Agreement(10, 9, 8, 7), generated_ms=1)
    assert agreement_of(near) == (
        "Simulated before, 9 of 10 requests ended as recorded; of 8 granted in both, 7 went to "
        "the same node."
    )
    far = document_of(history(), (), Tally(), Tally(), Agreement(10, 8, 8, 8), generated_ms=1)
    assert "a hint at most" in agreement_of(far)


def test_a_node_named_like_a_size_is_not_switched_off_by_mistake() -> None:
    # Read as a size that is none: else a mistyped size would take the node away.
    with pytest.raises(ConfigurationError, match="no size in GB"):
        read_changes(["a.vram_gb=off"])
    with pytest.raises(ConfigurationError, match="no number of slots"):
        read_changes(["a.slots=off"])
    (change,) = read_changes(["a.b=off"])
    assert (change.kind, change.name) == ("off", "a.b")


def test_a_change_of_a_node_that_one_of_two_fleets_has_is_understood() -> None:
    alone = replace(FLEET, nodes=FLEET.nodes[:1])
    changes = read_changes(["box-e.slots=3"])
    require_names([alone, FLEET], changes)
    assert changed(alone, changes) == alone
    with pytest.raises(ConfigurationError, match="no node box-e"):
        require_names([alone], changes)


def test_agreement_is_in_the_document_that_schema_promises() -> None:
    recorded = history(asked(0, 1_000, LARGE, 1_000, end="granted", node_id="box-c"))
    before = simulated(recorded)
    document = document_of(
        recorded, (), before.tally, before.tally, before.agreement, generated_ms=1
    )
    told = document.model_dump(mode="json", by_alias=True)["agreement"]
    assert told == {
        "compared": 1,
        "ended_alike": 1,
        "granted_in_both": 1,
        "on_the_same_node": 1,
    }
    schema = json_schema()
    assert "agreement" in schema["required"]
    assert schema["$defs"]["Agreed"]["required"] == list(told)
