"""Traces of requests, for whoever has a collector: OpenTelemetry, where it is asked for.

Asked for by the variables that OpenTelemetry itself reads (`OTEL_EXPORTER_OTLP_ENDPOINT` and its
kin), and had by the extra `otel`. Otherwise a tracer that does nothing: the data path asks `on`
once, and pays nothing.

Attributes have the names of OpenTelemetry's GenAI conventions, which are still in development
there. Nothing of what a client wrote becomes an attribute, but for the model that it named.

Failure: a collector that is away costs spans, never a request: they are sent by a thread of the
library's own, from a queue that is bounded.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from aibs import logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Attributes = Mapping[str, str | int | bool]
    Headers = Iterable[tuple[bytes, bytes]]

ASKED_BY: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
)
NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
SERVICE: Final = "aibs-gateway"
CLOSE_S: Final = 3.0
"""How long the last spans may take to be sent when the process ends."""

OPERATIONS: Final = {
    "/api/chat": "chat",
    "/api/generate": "text_completion",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/embeddings": "embeddings",
}
"""gen_ai.operation.name by route."""

_CARRIED: Final = frozenset({b"traceparent", b"tracestate"})


class Tracer(Protocol):
    """Spans of requests. No call raises; a span is whatever `start` gave."""

    @property
    def on(self) -> bool:
        """Whether spans go anywhere. Who asks first saves the making of attributes."""
        ...

    def start(self, name: str, attributes: Attributes, headers: Headers) -> Any:
        """A span that begins now, under the one that the client's headers name."""
        ...

    def end(self, span: Any, attributes: Attributes, error: str | None = None) -> None:
        """The span ends now. `error` is a short stable code: error.type."""
        ...

    def headers(self, span: Any) -> list[tuple[bytes, bytes]]:
        """What to send on in place of the client's own traceparent; nothing: send that one on."""
        ...

    async def aclose(self) -> None:
        """Send what is left, for a moment."""
        ...


class NoTracer:
    """Traces nothing."""

    on = False

    def start(self, name: str, attributes: Attributes, headers: Headers) -> Any:
        """Nothing."""

    def end(self, span: Any, attributes: Attributes, error: str | None = None) -> None:
        """Nothing."""

    def headers(self, span: Any) -> list[tuple[bytes, bytes]]:  # noqa: ARG002 - the protocol's
        """Nothing."""
        return []

    async def aclose(self) -> None:
        """Nothing."""


def tracer_from(environ: Mapping[str, str]) -> Tracer:
    """The tracer that these variables ask for."""
    if not _asked(environ):
        return NoTracer()
    log = logs.get("aibs.gateway.tracing")
    if not all(map(_is_installed, NEEDED)):
        log.warning(
            "tracing_not_installed",
            why="OTEL_ variables ask for traces, and OpenTelemetry is not installed: "
            "pip install 'aibs[otel]'.",
        )
        return NoTracer()
    try:
        return OtelTracer(environ)
    except Exception as error:  # noqa: BLE001 - a gateway without traces is better than none
        log.error("tracing_failed", error=repr(error))
        return NoTracer()


def request_attributes(route: str, model: str | None) -> dict[str, str]:
    """Of a request when it arrives."""
    found = {"http.route": route}
    operation = OPERATIONS.get(route)
    if operation is not None:
        found["gen_ai.operation.name"] = operation
    if model:
        found["gen_ai.request.model"] = model[:200]
    return found


def node_attributes(base_url: str, model: str) -> dict[str, str | int]:
    """Of the node that answers, and the model as the roster spells it."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {
        "gen_ai.response.model": model,
        "server.address": parts.hostname or "",
        "server.port": port,
    }


class OtelTracer:
    """Traces by OpenTelemetry's SDK. Raises whatever that raises on what it cannot use."""

    on = True

    def __init__(self, environ: Mapping[str, str], exporter: Any = None) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = "OTEL_SERVICE_NAME" in environ or "service.name" in environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        # A provider of our own: an application that embeds the gateway keeps its own.
        self._provider = TracerProvider(
            resource=Resource.create({} if named else {"service.name": SERVICE}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter or _exporter(environ)))
        self._tracer = self._provider.get_tracer("aibs.gateway")
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()

    def start(self, name: str, attributes: Attributes, headers: Headers) -> Any:
        """A span that begins now, under the one that the client's headers name."""
        carrier = {
            key.decode("latin-1"): value.decode("latin-1")
            for key, value in headers
            if key in _CARRIED
        }
        return self._tracer.start_span(
            name,
            context=self._propagator.extract(carrier),
            kind=self._trace.SpanKind.SERVER,
            attributes=dict(attributes),
        )

    def end(self, span: Any, attributes: Attributes, error: str | None = None) -> None:
        """The span ends now."""
        span.set_attributes(dict(attributes))
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def headers(self, span: Any) -> list[tuple[bytes, bytes]]:
        """What to send on in place of the client's own traceparent."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(span))
        return [(key.encode(), value.encode()) for key, value in carrier.items()]

    async def aclose(self) -> None:
        """Send what is left, for a moment. The thread ends with the process at the latest."""
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="tracing ends", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await done.wait()
        except TimeoutError:
            logs.get("aibs.gateway.tracing").warning("spans_not_sent", after_s=CLOSE_S)


def _asked(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return any(environ.get(name, "").strip() for name in ASKED_BY)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _exporter(environ: Mapping[str, str]) -> Any:
    """By OTEL_TRACES_EXPORTER: `console`, else OTLP over HTTP, which reads its own variables."""
    if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "console":
        import sys

        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
