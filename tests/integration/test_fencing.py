"""The test on which all stands: an owner paused between its check and its write, past its term."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from aibs.errors import Fenced
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.eventstore.replies import Elected
from aibs.eventstore.scripts import packaged, script_names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

TTL_MS = 300
FINGERPRINT = "f" * 64
DOCUMENT = (
    b'{"nodes":[{"node_id":"box-c","base_url":"http://box-c:11434","vram_budget_bytes":90000000000,'
    b'"max_parallel_requests":1,"memory":"unified"}],"workers":[],"affinity":{}}'
)
LIMITS = ObserveLimits(2, 20_000, 30_000, 1_000, 60_000)


class PausedBeforeSending:
    """A client whose next script waits, as a process does that was stopped after its checks."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.reached = asyncio.Event()
        self.resumed = asyncio.Event()
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def evalsha(self, *args: Any) -> Any:
        if self.armed:
            self.reached.set()
            await self.resumed.wait()
        return await self._inner.evalsha(*args)


def _poll(fence: int) -> PollRecord:
    return PollRecord(
        "box-c", fence, 1, "http://box-c:11434", 5, True, "", 3, False, b"[]", b'{"seen":true}'
    )


def _term(owner: str, fence: int) -> dict[str, str | int]:
    return {"owner": owner, "fence": fence, "snapshot_id": "one"}


CALLS: dict[str, Callable[[CoordinationPool, str, int], Awaitable[Any]]] = {
    "renew": lambda pool, owner, fence: pool.renew(owner, fence, ttl_ms=TTL_MS, mono_ms=1),
    "resign": lambda pool, owner, fence: pool.resign(owner, fence),
    "declare": lambda pool, owner, fence: pool.declare(
        owner, fence, revision=7, fingerprint=FINGERPRINT, document=DOCUMENT, changes=b"[]"
    ),
    "observe": lambda pool, owner, fence: pool.observe(
        owner, fence, FINGERPRINT, [_poll(fence)], LIMITS
    ),
    "snapshot_part": lambda pool, owner, fence: pool.call(
        "snapshot_part", {**_term(owner, fence), "part": "queue|1", "body": "x"}
    ),
    "snapshot": lambda pool, owner, fence: pool.call(
        "snapshot",
        {
            **_term(owner, fence),
            "upto_id": "0-1",
            "upto_seq": 1,
            "upto_at_ms": 1,
            "anchor": "",
            "digest": "",
            "folds": "[]",
        },
    ),
    "trim": lambda pool, owner, fence: pool.call(
        "trim",
        {
            **_term(owner, fence),
            "digest": "",
            "retention_ms": 1,
            "max_bytes": 1,
            "batch_max": 10,
        },
    ),
}


def test_every_script_that_needs_the_term_is_among_those_paused() -> None:
    needing = {name for name in script_names() if "fenced" in packaged(name).header.replies}
    assert needing == set(CALLS)


@pytest.mark.parametrize("script", sorted(CALLS))
def test_an_owner_paused_between_check_and_write_past_its_term_is_fenced(
    script: str, valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        plain = commands(await open_client(valkey_url, data_dir=tmp_path, purpose="write"))
        other = commands(await open_client(valkey_url, data_dir=tmp_path, purpose="write"))
        paused = PausedBeforeSending(plain)
        keys = Keys(namespace)
        old = CoordinationPool(paused, keys, "old", recovery_ms=1)
        new = CoordinationPool(other, keys, "new", recovery_ms=1)
        try:
            term = await old.elect("a", "old", ttl_ms=TTL_MS, mono_ms=1)
            assert isinstance(term, Elected)
            await old.declare(
                "old",
                term.fence,
                revision=0,
                fingerprint=FINGERPRINT,
                document=DOCUMENT,
                changes=b"[]",
            )
            paused.armed = True
            write = asyncio.create_task(_await(CALLS[script](old, "old", term.fence)))
            await paused.reached.wait()
            successor = await _win(new)
            paused.resumed.set()
            with pytest.raises(Fenced):
                await write
            events = [event async for event in Log(plain, keys).read()]
            elected = next(e for e in events if e.type == "OwnerElected" and e.actor == "new")
            after = [e for e in events if e.seq > elected.seq and e.actor == "old"]
            assert [e.type for e in after] == ["FencedWriteRejected"]
            assert after[0].data["script"] == script
            assert after[0].data["current_fence"] == successor.fence > term.fence
        finally:
            await plain.aclose()
            await other.aclose()

    asyncio.run(scenario())


async def _await(call: Awaitable[Any]) -> Any:
    return await call


async def _win(pool: CoordinationPool) -> Elected:
    for attempt in range(200):
        answer = await pool.elect(str(attempt), "new", ttl_ms=60_000, mono_ms=1)
        if isinstance(answer, Elected):
            return answer
        await asyncio.sleep(0.02)
    raise AssertionError("the expired term was never given away")
