"""What a body of /api/ps means: every stored body, and the shapes that no server should send."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aibs.errors import InvalidResponse
from aibs.ollama.ps import MAX_ENTRIES, MAX_SIZE_BYTES, PsSnapshot, ResidentModel, parse_ps

BODIES = Path(__file__).parent.parent / "data" / "ps"
ALPHA = "registry.ollama.ai/library/alpha-chat:8b"


@dataclass(frozen=True)
class Meaning:
    """What one entry has to mean; `unified` and `discrete` are the charges."""

    key: str
    placement: str
    unified: int | None
    discrete: int | None
    context: int | None
    expires_at_ms: int | None
    readable: bool = True


MEANINGS: dict[str, tuple[Meaning, ...]] = {
    "01_empty": (),
    "02_full_gpu_new": (Meaning(ALPHA, "gpu", 6654289920, 6654289920, 8192, 1787227512817),),
    "03_partial_offload": (
        Meaning(
            "registry.ollama.ai/library/beta-large:70b",
            "partial",
            47211814912,
            23622320128,
            4096,
            1787227512310,
        ),
    ),
    "04_cpu_only_size_vram_zero": (
        Meaning(
            "registry.ollama.ai/library/gamma-mini:1b", "cpu", 1593835520, 0, 4096, 1787227512500
        ),
    ),
    "05_v0_1_38_cpu_only_no_size_vram": (
        Meaning(
            "registry.ollama.ai/library/gamma-mini:1b", "cpu", 1593835520, 0, None, 1716221701123
        ),
    ),
    "06_embedding": (
        Meaning(
            "registry.ollama.ai/library/delta-embed:latest",
            "gpu",
            768604160,
            768604160,
            2048,
            1787229312000,
        ),
    ),
    "08_hf_names": (
        Meaning(
            "hf.co/example-org/sample-model-gguf:q4_k_m",
            "gpu",
            5368709120,
            5368709120,
            4096,
            1787229312700,
        ),
        Meaning(
            "hf.co/example-org/other-gguf:latest",
            "gpu",
            2147483648,
            2147483648,
            4096,
            1787228412700,
        ),
    ),
    "10_v0_9_no_context_length": (
        Meaning(ALPHA, "gpu", 6654289920, 6654289920, None, 1748859072345),
        Meaning(
            "registry.ollama.ai/library/beta-large:70b",
            "partial",
            47211814912,
            23622320128,
            None,
            1748858940100,
        ),
    ),
    "11_unknown_extra_fields": (
        Meaning(ALPHA, "gpu", 6654289920, 6654289920, 8192, 1787229312000),
    ),
    "18_expires_in_past_busy_or_stopping": (
        Meaning(ALPHA, "gpu", 6654289920, 6654289920, 8192, 1787226912250),
    ),
    "20_loading_zero_size_null_families": (
        Meaning(
            "registry.ollama.ai/library/sigma-mlx:latest",
            "loading",
            None,
            None,
            None,
            1787229312000,
            readable=False,
        ),
    ),
}


def meaning(model: ResidentModel) -> Meaning:
    return Meaning(
        key=model.key,
        placement=model.placement,
        unified=model.charge_bytes("unified"),
        discrete=model.charge_bytes("discrete"),
        context=model.context_length,
        expires_at_ms=model.expires_at_ms,
        readable=model.readable,
    )


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "name": "alpha:8b",
        "model": "alpha:8b",
        "size": 100,
        "size_vram": 60,
        "digest": "a" * 64,
        **changes,
    }


def parsed(*entries: Any) -> PsSnapshot:
    return parse_ps(json.dumps({"models": list(entries)}).encode())


def test_every_stored_body_has_its_meaning_here() -> None:
    stored = {path.stem for path in BODIES.glob("*.json")}
    assert stored == {*MEANINGS, "16_truncated"}


@pytest.mark.parametrize("name", MEANINGS)
def test_a_stored_body_means_what_the_server_meant(name: str) -> None:
    snapshot = parse_ps((BODIES / f"{name}.json").read_bytes())
    assert tuple(meaning(model) for model in snapshot.models) == MEANINGS[name]
    unreadable = any(not wanted.readable for wanted in MEANINGS[name])
    assert snapshot.unaccounted is unreadable
    assert len(snapshot.warnings) == unreadable


def test_a_body_that_breaks_off_never_clears_residency() -> None:
    body = (BODIES / "16_truncated.json").read_bytes()
    with pytest.raises(InvalidResponse) as caught:
        parse_ps(body)
    assert caught.value.state == "invalid_response"
    assert caught.value.reason == "invalid_response"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b"null",
        b"[]",
        b"{}",
        b'{"models":null}',
        b'{"models":{}}',
        b'{"models":"none"}',
        b'{"error":"busy"}',
        b"<!doctype html><html></html>",
        b'{"models":[]} trailing',
        b"\xff\xfe{\x00",
        b'{"models":[{"name":"a","size":NaN}]}',
        b"[" * 100_000,
        json.dumps({"models": [{"name": "a"}] * (MAX_ENTRIES + 1)}).encode(),
    ],
)
def test_what_is_no_list_of_models_is_never_an_empty_node(body: bytes) -> None:
    with pytest.raises(InvalidResponse):
        parse_ps(body)


def test_a_byte_order_mark_does_not_hide_the_models() -> None:
    body = b"\xef\xbb\xbf" + (BODIES / "02_full_gpu_new.json").read_bytes()
    assert [model.key for model in parse_ps(body).models] == [ALPHA]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"size": -1}, "negative size"),
        ({"size_vram": -6654289920}, "negative size_vram"),
        ({"size": MAX_SIZE_BYTES + 1}, "2^50"),
        ({"size": 2**80}, "2^50"),
        ({"size": None}, "no size"),
        ({"size_vram": None}, "no size_vram"),
        ({"size": "6.6 GB"}, "not a number"),
        ({"size": True}, "not a number"),
        ({"size": 1.5}, "not a whole number"),
        ({"size": 0, "size_vram": 0}, "loading"),
    ],
)
def test_an_implausible_size_makes_the_node_unaccounted_and_is_not_charged(
    changes: dict[str, Any], word: str
) -> None:
    snapshot = parsed(entry(**changes), entry(name="beta:1b", digest="b" * 64))
    bad, good = snapshot.models
    assert snapshot.unaccounted
    assert not bad.readable
    assert bad.charge_bytes("unified") is None
    assert bad.charge_bytes("discrete") is None
    assert good.charge_bytes("unified") == 100
    (warning,) = snapshot.warnings
    assert warning.startswith("alpha:8b ")
    assert word in warning


def test_a_size_that_is_absent_is_not_nothing() -> None:
    lacking = entry()
    del lacking["size"]
    assert parsed(lacking).unaccounted


def test_the_largest_plausible_size_is_believed() -> None:
    snapshot = parsed(entry(size=MAX_SIZE_BYTES, size_vram=MAX_SIZE_BYTES))
    assert not snapshot.unaccounted
    assert snapshot.models[0].charge_bytes("unified") == MAX_SIZE_BYTES


def test_a_size_written_as_a_float_is_read_as_the_whole_number_it_is() -> None:
    snapshot = parse_ps(b'{"models":[{"name":"a:1","size":6.65e9,"size_vram":6.65e9}]}')
    assert snapshot.models[0].size_bytes == 6_650_000_000
    assert snapshot.models[0].placement == "gpu"
    assert not snapshot.unaccounted


@pytest.mark.parametrize(
    "bad", [None, 7, "alpha", [], {}, {"name": ""}, {"name": " "}, {"name": 3, "size": 1}]
)
def test_an_entry_without_a_name_shows_the_others_and_makes_the_node_unaccounted(bad: Any) -> None:
    snapshot = parsed(bad, entry())
    assert [model.name for model in snapshot.models] == ["alpha:8b"]
    assert snapshot.unaccounted
    assert len(snapshot.warnings) == 1


def test_the_member_model_stands_in_for_an_empty_name() -> None:
    assert parsed(entry(name="", model="beta:1b")).models[0].name == "beta:1b"


def test_identical_entries_are_one_runner() -> None:
    snapshot = parsed(entry(), entry(), entry(digest="b" * 64))
    assert [model.digest for model in snapshot.models] == ["a" * 64, "b" * 64]
    assert not snapshot.unaccounted


@pytest.mark.parametrize(
    ("size", "vram", "placement", "unified", "discrete"),
    [
        (100, 100, "gpu", 100, 100),
        (100, 40, "partial", 100, 40),
        (100, 0, "cpu", 100, 0),
        (40, 100, "unknown", 100, 100),
        (0, 100, "unknown", 100, 100),
    ],
)
def test_placement_and_charge_follow_both_sizes(
    size: int, vram: int, placement: str, unified: int, discrete: int
) -> None:
    (model,) = parsed(entry(size=size, size_vram=vram)).models
    assert model.placement == placement
    assert model.charge_bytes("unified") == unified
    assert model.charge_bytes("discrete") == discrete


@pytest.mark.parametrize(
    ("text", "at_ms", "forever"),
    [
        ("2026-08-20T12:05:12Z", 1787227512000, False),
        ("2026-08-20T14:05:12.817827822+02:00", 1787227512817, False),
        ("2024-05-20T09:15:01.123456-07:00", 1716221701123, False),
        ("2318-11-30T20:21:41.5Z", 11010630101500, True),
        ("0001-01-01T00:00:00Z", None, False),
        ("2026-02-30T00:00:00Z", None, False),
        ("2026-08-20T12:05:12+99:00", None, False),
        ("in four minutes", None, False),
        (1787227512, None, False),
        (None, None, False),
    ],
)
def test_an_expiry_is_read_or_unknown_and_never_spoils_the_entry(
    text: Any, at_ms: int | None, forever: bool
) -> None:
    snapshot = parsed(entry(expires_at=text))
    (model,) = snapshot.models
    assert model.expires_at_ms == at_ms
    assert model.keeps_forever is forever
    assert (model.expires_at is None) == (at_ms is None)
    assert not snapshot.unaccounted


@pytest.mark.parametrize(
    ("value", "context"),
    [(4096, 4096), (0, None), (-1, None), ("4096", None), (True, None), (2**31, None)],
)
def test_a_context_length_is_known_or_unknown_never_a_default(
    value: Any, context: int | None
) -> None:
    assert parsed(entry(context_length=value)).models[0].context_length == context


@pytest.mark.parametrize(
    ("value", "digest"),
    [("A" * 64, "a" * 64), ("sha256:" + "b" * 64, "b" * 64), ("", None), (None, None), (7, None)],
)
def test_a_digest_is_compared_bare_and_in_lower_case(value: Any, digest: str | None) -> None:
    assert parsed(entry(digest=value)).models[0].digest == digest


def test_a_name_that_old_servers_let_through_equals_no_roster_model() -> None:
    (model,) = parsed(entry(name="a/b/c/d:e")).models
    assert model.readable
    assert model.key == "a/b/c/d:e"
