"""One request and its client: what counts as begun, and what is still told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aibs.codec import loads
from aibs.gateway.context import ANYBODY
from aibs.gateway.exchange import Exchange
from tests.integration.in_loop import in_loop


class Client:
    """What a server took for a client; `cancelled` says how many messages it was cut off at."""

    def __init__(self, cancelled: int = 0) -> None:
        self.messages: list[Any] = []
        self._cancelled = cancelled

    async def send(self, message: Any) -> None:
        if self._cancelled:
            self._cancelled -= 1
            raise asyncio.CancelledError
        self.messages.append(message)

    def exchange(self, format_: Any = "ndjson") -> Exchange:
        return Exchange(self.send, "/api/chat", "llama3:8b", format_, ANYBODY, stall_s=5)


@in_loop
async def test_a_head_that_was_cut_off_before_it_was_written_is_no_beginning() -> None:
    client = Client(cancelled=1)
    exchange = client.exchange()
    with pytest.raises(asyncio.CancelledError):
        await exchange.tell_place(3, "no_slot")
    assert not exchange.started
    await exchange.fail("The gateway is stopping.", "shutting_down", 503, retry_after_ms=1000)
    head, body = client.messages
    assert (head["type"], head["status"]) == ("http.response.start", 503)
    assert loads(body["body"])["reason"] == "shutting_down"


@in_loop
async def test_a_head_goes_with_the_first_of_its_body_and_once() -> None:
    client = Client()
    exchange = client.exchange()
    await exchange.tell_place(3, "no_slot")
    await exchange.tell_place(2, "no_slot")
    await exchange.fail("The gateway is stopping.", "shutting_down", 503)
    assert [message["type"] for message in client.messages] == [
        "http.response.start",
        *["http.response.body"] * 3,
    ]
    assert exchange.status == 200
