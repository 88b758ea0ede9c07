"""The data path's routes: Ollama's and OpenAI's, with who answers each."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from starlette.routing import Route

from aibs import logs
from aibs.codec import dumps
from aibs.errors import AibsError
from aibs.gateway.asked import NotAsked, body_of, format_of, wishes_of
from aibs.gateway.bodies import BadBody, read_object
from aibs.gateway.context import ANYBODY
from aibs.gateway.denials import BROKE, SHUTTING_DOWN, SHUTTING_DOWN_RETRY_MS, Told, told
from aibs.gateway.exchange import BrokenOff, Exchange
from aibs.gateway.job import Job
from aibs.gateway.pieces import empty_piece
from aibs.gateway.policy import is_unload, option_fault
from aibs.gateway.replies import send_error
from aibs.gateway.targets import NoTarget
from aibs.gateway.tracing import node_attributes, request_attributes
from aibs.gateway.upstream import forwarded
from aibs.gateway.watch import ClientLeft, ClientWatch

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from aibs.gateway.plane import DataPlane


@dataclass(frozen=True, slots=True)
class Path:
    """A route that is forwarded. `streams`: by default, where asked, or never."""

    path: str
    streams: Literal["default", "asked", "never"]

    @property
    def native(self) -> bool:
        """Ollama's own API."""
        return self.path.startswith("/api/")


FORWARDED: Final = (
    Path("/api/chat", "default"),
    Path("/api/generate", "default"),
    Path("/v1/chat/completions", "asked"),
    Path("/v1/completions", "asked"),
    Path("/v1/responses", "asked"),
    Path("/api/embed", "never"),
    Path("/api/embeddings", "never"),
    Path("/v1/embeddings", "never"),
)

LEFT_STATUS: Final = 499
LAST_WORDS_S: Final = 2.0
"""How long a client that the gateway leaves may take to read why."""

DROP: Final = "aibs.drop"
"""The extension of ASGI by which the server drops a connection at once."""

STOPPING: Final = "The gateway is stopping, and the request did not end in the time that it had."


def forwarded_routes(plane: DataPlane) -> list[Route]:
    """The routes that need a lease."""
    return [Route(path.path, ForwardedRoute(plane, path)) for path in FORWARDED]


class ForwardedRoute:
    """An ASGI application for one path."""

    def __init__(self, plane: DataPlane, path: Path) -> None:
        self._plane = plane
        self._path = path
        settings = plane.context.settings
        self._body_max = settings.api_max_body_bytes
        self._stall_s = settings.api_silence_timeout_seconds
        self._wait_s = settings.model_cluster_queue_max_wait_seconds
        self._log = logs.get("aibs.gateway.routes", route=path.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path, meter = self._path.path, self._plane.context.meter
        began_s = time.monotonic()
        meter.began(path)
        client = _Client(send, scope)
        job: Job | None = None
        span: Any = None
        try:
            _require_post(scope["method"], path)
            with self._plane.under_way():
                job = await self._job(scope, receive, client)
                if job is not None:
                    span = self._traced(job, scope)
                    with ClientWatch(scope) as watch:
                        await self._plane.placing.serve(job, watch)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._plane.stopping or task is None or task.uncancel():
                raise
            await self._last_words(job, client)
        except ClientLeft:
            meter.client_left(job.phase if job is not None else "queued")
            client.status = LEFT_STATUS
            client.drop()
        except BrokenOff:
            # Not ended: the server closes the connection, and the client sees that it has not all.
            pass
        except (NotAsked, NoTarget) as error:
            headers = error.headers if isinstance(error, NotAsked) else None
            await send_error(client, path, str(error), error.reason, error.status, headers=headers)
        except BadBody as error:
            await send_error(client, path, str(error), None, 400)
        except AibsError as error:
            self._log.error("request_failed", error=str(error))
            await self._fail(job, client, told(error, stopping=self._stopping))
        except Exception as error:  # noqa: BLE001 - its client is told, whatever it was
            self._log.exception("request_broke", error=repr(error))
            await self._fail(job, client, Told(500, "failed", BROKE))
        finally:
            if job is not None:
                job.exchange.limit.close()
            model = job.target.workers[0].model if job is not None else None
            meter.ended(path, client.status or LEFT_STATUS, model, time.monotonic() - began_s)
            if span is not None and job is not None:
                self._end_trace(span, job, client.status or LEFT_STATUS)

    @property
    def _stopping(self) -> bool:
        return self._plane.stopping or self._plane.context.draining.on

    def _traced(self, job: Job, scope: Scope) -> Any:
        """A span for the job, which the node's belongs to; None where nobody asks for traces."""
        tracer = self._plane.context.tracer
        if not tracer.on:
            return None
        attributes = request_attributes(self._path.path, job.exchange.model)
        span = tracer.start(f"POST {self._path.path}", attributes, scope["headers"])
        for name, value in tracer.headers(span):
            job.headers[name.decode("latin-1")] = value.decode("latin-1")
        return span

    def _end_trace(self, span: Any, job: Job, status: int) -> None:
        attributes: dict[str, str | int] = {"http.response.status_code": status}
        if job.node is not None:
            attributes.update(node_attributes(*job.node))
        failed = status >= 400 or (job.node is not None and not job.whole)
        error = (str(status) if status >= 400 else "broken_off") if failed else None
        self._plane.context.tracer.end(span, attributes, error)

    async def _fail(self, job: Job | None, client: _Client, why: Told) -> None:
        try:
            if job is not None:
                await job.exchange.fail(
                    why.sentence, why.reason, why.status, retry_after_ms=why.retry_after_ms
                )
            elif not client.status:
                await send_error(
                    client,
                    self._path.path,
                    why.sentence,
                    why.reason,
                    why.status,
                    why.retry_after_ms,
                )
        except BrokenOff:
            return
        except ClientLeft:
            client.drop()

    async def _last_words(self, job: Job | None, client: _Client) -> None:
        """Say that the gateway stops, to a client that listens."""
        why = Told(503, SHUTTING_DOWN, STOPPING, SHUTTING_DOWN_RETRY_MS)
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._fail(job, client, why)
        except TimeoutError:
            client.drop()

    async def _job(self, scope: Scope, receive: Receive, send: Send) -> Job | None:
        """The job; None where the request is answered already. Raises NotAsked, NoTarget, BadBody,
        ClientLeft.
        """
        path = self._path
        caller = scope.get("aibs.caller", ANYBODY)
        wishes = wishes_of(scope["headers"], caller)
        raw = await body_of(receive, self._body_max)
        fields, exact = read_object(raw)
        target = self._plane.targets.find(fields.get("model"), wishes.role)
        if path.native:
            fault = option_fault(fields)
            if fault is not None:
                raise BadBody(fault)
            if is_unload(fields) and path.streams == "default":
                await _acknowledge_unload(send, path.path, str(fields.get("model") or target.model))
                return None
        wait_s = self._wait_s if wishes.wait_s is None else min(wishes.wait_s, self._wait_s)
        format_ = format_of(fields, path.streams)
        exchange = Exchange(
            send,
            path.path,
            str(fields.get("model") or target.role),
            format_,
            caller,
            stall_s=self._stall_s,
        )
        job = Job(
            exchange,
            target,
            fields,
            raw if exact else None,
            path.native,
            forwarded(scope["headers"]),
            wishes.priority,
            wait_s,
            wishes.tells_place and format_ != "whole",
        )
        job.require_carried()
        return job


def _require_post(method: str, path: str) -> None:
    if method != "POST":
        raise NotAsked(f"{path} is asked with POST.", 405, headers={"allow": "POST"})


class _Client:
    """Passes messages on, and keeps the status that the client got."""

    def __init__(self, send: Send, scope: Scope) -> None:
        self.status = 0
        self._send = send
        self._scope = scope

    def drop(self) -> None:
        """Drop the connection. A server that closed it would first wait until all was read."""
        dropped = self._scope.get("extensions", {}).get(DROP)
        if dropped is not None:
            dropped()

    async def __call__(self, message: Any) -> None:
        await self._send(message)
        if message["type"] == "http.response.start":
            self.status = message["status"]


async def _acknowledge_unload(send: Send, path: str, model: str) -> None:
    """What Ollama says to an unload, at once and whether or not anything is loaded. The model
    stays: when it goes is for placement to say, which may have others that use it.
    """
    await send_json(send, empty_piece(path, model, done=True, done_reason="unload"))


async def send_json(send: Send, document: Any, status: int = 200) -> None:
    """A small answer of our own."""
    body = dumps(document)
    headers = [
        (b"content-type", b"application/json; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
