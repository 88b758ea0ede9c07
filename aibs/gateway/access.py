"""Who may come in, and with how much: the outermost layer of the gateway, around every route.

With keys set, every request but the questions of health needs one. Without keys only this machine
may ask, and against pages that a browser loaded elsewhere and that call localhost by a name of
their own (DNS rebinding) the Host must be a local name, and an Origin, where there is one, too.
What proxies say of a client (X-Forwarded-For) is never believed.

It bounds what a client may send: headers, the body's size whether announced or not, and the time
that a body may take. A process on its way out takes nothing new.

Failure: it refuses in the client's own format and never lets through what it could not judge. An
application that reads a body which turned out too large, or too slow, sees its client leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aibs import logs
from aibs.gateway.body_guard import BodyGuard, refuse, too_large
from aibs.gateway.context import ANYBODY
from aibs.gateway.denials import SHUTTING_DOWN, SHUTTING_DOWN_RETRY_MS
from aibs.gateway.local import is_local_host, is_local_origin, is_local_peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aibs.gateway.context import GatewayContext, Meter
    from aibs.gateway.keys import KeyRing

CALLER: Final = "aibs.caller"
"""Where in the scope the caller is found by those behind."""

HEADERS_MAX: Final = 128
HEADER_BYTES_MAX: Final = 65_536
"""Of all names and values, with the path and the query."""

OPEN_PATHS: Final = frozenset({"/health", "/livez", "/readyz"})
"""Asked without a key, by GET and HEAD: whoever watches a process has none."""

KEPT_WHILE_DRAINING: Final = OPEN_PATHS | {"/status", "/metrics"}
"""Answered by a process on its way out; and what ends or keeps alive a placement."""

LOG_EVERY_MS: Final = 10_000
"""Refused keys are logged at most so often, with their number."""

_LOOKED_AT: Final = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"content-length",
        b"transfer-encoding",
        b"host",
        b"origin",
    }
)
_KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request does not come in."""

    status: int
    reason: str
    sentence: str
    retry_after_ms: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Headers:
    """What of a request's headers is looked at here."""

    presented: list[bytes] = field(default_factory=list)
    hosts: list[bytes] = field(default_factory=list)
    origins: list[bytes] = field(default_factory=list)
    length: bytes | None = None
    chunked: bool = False
    too_many: bool = False

    @property
    def body(self) -> bool:
        """Whether the request says that a body follows."""
        return self.chunked or self.length not in (None, b"0")


class Access:
    """The layer around `app`. Pure ASGI: nothing is buffered, nothing is made of a request."""

    def __init__(
        self, app: ASGIApp, context: GatewayContext, keys: KeyRing, meter: Meter | None = None
    ) -> None:
        self._app = app
        self._keys = keys
        self._draining = context.draining
        self._meter = meter or context.meter
        self._clock = context.clock
        self._body_max = context.settings.api_max_body_bytes
        self._refused_keys = 0
        self._logged_at_ms = -LOG_EVERY_MS
        self._log = logs.get("aibs.gateway.access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's request, or the server's own start and end."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            else:
                # No route of ours speaks anything else.
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = _read(scope)
        refusal = self._judge(scope, headers)
        if refusal is not None:
            await self._refuse(refusal, scope, receive, send, body=headers.body)
            return
        if self._draining.on:
            send = _closing(send)
        if not headers.body:
            await self._app(scope, receive, send)
            return
        guard = BodyGuard(scope["path"], receive, send, self._body_max)
        try:
            await self._app(scope, guard.receive, guard.send)
        except Exception:
            # The client has its answer; what the application made of its leaving is no news.
            if not guard.refused:
                raise

    def _judge(self, scope: Scope, headers: _Headers) -> Refusal | None:
        path: str = scope["path"]
        if headers.too_many:
            return Refusal(
                431,
                "headers_too_large",
                f"The request has more than {HEADERS_MAX} headers, or more than "
                f"{HEADER_BYTES_MAX} bytes in its path and headers.",
            )
        if self._keys.required:
            caller = self._keys.caller_of(headers.presented) if headers.presented else None
            if caller is not None:
                scope[CALLER] = caller
            elif path in OPEN_PATHS and scope["method"] in ("GET", "HEAD"):
                scope[CALLER] = ANYBODY
            else:
                return self._no_key(scope, bool(headers.presented))
        else:
            outside = _from_outside(scope, headers)
            if outside is not None:
                return outside
            scope[CALLER] = ANYBODY
        if self._draining.on and not _kept_while_draining(scope["method"], path):
            return Refusal(
                503,
                SHUTTING_DOWN,
                "This gateway is shutting down and takes no new request: send the same one to "
                "another gateway, or again in a moment.",
                retry_after_ms=SHUTTING_DOWN_RETRY_MS,
            )
        if headers.length is not None:
            return self._too_long(headers.length)
        return None

    def _too_long(self, length: bytes) -> Refusal | None:
        if not length.isdigit():
            return Refusal(400, "bad_request", "The Content-Length is not a number.")
        # Compared by digits first: a number of any length would cost time to read.
        if len(length) <= 18 and int(length) <= self._body_max:
            return None
        return Refusal(413, "too_large", too_large(self._body_max))

    def _no_key(self, scope: Scope, presented: bool) -> Refusal:
        self._refused_keys += 1
        now_ms = self._clock.boottime_ms()
        if now_ms - self._logged_at_ms >= LOG_EVERY_MS:
            self._logged_at_ms = now_ms
            peer = scope.get("client")
            self._log.warning(
                "api_key_refused",
                count=self._refused_keys,
                client=peer[0] if peer else None,
                presented=presented,
            )
            self._refused_keys = 0
        sentence = (
            "The API key is not known here."
            if presented
            else "An API key is needed: send it as Authorization: Bearer, or as X-API-Key."
        )
        return Refusal(401, "unauthorized", sentence, headers={"www-authenticate": "Bearer"})

    async def _refuse(
        self, refusal: Refusal, scope: Scope, receive: Receive, send: Send, *, body: bool
    ) -> None:
        path: str = scope["path"]
        self._meter.began(path)
        try:
            await refuse(
                receive,
                send,
                path,
                refusal.sentence,
                refusal.reason,
                refusal.status,
                retry_after_ms=refusal.retry_after_ms,
                headers=refusal.headers,
                close=body or refusal.status not in (401, 403),
                linger=body,
            )
        finally:
            self._meter.ended(path, refusal.status, None, 0.0)


def _read(scope: Scope) -> _Headers:
    found = _Headers()
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    headers = scope["headers"]
    for name, value in headers:
        size += len(name) + len(value)
        if name in _LOOKED_AT:
            if name in _KEY_HEADERS:
                found.presented.append(value)
            elif name == b"host":
                found.hosts.append(value)
            elif name == b"content-length":
                found.length = value
            elif name == b"origin":
                found.origins.append(value)
            else:
                found.chunked = True
    found.too_many = size > HEADER_BYTES_MAX or len(headers) > HEADERS_MAX
    return found


def _from_outside(scope: Scope, headers: _Headers) -> Refusal | None:
    """Without keys: why this request does not come from here."""
    mend = "Set AIBS_API_KEYS to let others in by a key."
    peer = is_local_peer(scope.get("client"), scope.get("server"))
    if peer == "remote":
        return Refusal(403, "forbidden", f"Without API keys only this machine may call. {mend}")
    if peer == "loopback" and not all(map(is_local_host, headers.hosts)):
        # A socket of the file system is reached by no browser, whatever Host its clients send.
        return Refusal(
            403,
            "forbidden",
            "Without API keys the Host must be a local name or address (localhost, 127.0.0.1): "
            f"another one may be a web page's. {mend}",
        )
    if not all(map(is_local_origin, headers.origins)):
        return Refusal(
            403,
            "forbidden",
            f"Without API keys a web page of another origin may not call. {mend}",
        )
    return None


def _kept_while_draining(method: str, path: str) -> bool:
    return (
        path in KEPT_WHILE_DRAINING
        or path.startswith("/placements/")
        or (path == "/placements" and method == "DELETE")
    )


def _closing(send: Send) -> Send:
    """Ends the connection behind the answer: the next request is another process's."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

    return send_and_close
