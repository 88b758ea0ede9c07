"""What a request asks for: a model of the roster under any of its names, a role, or nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from aibs.fleet import Fleet
from aibs.gateway.targets import NoTarget, Targets
from tests.placing import FLEET, WORKER

BIG: Final = replace(WORKER, worker_id="big", model="hf.co/Org/Big:Q4", roles=("chat", "deep"))
TWIN: Final = replace(WORKER, worker_id="twin", roles=("code", "code"))
NAMED: Final = replace(WORKER, worker_id="named", model="aibs/own", roles=())
ROSTER: Final = Fleet(nodes=FLEET.nodes, workers=(WORKER, BIG, TWIN, NAMED))
TARGETS: Final = Targets(ROSTER)


def workers(model: Any, role: str | None = None) -> tuple[str | None, str | None, list[str]]:
    target = TARGETS.find(model, role)
    return target.model, target.role, [worker.worker_id for worker in target.workers]


@pytest.mark.parametrize(
    "name", ["llama3:8b", "LLAMA3:8B", "library/llama3:8b", "registry.ollama.ai/library/llama3:8b"]
)
def test_a_model_is_found_by_every_name_of_it_and_called_as_the_client_calls_it(name: str) -> None:
    target = TARGETS.find(name, None)
    assert (target.model, target.role, target.spelled) == ("llama3:8b", None, name)
    assert [worker.worker_id for worker in target.workers] == ["w1", "twin"]


@pytest.mark.parametrize("name", [" llama3:8b", "llama3:8b:local", "llama3:8b\n"])
def test_a_name_that_old_servers_do_not_know_is_called_as_the_roster_has_it(name: str) -> None:
    target = TARGETS.find(name, None)
    assert (target.model, target.spelled) == ("llama3:8b", None)


def test_a_role_is_asked_for_by_header_by_name_and_by_both() -> None:
    chat = (None, "chat", ["w1", "big"])
    assert workers(None, "chat") == chat
    assert workers("", "chat") == chat
    for name in ("aibs/chat", "AIBS/chat", "aibs/chat:latest"):
        assert workers(name) == chat
        assert workers(name, "chat") == chat
    assert workers("llama3:8b", "code") == ("llama3:8b", "code", ["twin"])
    assert workers("hf.co/org/big:q4", "deep") == ("hf.co/Org/Big:Q4", "deep", ["big"])
    assert TARGETS.roles["code"] == (TWIN,)


def test_a_model_of_the_roster_goes_before_a_role_of_its_name() -> None:
    assert workers("aibs/own") == ("aibs/own", None, ["named"])


@pytest.mark.parametrize(
    ("model", "role", "status", "reason"),
    [
        (None, None, 400, "bad_request"),
        ("", None, 400, "bad_request"),
        (5, None, 400, "bad_request"),
        (["llama3:8b"], "chat", 400, "bad_request"),
        ("llama3", None, 404, "unknown_model"),
        ("llama3:8b", "deep", 404, "unknown_model"),
        ("llama3:8b", "nobody", 404, "unknown_model"),
        (None, "nobody", 404, "unknown_model"),
        ("aibs/nobody", None, 404, "unknown_model"),
        ("aibs/", None, 400, "bad_request"),
        ("aibs/chat", "code", 404, "unknown_model"),
        ("llama3:8b-cloud", None, 404, "unknown_model"),
        ("llama3:8b:cloud", None, 404, "unknown_model"),
        ("a/b/c/d", None, 400, "bad_request"),
        ("llama 3", None, 400, "bad_request"),
        ("x" * 500, None, 400, "bad_request"),
        ("\ud800", None, 400, "bad_request"),
    ],
)
def test_what_is_not_in_the_roster_is_told_with_its_status(
    model: Any, role: str | None, status: int, reason: str | None
) -> None:
    with pytest.raises(NoTarget) as told:
        TARGETS.find(model, role)
    assert (told.value.status, told.value.reason) == (status, reason)
    assert len(str(told.value)) < 400
