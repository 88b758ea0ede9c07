"""The proofs' namespaces on a server: made, deleted in every case, and those left behind found.

A hash lists them with who made them and until when they may live. A proof that was killed cannot
delete its own: the next one does, where the process is gone from this host or the time is over.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from typing import Any

from aibs.codec import dumps, loads
from aibs.eventstore.keys import Keys
from aibs.eventstore.proof_record import LAST_PROOFS
from aibs.eventstore.reading import answered
from aibs.placement.session import is_dead, open_identity, process_start
from aibs.placement.values import Session

REGISTRY = "{aibs-proofs}:namespaces"
DELETED_AT_ONCE = 500
NAME_LENGTH_MAX = 40


class Namespaces:
    """The list on one server. `here` is this process."""

    def __init__(self, client: Any, here: Session | None = None) -> None:
        self._client = client
        self._here = here or open_identity("proof", "proof")

    async def make(self, of: str, *, live_ms: int) -> str:
        """A fresh namespace, on the list before anything is written into it."""
        name = f"{of[:NAME_LENGTH_MAX]}-proof-{secrets.token_hex(4)}"
        until_ms = await self.now_ms() + live_ms
        told = {
            "until_ms": until_ms,
            "holder": self._here.holder,
            "host": self._here.host,
            "boot_id": self._here.boot_id,
            "pid": self._here.pid,
            "pid_start": self._here.pid_start,
        }
        with answered("the list of proofs"):
            await self._client.hset(REGISTRY, name, dumps(told))
        return name

    async def add_child(self, namespace: str, pid: int) -> None:
        """Note a process that writes there: should we be killed, the sweep ends it first."""
        with answered("the list of proofs"):
            text = await self._client.hget(REGISTRY, namespace)
            if text is not None:
                told = loads(text)
                told["children"] = [*told.get("children", ()), [pid, process_start(pid)]]
                await self._client.hset(REGISTRY, namespace, dumps(told))

    async def delete(self, namespace: str) -> bool:
        """Delete a proof's keys, then take it off the list; whether nothing is left of it."""
        keys = Keys(namespace)
        with answered("the proof's namespace"):
            for found in await self._find(keys.pattern):
                await self._client.unlink(found)
            left = await self._find(keys.pattern)
            if not left:
                await self._client.hdel(REGISTRY, namespace)
        return not left

    async def sweep(self) -> list[str]:
        """Delete what proofs left that are gone or over; which."""
        with answered("the list of proofs"):
            listed = await self._client.hgetall(REGISTRY)
        now_ms, swept = await self.now_ms(), []
        for raw, text in listed.items():
            name, told = raw.decode(), loads(text)
            maker = Session(
                told["holder"], "", told["host"], told["boot_id"], told["pid"], told["pid_start"]
            )
            if told["until_ms"] <= now_ms or is_dead(maker, self._here):
                if maker.host == self._here.host and maker.boot_id == self._here.boot_id:
                    _end_children(told.get("children", ()))
                await self.delete(name)
                swept.append(name)
        return swept

    async def now_ms(self) -> int:
        """The server's clock."""
        with answered("the server's clock"):
            seconds, micros = await self._client.time(**self._where())
        return int(seconds) * 1000 + int(micros) // 1000

    async def remember(self, of: str, document: dict[str, Any]) -> None:
        """Keep a proof's result for the audit of that pool."""
        with answered("the proof's result"):
            await self._client.hset(LAST_PROOFS, of, dumps(document))

    def _where(self) -> dict[str, Any]:
        find = getattr(self._client, "get_node_from_key", None)
        return {} if find is None else {"target_nodes": find(REGISTRY)}

    async def _find(self, pattern: str) -> list[bytes]:
        return [key async for key in self._client.scan_iter(match=pattern, count=DELETED_AT_ONCE)]


def _end_children(children: list[list[int]]) -> None:
    """Kill what a killed proof left running; a number that now names another process is let be."""
    for pid, started in children:
        if started is not None and process_start(pid) == started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
