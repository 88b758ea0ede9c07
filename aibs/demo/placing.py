"""Requests of the demo: more than there are slots, so that one of them waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from aibs.placement import open_placer
from aibs.settings import load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aibs.placement import HeldLease, Placer

ROLE = "answer"
REQUESTS = 3
WORK_S = 0.8
"""How long a request keeps its slot at least: long enough to see another wait."""

ANSWER_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Placed:
    """One request: where it went, and how it came there. Milliseconds."""

    number: int
    node_id: str
    warm: bool
    queue_ms: int
    reason: str
    took_ms: int


async def place_requests(environment: Mapping[str, str]) -> Sequence[Placed]:
    """Send the requests at once, each under a lease of its own; in the order of their numbers."""
    settings = load({**environment, "AIBS_MODEL_CLUSTER_ENABLED": "true"}, env_file=None)
    async with (
        open_placer(settings, role="demo") as placer,
        httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, trust_env=False) as client,
    ):
        return await asyncio.gather(*(_request(placer, client, n + 1) for n in range(REQUESTS)))


async def _request(placer: Placer, client: httpx.AsyncClient, number: int) -> Placed:
    waited_for = ""

    def on_queue(_position: int, reason: str) -> None:
        nonlocal waited_for
        waited_for = waited_for or reason

    begun = asyncio.get_running_loop().time()
    async with placer.lease(role=ROLE, timeout=ANSWER_TIMEOUT_S, on_queue=on_queue) as lease:
        await lease.prepare()
        await asyncio.gather(_ask(client, lease), asyncio.sleep(WORK_S))
    took_ms = round((asyncio.get_running_loop().time() - begun) * 1000)
    return Placed(number, lease.node_id, lease.warm, lease.queue_ms, waited_for, took_ms)


async def _ask(client: httpx.AsyncClient, lease: HeldLease) -> None:
    answer = await client.post(
        f"{lease.node_base_url}/api/chat",
        json={
            "model": lease.model,
            "messages": [{"role": "user", "content": "Are you there?"}],
            "stream": False,
        },
    )
    answer.raise_for_status()
