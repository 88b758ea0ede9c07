"""Whose a resident model is, and that one weights file is charged once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aibs.model_names import comparison_key
from aibs.ollama.ownership import Residency, classify
from aibs.ollama.ps import parse_ps

OURS = "a" * 64
THEIRS = "b" * 64


def model(name: str, digest: str | None, size: Any = 100, vram: Any = 60) -> dict[str, Any]:
    return {"name": name, "model": name, "digest": digest, "size": size, "size_vram": vram}


def classified(
    *entries: Any,
    names: dict[str, tuple[str, ...]] | None = None,
    digests: dict[str, tuple[str, ...]] | None = None,
    memory: Any = "unified",
) -> Residency:
    keys = {comparison_key(name): ids for name, ids in (names or {"llama3": ("w1",)}).items()}
    snapshot = parse_ps(json.dumps({"models": list(entries)}).encode())
    return classify(snapshot, keys, digests or {}, memory)


@pytest.mark.parametrize(
    "name",
    [
        "llama3:latest",
        "LLAMA3:Latest",
        "library/llama3:latest",
        "registry.ollama.ai/library/llama3",
    ],
)
def test_a_roster_model_is_ours_however_the_name_is_written(name: str) -> None:
    residency = classified(model(name, THEIRS))
    assert residency.models[0].ownership == "own"
    assert residency.models[0].worker_ids == ("w1",)
    assert (residency.own_bytes, residency.foreign_bytes) == (100, 0)


def test_another_host_of_the_same_model_is_foreign() -> None:
    residency = classified(model("hf.co/library/llama3:latest", THEIRS))
    assert residency.models[0].ownership == "foreign"
    assert (residency.own_bytes, residency.foreign_bytes) == (0, 100)


def test_an_alias_is_ours_by_the_digest_of_the_roster_model_on_that_node() -> None:
    residency = classified(model("copy:latest", OURS), digests={OURS: ("w1",)})
    assert residency.models[0].ownership == "own"
    assert residency.models[0].worker_ids == ("w1",)


def test_all_workers_of_one_model_are_named_once() -> None:
    residency = classified(
        model("llama3:latest", OURS),
        names={"llama3": ("w2", "w1")},
        digests={OURS: ("w2", "w3")},
    )
    assert residency.models[0].worker_ids == ("w1", "w2", "w3")


@pytest.mark.parametrize(("first", "second"), [(100, 140), (140, 100)])
def test_two_names_on_one_digest_are_one_charge_of_the_larger_size(first: int, second: int) -> None:
    residency = classified(
        model("copy:latest", OURS, size=first, vram=first),
        model("other:latest", OURS, size=second, vram=second),
    )
    assert [entry.charge_bytes for entry in residency.models] == [140, 0]
    assert residency.foreign_bytes == 140


def test_a_strangers_name_on_our_weights_is_not_charged_as_foreign_too() -> None:
    residency = classified(model("stranger:1b", OURS), model("llama3:latest", OURS))
    assert [entry.ownership for entry in residency.models] == ["own", "own"]
    assert (residency.own_bytes, residency.foreign_bytes) == (100, 0)


def test_models_without_a_digest_are_each_charged() -> None:
    residency = classified(model("x:1", None), model("y:1", ""), model("z:1", None))
    assert residency.foreign_bytes == 300


@pytest.mark.parametrize(("memory", "charge"), [("unified", 100), ("discrete", 60)])
def test_the_kind_of_memory_decides_the_charge(memory: str, charge: int) -> None:
    residency = classified(model("x:1", THEIRS), memory=memory)
    assert residency.foreign_bytes == charge


def test_a_node_with_an_unreadable_entry_has_no_foreign_sum() -> None:
    residency = classified(
        model("x:1", THEIRS, size=-1), model("llama3:latest", OURS), model("y:1", "c" * 64)
    )
    assert [entry.ownership for entry in residency.models] == ["unknown", "own", "foreign"]
    assert [entry.charge_bytes for entry in residency.models] == [None, 100, 100]
    assert residency.foreign_bytes is None
    assert residency.own_bytes == 100
    assert residency.unaccounted
    assert len(residency.warnings) == 1


def test_an_own_model_still_loading_makes_the_node_unaccounted_and_stays_ours() -> None:
    residency = classified(model("llama3:latest", OURS, size=0, vram=0))
    assert residency.models[0].ownership == "own"
    assert residency.models[0].charge_bytes is None
    assert residency.foreign_bytes is None


def test_an_empty_node_charges_nothing() -> None:
    residency = classified()
    assert (residency.own_bytes, residency.foreign_bytes) == (0, 0)
    assert not residency.unaccounted
