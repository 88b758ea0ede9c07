"""Every script again after its answer was lost: done once, answered the same."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from aibs.errors import OutcomeUnknown
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.eventstore.replies import Elected
from aibs.eventstore.scripts import packaged, script_names
from tests.integration.in_loop import in_loop
from tests.integration.test_placement_lost_replies import PLACEMENT_CALLS
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.valkey_server import ValkeyServer

TTL_MS = 60_000
FINGERPRINT = "f" * 64
DOCUMENT = (
    b'{"nodes":[{"node_id":"box-c","base_url":"http://box-c:1","vram_budget_bytes":90000000000,'
    b'"max_parallel_requests":1,"memory":"unified"}],"workers":[],"affinity":{}}'
)
LIMITS = ObserveLimits(2, 20_000, 30_000, 1_000, 60_000)
OWNER = "host:1:monitor:aa"


def _poll(fence: int) -> PollRecord:
    return PollRecord(
        "box-c", fence, 1, "http://box-c:1", 5, True, "", 3, False, b"[]", b'{"seen":true}'
    )


CALLS: dict[str, Callable[[CoordinationPool, int], Awaitable[Any]]] = {
    "open": lambda pool, _: pool.open(),
    "elect": lambda pool, _: pool.elect("second", OWNER, ttl_ms=TTL_MS, mono_ms=1),
    "renew": lambda pool, fence: pool.renew(OWNER, fence, ttl_ms=TTL_MS, mono_ms=1),
    "resign": lambda pool, fence: pool.resign(OWNER, fence),
    "declare": lambda pool, fence: pool.declare(
        OWNER, fence, revision=0, fingerprint=FINGERPRINT, document=DOCUMENT, changes=b"[]"
    ),
    "observe": lambda pool, fence: pool.observe(OWNER, fence, FINGERPRINT, [_poll(fence)], LIMITS),
    "close": lambda pool, _: pool.close_cleanly(),
}
EVENTS = {
    "open": [],
    "elect": ["OwnerElected"],
    "renew": [],
    "resign": ["OwnerResigned"],
    "declare": ["FleetDeclared"],
    "observe": ["ResidencyObserved"],
    "close": ["PoolClosed"],
}
WITHOUT_A_TERM = ("elect", "close")
KEEPING_CALLS = {"snapshot_part", "snapshot", "trim"}
"""Drilled in test_snapshots and test_retention, where there is something to keep."""


def test_no_script_is_missing_from_the_drill() -> None:
    assert set(CALLS) == set(EVENTS)
    assert set(CALLS) | set(PLACEMENT_CALLS) | KEEPING_CALLS == set(script_names())


@pytest.mark.parametrize("script", sorted(CALLS))
def test_a_script_repeated_after_a_lost_reply_is_done_once(
    script: str, own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    @in_loop
    async def drill() -> None:
        async with TcpProxy(own_valkey.port) as proxy:
            client = commands(await open_client(proxy.url, data_dir=tmp_path, purpose="write"))
            pool = CoordinationPool(client, Keys("drill"), OWNER, recovery_ms=1)
            fence = await _before(script, pool)
            log = Log(client, Keys("drill"))
            before = await log.length()
            # Else the answer that is lost would be the one that asks for the script's text.
            with contextlib.closing(own_valkey.client()) as plain:
                plain.script_load(packaged(script, plain.info("server")["run_id"]).text)
            proxy.mode = "drop_replies"
            with pytest.raises(OutcomeUnknown):
                await CALLS[script](pool, fence)
            assert proxy.replies_dropped == 1
            proxy.mode = "pass"
            again = await CALLS[script](pool, fence)
            if script == "observe":
                assert again.words == ("duplicate",)
            elif script == "declare":
                assert again.word == "unchanged"
            elif isinstance(again, Elected):
                assert again.fence == fence + 1
            events = await log.newest(100)
            assert [event.type for event in events[before:]] == EVENTS[script]
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            await client.aclose()

    drill()


async def _before(script: str, pool: CoordinationPool) -> int:
    """The pool as the script needs it. Returns the fence of the term, or of the last one."""
    term = await pool.elect("first", OWNER, ttl_ms=TTL_MS, mono_ms=1)
    assert isinstance(term, Elected)
    if script == "observe":
        await CALLS["declare"](pool, term.fence)
    if script in WITHOUT_A_TERM:
        await pool.resign(OWNER, term.fence)
    return term.fence


@in_loop
async def test_scripts_lost_by_the_server_are_loaded_again(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    client = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="write"))
    pool = CoordinationPool(client, Keys("drill"), OWNER, recovery_ms=1)
    term = await pool.elect("first", OWNER, ttl_ms=TTL_MS, mono_ms=1)
    assert isinstance(term, Elected)
    plain = own_valkey.client()
    plain.script_flush()
    await pool.renew(OWNER, term.fence, ttl_ms=TTL_MS, mono_ms=1)
    sha = packaged("renew", plain.info("server")["run_id"]).sha
    assert plain.script_exists(sha) == [True]
    plain.close()
    await client.aclose()


@in_loop
async def test_scripts_that_keep_a_term_alive_run_on_a_full_server(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    client = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="write"))
    pool = CoordinationPool(client, Keys("drill"), OWNER, recovery_ms=1)
    term = await pool.elect("first", OWNER, ttl_ms=TTL_MS, mono_ms=1)
    assert isinstance(term, Elected)
    await CALLS["declare"](pool, term.fence)
    plain = own_valkey.client()
    plain.config_set("maxmemory", 1)
    for script in ("renew", "observe", "resign"):
        await CALLS[script](pool, term.fence)
    plain.config_set("maxmemory", 0)
    plain.close()
    await client.aclose()


@in_loop
async def test_concurrent_elections_have_one_winner(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    client = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="write"))
    pools = [
        CoordinationPool(client, Keys("drill"), f"h:{number}", recovery_ms=1)
        for number in range(20)
    ]
    answers = await asyncio.gather(
        *(pool.elect("a", f"h:{n}", ttl_ms=TTL_MS, mono_ms=1) for n, pool in enumerate(pools))
    )
    assert sum(isinstance(answer, Elected) for answer in answers) == 1
    await client.aclose()
