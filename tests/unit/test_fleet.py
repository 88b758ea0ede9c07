"""The fleet's identity, and Ollama's names."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibs.fleet import Fleet, InvalidFleetDocument, InvalidNodeUrl, Node, Worker, normalise_url
from aibs.model_names import InvalidModelName, comparison_key, parse

NODES = (Node("box-c", "http://c:1", 90, 1), Node("box-e", "http://e:1", 104, 1, "discrete"))
WORKERS = (
    Worker("a", "llama3:8b", ("x", "y"), resident_weight_bytes=7, num_ctx=4096),
    Worker("b", "m", (), "embedding", active_parameter_billions=Decimal("0.10"), keep_alive="5m"),
)
NAMES = Path(__file__).parents[1] / "data" / "names.tsv"


def test_order_does_not_change_the_fingerprint_and_content_does() -> None:
    fleet = Fleet(1, NODES, WORKERS, {"x": ("box-c", "box-e")})
    shuffled = Fleet(2, NODES[::-1], WORKERS[::-1], {"x": ("box-e", "box-c")})
    assert fleet.fingerprint == shuffled.fingerprint, "nor does the revision"
    moved = Fleet(1, (Node("box-c", "http://c:2", 90, 1), NODES[1]), WORKERS, fleet.affinity)
    assert moved.fingerprint != fleet.fingerprint


def test_a_fleet_comes_back_from_its_document() -> None:
    fleet = Fleet(3, NODES, WORKERS, {"x": ("box-c",)})
    again = Fleet.from_document(fleet.document())
    assert (again.fingerprint, again.revision) == (fleet.fingerprint, 3)
    assert [node.node_id for node in again.allowed_nodes(WORKERS[0])] == ["box-c", "box-e"]


@pytest.mark.parametrize("document", [{}, {"revision": 0}, {"nodes": [1]}, {"revision": "1"}])
def test_a_document_that_is_no_fleet_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InvalidFleetDocument):
        Fleet.from_document(document)


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        ("HTTP://Box-C:80/", "http://box-c"),
        ("https://a:443", "https://a"),
        ("http://a:11434/n/1/", "http://a:11434/n/1"),
        ("http://[::1]:11434", "http://[::1]:11434"),
    ],
)
def test_one_node_has_one_spelling(raw: str, normal: str) -> None:
    assert normalise_url(raw) == normal
    assert normalise_url(normal) == normal


@pytest.mark.parametrize(
    "raw", ["", "box", "ftp://a", "http://", "http://u:p@a", "http://a?x", "http://a b", "http://é"]
)
def test_what_is_no_url_of_a_node_is_refused_without_its_password(raw: str) -> None:
    with pytest.raises(InvalidNodeUrl) as raised:
        normalise_url(raw)
    assert "u:p" not in str(raised.value)


def _rows() -> list[list[str]]:
    with NAMES.open(encoding="utf-8") as file:
        return [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row]


def test_the_table_of_names_is_read() -> None:
    assert len(_rows()) > 20


@given(st.text(max_size=60))
def test_any_text_is_a_name_with_a_stable_key_or_is_refused(text: str) -> None:
    try:
        name = parse(text)
    except InvalidModelName:
        return
    assert parse(name.display).key == name.key == comparison_key(name.display.upper())
