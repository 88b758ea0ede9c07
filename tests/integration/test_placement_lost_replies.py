"""Every placement script again after its answer was lost: done once, told the same."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from aibs.codec import dumps
from aibs.errors import OutcomeUnknown
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool
from aibs.eventstore.scripts import packaged
from tests.integration.in_loop import in_loop
from tests.placed_fleet import LIMITS, ORDER, PlacedFleet, identity
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aibs.eventstore.replies import Answer
    from tests.valkey_server import ValkeyServer

Call = tuple[dict[str, Any], tuple[Any, ...]]


def _lease(placed: PlacedFleet) -> dict[str, Any]:
    lease: dict[str, Any] = placed.leases[0]
    return {
        "request_key": lease["request_key"],
        "lease_id": lease["lease_id"],
        "token": lease["token"],
    }


def _ask(placed: PlacedFleet, number: int, *, wait_ms: int) -> dict[str, Any]:
    return placed.acquire_arguments(number, wait_ms=wait_ms)


MEASURED = dumps(
    {
        "worker_id": "answer",
        "model": "llama3:8b",
        "node_id": "box-c",
        "size_bytes": 7,
        "size_vram_bytes": 7,
        "context_length": None,
        "ms": 1,
        "by": "op",
    }
)
PLACEMENT_CALLS: dict[str, Callable[[PlacedFleet], Call]] = {
    "admit": lambda placed: (placed.admit_arguments(7), ()),
    "acquire": lambda placed: (_ask(placed, 7, wait_ms=60_000), ()),
    "heartbeat": lambda placed: (
        {"holder": "holder", "known_fence": 0},
        (_lease(placed)["lease_id"], _lease(placed)["token"]),
    ),
    "leave": lambda placed: ({**_lease(placed), "outcome": "completed", "call_id": "one"}, ()),
    "release": lambda placed: (
        {**_lease(placed), "holder": "holder", "outcome": "failed", "call_id": "one", **ORDER},
        (),
    ),
    "reap": lambda _: (dict(ORDER), ()),
    "revoke": lambda placed: (
        {
            "by": "op",
            "why": "stuck",
            "lease_id": _lease(placed)["lease_id"],
            "force": "1",
            "heartbeat_ms": 1_000,
        },
        (),
    ),
    "cancel": lambda placed: (
        {"request_key": _lease(placed)["request_key"], "request_hash": "h", **ORDER},
        (),
    ),
    "refresh": lambda placed: (
        {"holder": "holder", "grace_ms": LIMITS.grace_ms, **ORDER},
        (_lease(placed)["request_key"],),
    ),
    "cordon": lambda _: ({"node_id": "box-c", "why": "work", "by": "op", "until_ms": 0}, ()),
    "uncordon": lambda _: ({"node_id": "box-e", "by": "op"}, ()),
    "trip": lambda _: ({"node_id": "box-c", "why": "resets", "by": "gateway"}, ()),
    "forget": lambda _: ({"node_id": "box-c", "by": "op"}, ()),
    "record": lambda _: ({"call_id": "call"}, (MEASURED,)),
    "acknowledge": lambda placed: ({"by": "op"}, (_lease(placed)["lease_id"],)),
    "session": lambda _: (
        {
            "holder": "new",
            "environment": "env",
            "host": "here",
            "boot_id": "b",
            "pid": 2,
            "pid_start": 2,
        },
        ("holder",),
    ),
    "model": lambda placed: (
        {
            "lease_id": _lease(placed)["lease_id"],
            "token": _lease(placed)["token"],
            "kind": "loading",
            "model": "small:7b",
            "ms": 0,
            "outcome": "ok",
        },
        (),
    ),
    "explain": lambda placed: ({"lane": placed.lane, "class": "normal", **ORDER}, ()),
    "reindex": lambda _: ({"apply": "1"}, ()),
}

EVENTS = {
    "admit": ["LeaseAcquired"],
    "acquire": ["LeaseQueued"],
    "heartbeat": ["LeasesRenewed"],
    "leave": ["LeaseReleased"],
    "release": ["LeaseReleased"],
    "reap": [],
    "revoke": ["LeaseRevoked"],
    "cancel": ["LeaseReleased"],
    "refresh": [],
    "cordon": ["NodeCordoned"],
    "uncordon": ["NodeUncordoned"],
    "trip": ["NodeTripped"],
    "forget": ["WeightsForgotten"],
    "acknowledge": ["LeakAcknowledged"],
    "record": ["WarmupMeasured"],
    "session": ["LeaseReaped", "SessionEnded", "SessionOpened"],
    "model": ["ModelLoading"],
    "explain": [],
    "reindex": [],
}
"""What one call of each appends, however often it is repeated."""

AGAIN = {
    "admit": "ask",
    "leave": "ask",
    "release": "duplicate",
    "revoke": "already",
    "record": "duplicate",
}
"""The word of a repeat where it differs from the first answer's."""

RENEWS_EACH_TIME = ("heartbeat",)
"""A heartbeat that is repeated is another heartbeat: later, and as good."""


@pytest.mark.parametrize("script", sorted(PLACEMENT_CALLS))
def test_a_placement_script_repeated_after_a_lost_reply_is_done_once(
    script: str, own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    @in_loop
    async def drill() -> None:
        async with TcpProxy(own_valkey.port) as proxy:
            client = commands(await open_client(proxy.url, data_dir=tmp_path, purpose="write"))
            pool = CoordinationPool(client, Keys("drill"), "holder", recovery_ms=1)
            placed = PlacedFleet(pool)
            await placed.open(full=script == "acquire")
            log = Log(client, Keys("drill"))
            before = await log.length()
            with contextlib.closing(own_valkey.client()) as plain:
                plain.script_load(packaged(script, plain.info("server")["run_id"]).text)
            args, more = PLACEMENT_CALLS[script](placed)
            proxy.mode = "drop_replies"
            with pytest.raises(OutcomeUnknown):
                await pool.call(script, args, more)
            assert proxy.replies_dropped == 1
            proxy.mode = "pass"
            again: Answer = await pool.call(script, args, more)
            events = [event.type for event in await log.newest(100)][before:]
            wanted = EVENTS[script]
            assert events == (wanted * 2 if script in RENEWS_EACH_TIME else wanted)
            if script in AGAIN:
                assert again.word == AGAIN[script]
            await client.aclose()

    drill()


def test_the_identity_of_a_request_is_the_inside_of_an_object() -> None:
    assert identity(1).startswith(b'"call_id"')
