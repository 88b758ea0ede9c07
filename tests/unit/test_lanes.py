"""What a request may name, and which workers that finds."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from aibs.codec import loads
from aibs.fleet import Fleet, Node, Worker
from aibs.lanes import LANES_MAX, UNMEASURED, lane_arguments, lane_name, lanes_of

GB = 10**9
KEY = "registry.ollama.ai/library/llama3:8b"


def worker(worker_id: str, model: str, *roles: str, measured: bool = True, **more: Any) -> Worker:
    weight = 7 * GB if measured else None
    billions = Decimal("8.03") if measured else None
    return Worker(
        worker_id,
        model,
        roles,
        resident_weight_bytes=weight,
        active_parameter_billions=billions,
        **more,
    )


def node(node_id: str, budget: int | None = 90 * GB, slots: int = 1) -> Node:
    return Node(node_id, f"http://{node_id}:11434", budget, slots)


def fleet(*workers: Worker, affinity: dict[str, tuple[str, ...]] | None = None) -> Fleet:
    nodes = (node("box-c"), node("box-e", 104 * GB))
    return Fleet(nodes=nodes, workers=workers, affinity=affinity or {})


def ids(fleet: Fleet, name: str) -> list[str]:
    lanes = lanes_of(fleet)[name]
    assert not isinstance(lanes, str)
    return [lane.worker_id for lane in lanes]


def test_a_lane_is_found_by_model_by_role_and_by_both() -> None:
    assert lane_name(KEY, None) == f"m|{KEY}"
    assert lane_name(None, "chat") == "r|chat"
    assert lane_name(KEY, "chat") == f"mr|{KEY}|chat"
    found = lanes_of(fleet(worker("w", "llama3:8b", "chat")))
    assert set(found) == {f"m|{KEY}", "r|chat", f"mr|{KEY}|chat"}


def test_a_request_that_names_nothing_has_no_lane() -> None:
    with pytest.raises(ValueError, match="names a model, a role, or both"):
        lane_name(None, None)


def test_a_role_is_served_by_each_of_its_workers_in_the_order_of_their_ids() -> None:
    found = fleet(worker("b", "b:1", "chat"), worker("a", "a:1", "chat"), worker("c", "c:1", "sum"))
    assert ids(found, "r|chat") == ["a", "b"]
    assert ids(found, "r|sum") == ["c"]


def test_a_role_named_twice_by_a_worker_is_one_lane() -> None:
    assert ids(fleet(worker("w", "llama3:8b", "chat", "chat")), "r|chat") == ["w"]


def test_a_model_alone_finds_one_worker_and_a_role_no_more_than_the_bound() -> None:
    many = fleet(*(worker(f"w{number:02}", "llama3:8b", "chat") for number in range(12)))
    assert ids(many, f"m|{KEY}") == ["w00"]
    assert len(ids(many, "r|chat")) == LANES_MAX


def test_unmeasured_workers_are_passed_over_and_a_lane_of_none_else_says_so() -> None:
    mixed = fleet(worker("a", "a:1", "chat", measured=False), worker("b", "b:1", "chat"))
    assert ids(mixed, "r|chat") == ["b"]
    alone = fleet(worker("a", "llama3:8b", "chat", measured=False))
    assert lanes_of(alone)["r|chat"] == UNMEASURED


def test_affinity_binds_a_role_to_its_nodes_and_leaves_the_other_roles_free() -> None:
    bound = fleet(worker("w", "llama3:8b", "chat", "sum"), affinity={"chat": ("box-c",)})
    lanes = lanes_of(bound)
    chat, free = lanes["r|chat"][0], lanes["r|sum"][0]
    assert not isinstance(chat, str)
    assert not isinstance(free, str)
    assert (chat.nodes, chat.most) == (("box-c",), 90 * GB)
    assert (free.nodes, free.most) == (None, 104 * GB)


def test_a_node_without_slots_or_budget_promises_no_memory() -> None:
    nodes = (node("box-c", 90 * GB), node("big", 500 * GB, 0), node("unsaid", None))
    lane = lanes_of(Fleet(nodes=nodes, workers=(worker("w", "llama3:8b", "chat"),)))["r|chat"][0]
    assert not isinstance(lane, str)
    assert lane.most == 90 * GB


def test_the_scripts_get_whole_numbers_and_the_text_that_a_lease_takes_over() -> None:
    arguments = lane_arguments(fleet(worker("w", "llama3:8b", "chat")))
    named = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert list(named) == sorted(named)
    (document,) = loads(named[b"r|chat"])
    assert (document["weight"], document["params"]) == (7 * GB, 8030)
    assert "nodes" not in document, "absent: every node"
    assert loads("{" + document["text"] + "}") == {
        "key": KEY,
        "model": "llama3:8b",
        "worker_id": "w",
    }
