"""The client towards the nodes by itself: what came is given, whatever happens behind it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from aibs.gateway.failures import NodeFailure
from aibs.gateway.limits import Limit
from aibs.gateway.upstream import Upstream, forwarded
from tests.gateway_world import Play, RawNode, chunked, head
from tests.integration.in_loop import in_loop, until

if TYPE_CHECKING:
    from aibs.gateway.upstream import NodeResponse

START: Final = head(content_type="application/x-ndjson", transfer_encoding="chunked")
SENT: Final = [b"x" * 30_000, b"y" * 30_000]
SILENCE_S: Final = 5.0


async def read_into(found: bytearray, response: NodeResponse) -> None:
    """What comes, to its end or its failure."""
    chunk = response.first
    while chunk:
        found += chunk
        chunk = await response.next_chunk(SILENCE_S)


@pytest.mark.parametrize("then", ["close", "reset"])
@in_loop
async def test_what_came_before_a_break_is_given_to_a_reader_that_was_busy_meanwhile(
    then: str,
) -> None:
    async with RawNode(["m"], 1) as node, Upstream(connect_s=5) as upstream:
        node.plays(
            Play((START, *chunked(SENT, end=False), b""), "reset", paced=True)
            if then == "reset"
            else Play((START, *chunked(SENT, end=False)))
        )
        limit = Limit()
        opened = upstream.answer(
            "box", "POST", f"{node.url}/x", forwarded(()), b"{}", limit, first_byte_s=5
        )
        node.permit(2)
        async with opened as response:
            node.permit(2)
            content = response._raw.content
            await until(lambda: content.total_bytes >= 60_000)
            node.permit()
            # The break is known, and its reader has not looked since.
            await until(lambda: content.exception() is not None)
            found = bytearray()
            with pytest.raises(NodeFailure) as told:
                await read_into(found, response)
        limit.close()
    assert found == b"".join(SENT)
    assert told.value.kind == "truncated"


@in_loop
async def test_an_answer_that_is_left_early_closes_its_connection() -> None:
    async with RawNode(["m"], 1) as node, Upstream(connect_s=5) as upstream:
        node.plays(Play((START, *chunked(SENT, end=False)), "hold"))
        limit = Limit()
        async with upstream.answer(
            "box", "POST", f"{node.url}/x", forwarded(()), b"{}", limit, first_byte_s=5
        ):
            assert not node.calls[0].gone.is_set()
        await until(node.calls[0].gone.is_set)
        limit.close()


@in_loop
async def test_a_limit_ends_with_the_answer_that_it_was_for() -> None:
    async with RawNode(["m"], 1) as node, Upstream(connect_s=0.05) as upstream:
        node.plays(Play((head("503 Service Unavailable", content_length="0"),)))
        limit = Limit()
        async with upstream.answer(
            "box", "POST", f"{node.url}/x", forwarded(()), b"{}", limit, first_byte_s=0.05
        ) as response:
            assert response.status == 503
        # What follows, such as a wait for another node, is not cut short.
        await asyncio.sleep(0.2)
        limit.close()
