"""From an HTTP request to a job: its body, its headers, what it asks for. No I/O but the body."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from aibs.gateway.watch import ClientLeft

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive

    from aibs.gateway.context import Caller
    from aibs.gateway.endings import Format
    from aibs.placement.values import Class

RANKS: Final = {"low": 0, "normal": 1, "high": 2}
TRUE: Final = frozenset({"1", "true", "yes", "on"})


class NotAsked(Exception):
    """The request cannot be understood; `status` and the sentence are for its client."""

    def __init__(
        self,
        sentence: str,
        status: int = 400,
        reason: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.reason = reason
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the headers ask for: `X-AIBS-Role`, `X-AIBS-Priority`, `X-AIBS-Wait` in seconds, and
    `X-AIBS-Queue-Updates` for the places in the queue, told in the stream.
    """

    role: str | None = None
    priority: Class = "normal"
    wait_s: float | None = None
    tells_place: bool = False


def wishes_of(headers: list[tuple[bytes, bytes]], caller: Caller) -> Wishes:
    """The wishes of a request. Raises NotAsked."""
    said = {
        name: value.decode("latin-1").strip()
        for name, value in headers
        if name.startswith(b"x-aibs-")
    }
    coding = next((value for name, value in headers if name == b"content-encoding"), b"")
    if coding.strip().lower() not in (b"", b"identity"):
        raise NotAsked(
            f"The body is coded as {coding.decode('latin-1')[:40]}: send it as it is.", 415
        )
    return Wishes(
        said.get(b"x-aibs-role") or None,
        _priority(said.get(b"x-aibs-priority", ""), caller),
        _wait_s(said.get(b"x-aibs-wait", "")),
        said.get(b"x-aibs-queue-updates", "").lower() in TRUE,
    )


def default_class(caller: Caller) -> Class:
    """The class of a request that names none: normal, or the key's where that is lower."""
    return "normal" if RANKS[caller.max_class] >= RANKS["normal"] else caller.max_class


def _priority(text: str, caller: Caller) -> Class:
    if not text:
        return default_class(caller)
    wanted = text.lower()
    if wanted not in RANKS:
        raise NotAsked(f"X-AIBS-Priority is {text[:40]!r}: it can be high, normal or low.")
    if RANKS[wanted] > RANKS[caller.max_class]:
        raise NotAsked(
            f"The key {caller.name} may ask for {caller.max_class} at most, not for {wanted}.", 403
        )
    return cast("Class", wanted)


def _wait_s(text: str) -> float | None:
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise NotAsked(f"X-AIBS-Wait is {text[:40]!r}: it is a number of seconds from 0 on.")
    return seconds


async def body_of(receive: Receive, limit: int) -> bytes:
    """The whole body: what is asked for may stand anywhere in it. Raises ClientLeft, NotAsked."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise NotAsked(f"The body has more than {limit} bytes.", 413)
        if not message.get("more_body"):
            return b"".join([*parts, part]) if parts else part
        parts.append(part)


def format_of(fields: dict[str, Any], streams: Literal["default", "asked", "never"]) -> Format:
    """What the client expects: Ollama streams unless told not to, OpenAI where told to."""
    wanted = fields.get("stream")
    if streams == "default" and wanted is not False:
        return "ndjson"
    if streams == "asked" and wanted is True:
        return "sse"
    return "whole"
