"""How the control plane's routes answer: one endpoint a path, JSON, every refusal a sentence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from aibs import logs
from aibs.codec import dumps_pretty, loads
from aibs.errors import AibsError, FleetMismatch, PoolVersionMismatch, Unreachable
from aibs.gateway.body_guard import LINGER_BYTES
from aibs.gateway.denials import AWAY, AWAY_RETRY_MS, BROKE, told
from aibs.gateway.replies import error_document, retry_after_s
from aibs.gateway.watch import ClientLeft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from aibs.gateway.context import Meter

    Handler = Callable[[Request], Awaitable[Response]]

BODY_MAX: Final = 65_536
"""A control request is a few words."""

_LOG: Final = logs.get("aibs.gateway.control")


class Refused(Exception):
    """The request is answered with an error."""

    def __init__(
        self,
        status: int,
        reason: str,
        sentence: str,
        *,
        retry_after_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.reason = reason
        self.sentence = sentence
        self.retry_after_ms = retry_after_ms
        self.headers = headers

    def answer(self, path: str) -> Response:
        """As it is sent."""
        headers = dict(self.headers or {})
        if self.retry_after_ms is not None:
            headers["retry-after"] = str(retry_after_s(self.retry_after_ms))
        document = error_document(
            path, self.sentence, self.reason, self.status, self.retry_after_ms
        )
        return json_answer(document, self.status, headers)


def unavailable(error: Exception) -> Refused:
    """What is answered while the coordination server is away. Why, and where, the log says."""
    _LOG.info("coordination_unavailable", error=str(error))
    return Refused(503, "coordination_unavailable", AWAY, retry_after_ms=AWAY_RETRY_MS)


def refused(error: AibsError) -> Refused:
    """What is answered to an error of the pool's own."""
    why = told(error)
    return Refused(why.status, why.reason, why.sentence, retry_after_ms=why.retry_after_ms)


def json_answer(
    document: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A document, indented: these answers are read by people too. Nobody may keep it."""
    return Response(
        dumps_pretty(document) + "\n",
        status,
        {"cache-control": "no-store", **(headers or {})},
        "application/json",
    )


async def read_document(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises Refused."""
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= BODY_MAX:
            body += piece
        elif size > LINGER_BYTES:
            break
    if size > BODY_MAX:
        # Read on a while: closing on what a client still sends would lose it the answer.
        sentence = f"The request's body is larger than {BODY_MAX} bytes."
        raise Refused(413, "too_large", sentence, headers={"connection": "close"})
    if not body.strip():
        return {}
    try:
        document = loads(bytes(body))
    except ValueError as error:
        raise Refused(400, "bad_request", f"The request's body is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise Refused(400, "bad_request", "The request's body is not a JSON object.")
    return document


class _Endpoint:
    """Every method of one path."""

    def __init__(self, path: str, handlers: Mapping[str, Handler], meter: Meter) -> None:
        self._path = path
        self._handlers = dict(handlers)
        if "GET" in self._handlers:
            # The server leaves the body of a HEAD away.
            self._handlers["HEAD"] = self._handlers["GET"]
        self._meter = meter
        self._log = logs.get("aibs.gateway.control")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        began_ns = time.perf_counter_ns()
        status = 499
        self._meter.began(self._path)
        try:
            answer = await self._answer(request)
            status = answer.status_code
            await answer(scope, receive, send)
        except (ClientDisconnect, ClientLeft):
            # Nobody is there to be answered.
            status = 499
        finally:
            self._meter.ended(self._path, status, None, (time.perf_counter_ns() - began_ns) / 1e9)

    async def _answer(self, request: Request) -> Response:
        handler = self._handlers.get(request.method)
        path = request.url.path
        if handler is None:
            allowed = ", ".join(sorted(self._handlers))
            sentence = f"{self._path} is asked by {allowed}, not by {request.method[:20]}."
            refusal = Refused(405, "method_not_allowed", sentence, headers={"allow": allowed})
            return refusal.answer(path)
        try:
            return await handler(request)
        except Refused as refusal:
            return refusal.answer(path)
        except Unreachable as error:
            return unavailable(error).answer(path)
        except (FleetMismatch, PoolVersionMismatch) as error:
            return refused(error).answer(path)
        except AibsError as error:
            self._log.error("control_failed", path=self._path, error=str(error))
            return Refused(500, "failed", str(error)).answer(path)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - its client is told, whatever it was
            self._log.exception("control_broke", path=self._path, error=repr(error))
            return Refused(500, "failed", BROKE).answer(path)


def route(path: str, handlers: Mapping[str, Handler], meter: Meter) -> Route:
    """A route that answers every method in JSON, refusals too."""
    return Route(path, endpoint=_Endpoint(path, handlers, meter))
