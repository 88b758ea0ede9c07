"""Waiting until the gateway can place, and saying meanwhile what is missing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx

from aibs.codec import loads

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.clock import Clock

LOOK_EVERY_S = 0.1
ANSWER_TIMEOUT_S = 5.0
SAY_EVERY_S = 10.0
"""How often a person is told that it is not ready yet."""

WHY_MAX = 300
NOT_YET = "the gateway does not answer yet"


async def wait_ready(url: str, clock: Clock, tell: Callable[[str], None]) -> None:
    """Return once `/readyz` says yes."""
    said_ms = clock.boottime_ms()
    async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, trust_env=False) as client:
        while (why := await _why_not(client, url)) is not None:
            now_ms = clock.boottime_ms()
            if now_ms - said_ms >= SAY_EVERY_S * 1000:
                said_ms = now_ms
                tell(f"Not ready yet: {why}.")
            await asyncio.sleep(LOOK_EVERY_S)


async def _why_not(client: httpx.AsyncClient, url: str) -> str | None:
    try:
        answer = await client.get(f"{url}/readyz")
    except (httpx.HTTPError, OSError):
        return NOT_YET
    return None if answer.status_code == httpx.codes.OK else why_of(answer.text)


def why_of(body: str) -> str:
    """The reasons in a refusal's body, in one line."""
    try:
        document = loads(body)
        told = "; ".join(one["detail"].rstrip(".") for one in document["reasons"])
    except (ValueError, TypeError, KeyError, AttributeError):
        told = body
    return " ".join(told.split())[:WHY_MAX].rstrip(".") or "it does not say why"
