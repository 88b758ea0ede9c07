"""What a node is sent under a lease: the body as it came, or another one on a route of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from aibs.codec import dumps_in_order, loads
from aibs.gateway.asked import format_of
from aibs.gateway.bodies import BadBody
from aibs.gateway.context import ANYBODY
from aibs.gateway.exchange import Exchange
from aibs.gateway.job import Job
from aibs.gateway.targets import Target
from tests.placement_desk import WORKER

if TYPE_CHECKING:
    from aibs.fleet import Worker

CHAT: Final = "/v1/chat/completions"
OTHER: Final = replace(WORKER, num_ctx=None, keep_alive=None)
OWN: Final = replace(WORKER, num_ctx=8192, keep_alive="30m")
BODY: Final[dict[str, Any]] = {"model": "As:Typed", "messages": [{"role": "user", "content": "hi"}]}
BAD: Final = {**BODY, "stop": 1}


async def nowhere(message: Any) -> None:
    """No test here sends anything."""


def job(
    path: str = CHAT,
    body: dict[str, Any] = BODY,
    workers: tuple[Worker, ...] = (OWN,),
    spelled: str | None = "As:Typed",
) -> Job:
    async def made() -> Exchange:
        # Its limits belong to a task.
        return Exchange(nowhere, path, "As:Typed", format_of(body, "asked"), ANYBODY, stall_s=1)

    target = Target(None, "answer", workers, spelled)
    native = path.startswith("/api/")
    exchange = asyncio.run(made())
    return Job(exchange, target, body, dumps_in_order(body), native, {}, "normal", 1, False)


def test_a_worker_without_a_context_gets_the_very_bytes() -> None:
    asked = job(body=BAD, workers=(OTHER,))
    asked.require_carried()
    sending = asked.sending_to(OTHER, "model")
    assert (sending.path, sending.answer) == (CHAT, None)
    assert sending.body is asked.raw


def test_a_worker_with_a_context_is_asked_with_it_on_the_native_route() -> None:
    sending = job().sending_to(OWN, "model")
    assert sending.path == "/api/chat"
    sent = loads(sending.body)
    assert (sent["options"]["num_ctx"], sent["keep_alive"]) == (8192, "30m")
    assert sending.answer is not None


def test_ollama_s_own_routes_are_never_translated() -> None:
    sending = job("/api/chat").sending_to(OWN, "model")
    assert (sending.path, sending.answer) == ("/api/chat", None)


@pytest.mark.parametrize(("spelled", "told"), [("As:Typed", "As:Typed"), (None, "model")])
def test_the_model_is_named_as_the_client_named_it_where_a_node_can_read_that(
    spelled: str | None, told: str
) -> None:
    sending = job(spelled=spelled).sending_to(OWN, "model")
    assert loads(sending.body)["model"] == told
    assert sending.answer is not None
    assert sending.answer.whole({"message": {}, "done": True})["model"] == told


def test_what_no_worker_can_be_asked_is_refused_before_there_is_a_lease() -> None:
    with pytest.raises(BadBody, match="stop"):
        job(body=BAD).require_carried()


def test_what_one_of_several_workers_can_be_asked_is_refused_only_by_the_others() -> None:
    asked = job(body=BAD, workers=(OWN, OTHER))
    asked.require_carried()
    assert asked.sending_to(OTHER, "model").body == asked.raw
    with pytest.raises(BadBody, match="stop"):
        asked.sending_to(OWN, "model")


def test_each_attempt_begins_its_answer_anew() -> None:
    asked = job()
    first, second = (asked.sending_to(OWN, "model") for _ in range(2))
    assert first.answer is not second.answer
    assert first.body == second.body


def test_whether_a_stream_is_read_follows_the_request() -> None:
    assert not job().sending_to(OWN, "model").streams
    assert job(body={**BODY, "stream": True}).sending_to(OWN, "model").streams
