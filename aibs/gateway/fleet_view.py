"""One answer for the whole fleet where a client asks what is installed, resident, or how new it is.

Read from the nodes, kept for seconds, one reading at a time whoever asks. A node that does not
answer stands in with what it said last; none of this needs a lease or the coordination server.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aibs import logs
from aibs.codec import loads
from aibs.gateway.failures import NodeFailure
from aibs.gateway.once import Once
from aibs.gateway.targets import ROLE_PREFIX
from aibs.model_names import InvalidModelName, comparison_key

if TYPE_CHECKING:
    from collections.abc import Collection

    from aibs.clock import Clock
    from aibs.fleet import Fleet
    from aibs.gateway.targets import Targets
    from aibs.gateway.upstream import Upstream

ANSWER_S: Final = 3.0
"""For these short calls; from 0.32.4 on `/api/ps` waits for loads (ollama.md §3.2)."""

KEPT_MS: Final = {"/api/tags": 5_000, "/api/ps": 2_000, "/api/version": 30_000}
"""Nodes are polled gently: several readings a second have crashed old servers (§3.2)."""

LAST_KEPT_MS: Final = 300_000
"""How long a node that does not answer stands in with its last answer."""

NODES_AT_ONCE: Final = 32


class NothingKnown(Exception):
    """No node answered, and none did lately; the text is a sentence."""


class FleetView:
    """What the nodes say of themselves."""

    def __init__(self, fleet: Fleet, targets: Targets, upstream: Upstream, clock: Clock) -> None:
        self._fleet = fleet
        self._targets = targets
        self._upstream = upstream
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
        self._read_ms: dict[str, int] = {}
        # How old an answer may be is looked at here: a slow reading counts from its end.
        self._readings = {
            path: Once(partial(self._read, path), clock, keep_s=0, limit_s=None) for path in KEPT_MS
        }
        self._log = logs.get("aibs.gateway.fleet_view")

    async def tags(self) -> list[dict[str, Any]]:
        """The roster's models that are installed somewhere, and a name for each role of them."""
        keys = self._fleet.workers_by_key
        found: dict[str, dict[str, Any]] = {}
        for _, entry, key in await self._entries("/api/tags"):
            if key in keys and key not in found:
                found[key] = entry
        listed = list(found.values())
        for role, workers in self._targets.roles.items():
            first = next((found[one.key] for one in workers if one.key in found), None)
            if first is not None:
                name = f"{ROLE_PREFIX}{role}:latest"
                listed.append({**first, "name": name, "model": name})
        return listed

    async def resident(self) -> list[dict[str, Any]]:
        """What is resident on any node; each entry says on which."""
        return [{**entry, "node": node_id} for node_id, entry, _ in await self._entries("/api/ps")]

    async def version(self) -> str:
        """The oldest release among the nodes: what it can do, all can."""
        said = await self._said("/api/version")
        versions = [one["version"] for _, one in said if isinstance(one.get("version"), str)]
        return min(versions, key=_ordered) if versions else "0.0.0"

    async def nodes_with(self, key: str) -> list[str]:
        """The nodes that have a model installed."""
        return [node_id for node_id, _, found in await self._entries("/api/tags") if found == key]

    async def lacking(self, keys: Collection[str]) -> set[tuple[str, str]]:
        """Of these models, which each node has not, as far as it says. Raises NothingKnown."""
        said = {
            node_id
            for node_id, document in await self._said("/api/tags")
            if isinstance(document.get("models"), list)
        }
        has = {(node_id, key) for node_id, _, key in await self._entries("/api/tags")}
        return {(node_id, key) for node_id in said for key in keys} - has

    async def aclose(self) -> None:
        """End the readings under way."""
        for reading in self._readings.values():
            await reading.close()

    async def _entries(self, path: str) -> list[tuple[str, dict[str, Any], str]]:
        """Node, entry and comparison key of every model that is listed there."""
        found = []
        for node_id, document in await self._said(path):
            models = document.get("models")
            for entry in models if isinstance(models, list) else ():
                key = key_of(entry) if isinstance(entry, dict) else None
                if key is not None:
                    found.append((node_id, entry, key))
        return found

    async def _said(self, path: str) -> list[tuple[str, dict[str, Any]]]:
        """Each node's last answer, not older than allowed, in the order of the fleet."""
        now = self._clock.boottime_ms()
        if now - self._read_ms.get(path, -(10**9)) > KEPT_MS[path]:
            await self._readings[path].get()
        oldest = self._clock.boottime_ms() - LAST_KEPT_MS
        found = []
        for node in self._fleet.nodes:
            at_ms, document = self._known.get((path, node.node_id), (oldest - 1, {}))
            if at_ms >= oldest:
                found.append((node.node_id, document))
        if not found:
            raise NothingKnown(f"No node of the fleet answers {path}.")
        return found

    async def _read(self, path: str) -> None:
        at_once = asyncio.Semaphore(NODES_AT_ONCE)

        async def read_one(node_id: str, base_url: str) -> None:
            try:
                async with at_once, asyncio.timeout(ANSWER_S):
                    told = await self._upstream.fetch(
                        node_id, "GET", base_url + path, None, limit_s=ANSWER_S
                    )
                document = loads(told.body) if told.status == 200 else None
            except (NodeFailure, TimeoutError, ValueError) as error:
                self._log.info("node_not_read", node_id=node_id, path=path, error=str(error))
                return
            if isinstance(document, dict):
                self._known[path, node_id] = (self._clock.boottime_ms(), document)

        async with asyncio.TaskGroup() as group:
            for node in self._fleet.nodes:
                group.create_task(read_one(node.node_id, node.base_url))
        self._read_ms[path] = self._clock.boottime_ms()


def key_of(entry: dict[str, Any]) -> str | None:
    """The comparison key of an entry of `/api/tags` or `/api/ps`; None where it has no name."""
    name = entry.get("model") or entry.get("name")
    try:
        return comparison_key(name) if isinstance(name, str) else None
    except InvalidModelName:
        return None


def _ordered(version: str) -> tuple[int, ...]:
    """Releases in their order; what is no release counts as the oldest (ollama.md §1.3)."""
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(one or 0) for one in numbers.groups()) if numbers else (0, 0, 0)
