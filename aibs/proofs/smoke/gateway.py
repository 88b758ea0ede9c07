"""The gateway as a client meets it: requests sent, read to their end, or left."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from aibs.codec import loads
from aibs.errors import ConfigurationError, Unreachable
from aibs.eventstore.endpoint import redact
from aibs.proofs.smoke.verdict import Sent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aibs.proofs.smoke.asks import Ask

CHECK_TIMEOUT_S = 5.0
REFUSED_KEY = (401, 403)
TEXT_MAX = 300


class GatewayAway(Unreachable):
    """The gateway did not answer, or something else answers there."""


@dataclass(slots=True)
class Gateway:
    """Sends requests. `wait_s` is how long each may stand in the queue, `timeout_s` how long it
    may take altogether. `told` has the ids of all requests that the gateway named so far.
    """

    url: str
    key: str | None
    wait_s: float
    timeout_s: float
    told: set[str] = field(default_factory=set)

    async def check(self) -> bool:
        """Whether it says that it admits requests by itself, without a pool.

        Raises GatewayAway where no gateway answers, ConfigurationError where it wants a key.
        """
        async with self.conversation() as client:
            answer = health = await self._look(client, "/health")
            if answer.status_code != httpx.codes.OK:
                raise GatewayAway(
                    f"What answers at {redact(self.url)} is no gateway of aibs: /health is "
                    f"{answer.status_code} there.",
                    mend="Name the gateway's URL with --url.",
                )
            # Asks no node, and wants a key where one is wanted.
            answer = await self._look(client, "/")
            if answer.status_code in REFUSED_KEY:
                raise ConfigurationError(
                    f"The gateway at {redact(self.url)} refuses "
                    f"{'this API key' if self.key else 'requests without an API key'}.",
                    mend="Name a file with a key of AIBS_API_KEYS with --key-file.",
                )
            return _mode(health.content) == "local"

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[httpx.AsyncClient]:
        """Connections of its own, as another client or user has."""
        headers = {"X-AIBS-Wait": f"{self.wait_s:.12g}"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        async with httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=None,  # noqa: S113 - each request is bounded as a whole
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        ) as client:
            yield client

    async def ask(self, client: httpx.AsyncClient, ask: Ask) -> Sent:
        """Send it and read the whole answer."""
        begun_s = time.monotonic()
        seen = _Seen()
        try:
            async with asyncio.timeout(self.timeout_s), self._sent(client, ask, seen) as answer:
                seen.error = _fault(ask, answer.status_code, await answer.aread())
        except TimeoutError:
            seen.error = f"no whole answer within {self.timeout_s:g} s"
        except httpx.HTTPError as error:
            seen.error = f"the gateway broke off: {_words(error)}"
        return seen.sent(ask, begun_s)

    async def leave(self, client: httpx.AsyncClient, ask: Ask) -> tuple[Sent, bool]:
        """Send it and leave after the answer's first bytes. Whether they were all of it."""
        begun_s = time.monotonic()
        seen, first = _Seen(), b""
        try:
            async with asyncio.timeout(self.timeout_s), self._sent(client, ask, seen) as answer:
                if answer.status_code != httpx.codes.OK:
                    seen.error = _fault(ask, answer.status_code, await answer.aread())
                else:
                    first = await anext(answer.aiter_raw(), b"")
        except TimeoutError:
            seen.error = f"no first byte within {self.timeout_s:g} s"
        except httpx.HTTPError as error:
            seen.error = f"the gateway broke off: {_words(error)}"
        return seen.sent(ask, begun_s), _fault(ask, httpx.codes.OK, first) is None

    async def leave_early(self, client: httpx.AsyncClient, ask: Ask, after_s: float) -> Sent:
        """Send it and leave so long after the request was written, without an answer."""
        begun_s = time.monotonic()
        seen, written = _Seen(), asyncio.Event()

        async def trace(event: str, _info: dict[str, Any]) -> None:
            if event.endswith("send_request_body.complete"):
                written.set()

        async def send() -> None:
            async with self._sent(client, ask, seen, trace):
                pass

        sending = asyncio.create_task(send())
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await asyncio.wait(
                    {sending, asyncio.create_task(written.wait())},
                    return_when=asyncio.FIRST_COMPLETED,
                )
                await asyncio.sleep(after_s)
        except TimeoutError:
            seen.error = f"the request was not taken within {CHECK_TIMEOUT_S:g} s"
        finally:
            written.set()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        return seen.sent(ask, begun_s)

    @asynccontextmanager
    async def _sent(
        self, client: httpx.AsyncClient, ask: Ask, seen: _Seen, trace: Any = None
    ) -> AsyncIterator[httpx.Response]:
        extensions = {} if trace is None else {"trace": trace}
        async with client.stream("POST", ask.path, json=ask.body, extensions=extensions) as answer:
            seen.read(answer)
            if seen.request_id:
                self.told.add(seen.request_id)
            yield answer

    async def _look(self, client: httpx.AsyncClient, path: str) -> httpx.Response:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                return await client.get(path)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise GatewayAway(
                f"The gateway at {redact(self.url)} does not answer ({_words(error)}).",
                mend="Start it with `aibs serve` or `aibs up`, or name its URL with --url.",
            ) from error


@dataclass(slots=True)
class _Seen:
    """What is known of an answer so far."""

    status: int | None = None
    error: str | None = None
    headers: httpx.Headers = field(default_factory=httpx.Headers)

    @property
    def request_id(self) -> str | None:
        return self._header("X-AIBS-Request")

    def read(self, answer: httpx.Response) -> None:
        self.status, self.headers = answer.status_code, answer.headers

    def sent(self, ask: Ask, begun_s: float) -> Sent:
        return Sent(
            ask=ask,
            duration_ms=round((time.monotonic() - begun_s) * 1000),
            status=self.status,
            error=self.error,
            request_id=self.request_id,
            lease_id=self._header("X-AIBS-Lease"),
            node_id=self._header("X-AIBS-Node"),
        )

    def _header(self, name: str) -> str | None:
        value: str | None = self.headers.get(name)
        return value


def _fault(ask: Ask, status: int, body: bytes) -> str | None:
    """What is wrong with a whole answer, None where nothing is."""
    lines = [line for line in body.splitlines() if line.strip()]
    try:
        document = loads(lines[-1] if ask.streamed and lines else body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return f"answered {status} with something that is no JSON object"
    if status != httpx.codes.OK or "error" in document:
        error = document.get("error")
        reason = document.get("reason")
        said = " ".join(str(error).split())[:TEXT_MAX].rstrip(".")
        return f"answered {status}{f' {reason}' if reason else ''}: {said}"
    if ask.kind == "embedding":
        return None if document.get("embeddings") else "answered without an embedding"
    return None if document.get("done") is True else "its answer broke off before its end"


def _mode(health: bytes) -> str | None:
    try:
        document = loads(health)
    except ValueError:
        return None
    return document.get("mode") if isinstance(document, dict) else None


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:TEXT_MAX].rstrip(".") or type(error).__name__
