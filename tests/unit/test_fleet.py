"""The fleet's identity, its document, and one spelling for each node's URL."""

from __future__ import annotations

import copy
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibs.codec import dumps, loads
from aibs.errors import ConfigurationError
from aibs.fleet import Fleet, InvalidFleetDocument, InvalidNodeUrl, Node, Worker, normalise_url
from aibs.settings import load

NODES = (
    Node("box-c", "http://c:1", 90, 1),
    Node("box-e", "http://e:1", 104, 1, "discrete"),
    Node("box-g", "https://g/base", None, None),
)
WORKERS = (
    Worker("a", "llama3:8b", ("x", "y"), resident_weight_bytes=7, num_ctx=4096),
    Worker("b", "m", (), "embedding", active_parameter_billions=Decimal("0.10"), keep_alive="5m"),
    Worker("c", "M:latest", ("z",), keep_alive=-1),
)
FLEET = Fleet(3, NODES, WORKERS, {"x": ("box-c", "box-e"), "z": ("box-g",)})


def test_order_does_not_change_the_fingerprint() -> None:
    for nodes in permutations(NODES):
        for workers in permutations(WORKERS):
            other = Fleet(3, nodes, workers, {"z": ("box-g",), "x": ("box-e", "box-c")})
            assert other.fingerprint == FLEET.fingerprint
            assert dumps(other.document()) == dumps(FLEET.document())
    roles = Worker("a", "llama3:8b", ("y", "x"), resident_weight_bytes=7, num_ctx=4096)
    assert Fleet(3, NODES, (roles, *WORKERS[1:]), FLEET.affinity).fingerprint == FLEET.fingerprint


def test_neither_the_revision_nor_the_zeros_of_a_number_change_the_fingerprint() -> None:
    zeros = Worker("b", "m", (), "embedding", None, Decimal("0.1"), None, "5m")
    other = Fleet(9, NODES, (WORKERS[0], zeros, WORKERS[2]), FLEET.affinity)
    assert other.fingerprint == FLEET.fingerprint
    assert other.document()["revision"] == 9


@pytest.mark.parametrize(
    ("part", "place", "name", "value"),
    [
        ("nodes", 0, "node_id", "box-x"),
        ("nodes", 0, "base_url", "http://c:2"),
        ("nodes", 0, "vram_budget_bytes", 91),
        ("nodes", 0, "vram_budget_bytes", None),
        ("nodes", 0, "max_parallel_requests", 2),
        ("nodes", 0, "memory", "discrete"),
        ("workers", 0, "worker_id", "x"),
        ("workers", 0, "model", "llama3:70b"),
        ("workers", 0, "roles", ["x"]),
        ("workers", 0, "kind", "embedding"),
        ("workers", 0, "resident_weight_bytes", 8),
        ("workers", 0, "active_parameter_billions", "8"),
        ("workers", 0, "num_ctx", 8192),
        ("workers", 0, "keep_alive", 5),
    ],
)
def test_each_part_of_the_content_changes_the_fingerprint(
    part: str, place: int, name: str, value: object
) -> None:
    document = copy.deepcopy(FLEET.document())
    document[part][place][name] = value
    assert Fleet.from_document(document).fingerprint != FLEET.fingerprint


def test_the_affinity_changes_the_fingerprint() -> None:
    assert Fleet(3, NODES, WORKERS, {"x": ("box-c",)}).fingerprint != FLEET.fingerprint
    assert Fleet(3, NODES, WORKERS).fingerprint != FLEET.fingerprint


def test_a_fleet_comes_back_from_its_document_through_json() -> None:
    again = Fleet.from_document(loads(dumps(FLEET.document())))
    assert (again.fingerprint, again.revision) == (FLEET.fingerprint, 3)
    assert again.document() == FLEET.document()
    assert again.nodes == NODES
    assert {worker.worker_id: worker for worker in again.workers} == {
        worker.worker_id: worker for worker in WORKERS
    }
    empty = Fleet.from_document(loads(dumps(Fleet().document())))
    assert empty.fingerprint == Fleet().fingerprint


@given(
    st.decimals(Decimal("1e-9"), Decimal(10**6), places=9),
    st.integers(1, 2**50),
    st.one_of(st.none(), st.integers(-1, 10**9), st.just("5m")),
)
def test_any_numbers_of_a_worker_survive_the_document(
    billions: Decimal, weight_bytes: int, keep_alive: int | str | None
) -> None:
    worker = Worker("a", "m", (), "chat", weight_bytes, billions, 4096, keep_alive)
    (again,) = Fleet.from_document(loads(dumps(Fleet(0, (), (worker,)).document()))).workers
    assert again == worker


def test_the_document_holds_whole_numbers_and_text_only() -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        else:
            assert value is None or isinstance(value, int | str)
            assert not isinstance(value, bool)

    walk(FLEET.document())


@pytest.mark.parametrize("document", [{}, {"revision": 0}, {"nodes": [1]}, {"revision": "1"}])
def test_a_document_that_is_no_fleet_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InvalidFleetDocument):
        Fleet.from_document(document)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("nodes", "base_url", "ftp://c"),
        ("nodes", "base_url", None),
        ("nodes", "memory", "shared"),
        ("nodes", "vram_budget_bytes", 90.5),
        ("nodes", "vram_budget_bytes", "90"),
        ("nodes", "max_parallel_requests", True),
        ("workers", "model", "a b"),
        ("workers", "model", 7),
        ("workers", "kind", "speech"),
        ("workers", "roles", "answer"),
        ("workers", "roles", [1]),
        ("workers", "active_parameter_billions", "x"),
        ("workers", "num_ctx", 1.5),
    ],
)
def test_a_damaged_part_of_a_document_is_refused(part: str, name: str, value: object) -> None:
    document = copy.deepcopy(FLEET.document())
    document[part][0][name] = value
    with pytest.raises(InvalidFleetDocument, match="cannot be read"):
        Fleet.from_document(document)


def test_an_affinity_that_is_no_list_is_not_read_letter_by_letter() -> None:
    with pytest.raises(InvalidFleetDocument):
        Fleet.from_document({**FLEET.document(), "affinity": {"x": "box-c"}})


def test_a_worker_runs_where_one_of_its_roles_may() -> None:
    assert [node.node_id for node in FLEET.allowed_nodes(WORKERS[0])] == ["box-c", "box-e", "box-g"]
    assert [node.node_id for node in FLEET.allowed_nodes(WORKERS[1])] == ["box-c", "box-e", "box-g"]
    assert [node.node_id for node in FLEET.allowed_nodes(WORKERS[2])] == ["box-g"]
    assert [node.node_id for node in FLEET.nodes_for_role("x")] == ["box-c", "box-e"]


def test_workers_of_one_model_are_found_under_one_key() -> None:
    assert {
        key: [worker.worker_id for worker in workers]
        for key, workers in FLEET.workers_by_key.items()
    } == {
        "registry.ollama.ai/library/llama3:8b": ["a"],
        "registry.ollama.ai/library/m:latest": ["b", "c"],
    }


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        ("HTTP://Box-C:80/", "http://box-c"),
        ("https://a:443", "https://a"),
        ("https://a:80", "https://a:80"),
        ("http://a:443", "http://a:443"),
        ("  http://a:11434  ", "http://a:11434"),
        ("http://a:", "http://a"),
        ("http://a:011434", "http://a:11434"),
        ("http://a:11434/N/1/", "http://a:11434/N/1"),
        ("http://a//", "http://a"),
        ("http://[::1]:11434", "http://[::1]:11434"),
        ("http://[FE80::A]", "http://[fe80::a]"),
        ("http://a_b.example.", "http://a_b.example."),
    ],
)
def test_one_node_has_one_spelling(raw: str, normal: str) -> None:
    assert normalise_url(raw) == normal
    assert normalise_url(normal) == normal


@pytest.mark.parametrize(
    "raw",
    [
        *("", "box", "10.4.3.16:11434", "ftp://a", "//a", "http:/a", "http://", "http:///x"),
        *("http://u:Zq@a", "http://Zq@a", "http://u:1/Zq@a", "http://u:1?Zq@a", "http://u:Zq/x@a"),
        *("http://a?x", "http://a?", "http://a#x", "http://a#", "http://a b", "http://é"),
        *("http://a/é", "http://a\nb", "http://a:0", "http://a:65536", "http://a:x", "http://[::1"),
        *("http://a/\x1b[31m", "http://[]", "http://a,b"),
    ],
)
def test_what_is_no_url_of_a_node_is_refused_without_its_password(raw: str) -> None:
    with pytest.raises(InvalidNodeUrl) as raised:
        normalise_url(raw)
    assert "Zq" not in str(raised.value)
    assert str(raised.value).isprintable()


@given(st.text(max_size=40).map(lambda text: f"http://{text}"))
def test_any_text_is_a_url_in_its_normal_form_or_is_refused(raw: str) -> None:
    try:
        normal = normalise_url(raw)
    except InvalidNodeUrl:
        return
    assert normalise_url(normal) == normal
    assert not normal.endswith("/")


def test_two_spellings_of_one_server_are_one_url_to_the_settings() -> None:
    environ = {
        "AIBS_MODEL_CLUSTER_NODE_IDS": "a,b",
        "AIBS_MODEL_CLUSTER_NODE_URLS": "http://Box:80/,HTTP://box",
    }
    with pytest.raises(ConfigurationError, match="gives a and b one URL, http://box"):
        load(environ, None)
