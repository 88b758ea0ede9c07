"""Ollama's names: the whole table, the lengths, and what any text does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibs.model_names import InvalidModelName, ModelName, comparison_key, parse, parse_reference

NAMES = Path(__file__).parents[1] / "data" / "names.tsv"
TRICKY = st.text(st.sampled_from("aZ0_-.:/@ \\é\n"), max_size=30)


def _rows() -> list[tuple[str, str, str]]:
    rows = []
    for line in NAMES.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            raw, plain, reference = line.split("\t")
            rows.append((ast.literal_eval(raw), plain, reference))
    return rows


def _plain(raw: str) -> str:
    try:
        return parse(raw).display
    except InvalidModelName:
        return "INVALID"


def _reference(raw: str) -> str:
    try:
        found = parse_reference(raw)
    except InvalidModelName:
        return "INVALID"
    source = "" if found.source == "any" else f" source={found.source}"
    return f"{found.name.display}{source}"


def test_the_table_is_all_there() -> None:
    assert len(_rows()) == 34


@pytest.mark.parametrize(("raw", "plain", "_"), _rows())
def test_a_name_of_the_table_reads_as_every_ollama_reads_it(raw: str, plain: str, _: str) -> None:
    assert _plain(raw) == plain


@pytest.mark.parametrize(("raw", "_", "reference"), _rows())
def test_a_reference_of_the_table_reads_as_since_0_18(raw: str, _: str, reference: str) -> None:
    assert _reference(raw) == reference


@pytest.mark.parametrize(
    "same",
    [
        ("llama3", "LLAMA3:Latest", "library/llama3", "https://registry.ollama.ai/library/llama3"),
        ("hf.co/Org/Repo:Q4", "HF.CO/org/repo:q4"),
        ("host:5000/a/b", "http://HOST:5000/A/B:latest"),
    ],
)
def test_names_of_one_model_have_one_key(same: tuple[str, ...]) -> None:
    assert len({comparison_key(name) for name in same}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hf.co/a/b", "huggingface.co/a/b"),
        ("llama3", "llama3:8b"),
        ("a/llama3", "b/llama3"),
        ("ollama.com/library/llama3", "llama3"),
    ],
)
def test_names_of_different_models_have_different_keys(one: str, other: str) -> None:
    assert comparison_key(one) != comparison_key(other)


@pytest.mark.parametrize(
    ("longest", "too_long"),
    [
        ("m" * 80, "m" * 81),
        ("m:" + "t" * 80, "m:" + "t" * 81),
        ("n" * 80 + "/m", "n" * 81 + "/m"),
        ("h" * 350 + "/n/m", "h" * 351 + "/n/m"),
    ],
)
def test_each_part_has_its_longest(longest: str, too_long: str) -> None:
    assert parse(longest)
    with pytest.raises(InvalidModelName):
        parse(too_long)


@pytest.mark.parametrize(
    "raw",
    [
        *("/llama3", "localhost:5000/m", "my.user/model", "llamá3", "llama3@sha256:abc"),
        *("a\n", "//m", "a//b", "://m", "\u0130", "\u212a", "http://m", "http://ns/m"),
    ],
)
def test_what_ollama_calls_invalid_has_no_key(raw: str) -> None:
    with pytest.raises(InvalidModelName):
        comparison_key(raw)


def test_a_digest_is_a_name_with_a_tag_and_no_lookup() -> None:
    assert parse("sha256:" + "a" * 64).model == "sha256"


def test_the_case_as_written_is_kept_for_the_request() -> None:
    assert parse("Org/Repo:Q4") == ModelName("registry.ollama.ai", "Org", "Repo", "Q4")


@pytest.mark.parametrize("raw", ["m:8b-cloud:local", "m:cloud:cloud", "m:local:cloud", "m::cloud"])
def test_a_source_named_twice_is_refused(raw: str) -> None:
    with pytest.raises(InvalidModelName):
        parse_reference(raw)


@given(st.one_of(st.text(max_size=60), TRICKY))
def test_any_text_is_a_name_with_a_stable_key_or_is_refused_in_a_clause(text: str) -> None:
    try:
        name = parse(text)
    except InvalidModelName as error:
        refusal: str | None = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert refusal.isprintable()
        return
    assert parse(name.display).key == name.key == comparison_key(name.display.upper())
    assert re.fullmatch(r"[!-~]+/[!-~]+/[!-~]+:[!-~]+", name.key)
    assert name.key == name.key.lower()


@given(st.one_of(st.text(max_size=60), TRICKY))
def test_any_text_is_a_reference_or_is_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InvalidModelName:
        return
    assert parse(reference.name.display) is not None
    if reference.source == "any":
        assert reference.name == parse(text.strip())
