"""Traces: nothing unless asked for; asked for, spans that reach a collector and hold nothing up."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
import structlog
from structlog.testing import capture_logs

from aibs.gateway import tracing
from aibs.gateway.tracing import NoTracer, node_attributes, request_attributes, tracer_from

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALLED = importlib.util.find_spec("opentelemetry") is not None
needs_otel = pytest.mark.skipif(not INSTALLED, reason="the extra `otel` is not installed")

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def _logs_as_they_come() -> None:
    structlog.reset_defaults()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {"OTEL_SERVICE_NAME": "x"},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"},
    ],
)
def test_nothing_is_traced_unless_it_is_asked_for(environ: dict[str, str]) -> None:
    with capture_logs() as lines:
        tracer = tracer_from(environ)
    assert isinstance(tracer, NoTracer)
    assert not tracer.on
    assert not lines
    span = tracer.start("chat", {}, [])
    tracer.end(span, {}, "timeout")
    assert tracer.headers(span) == []
    asyncio.run(tracer.aclose())


def test_traces_that_cannot_be_had_are_told_and_stop_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "NEEDED", ("opentelemetry.sdk", "opentelemetry.of.nobody"))
    with capture_logs() as lines:
        tracer = tracer_from(ENDPOINT)
    assert isinstance(tracer, NoTracer)
    assert [line["event"] for line in lines] == ["tracing_not_installed"]
    assert "aibs[otel]" in lines[0]["why"]


def test_attributes_have_the_names_of_the_conventions() -> None:
    assert request_attributes("/v1/chat/completions", "llama3:8b") == {
        "http.route": "/v1/chat/completions",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "llama3:8b",
    }
    assert request_attributes("/api/tags", None) == {"http.route": "/api/tags"}
    assert len(request_attributes("/api/chat", "x" * 9999)["gen_ai.request.model"]) == 200
    assert node_attributes("http://10.4.3.16:11434", "llama3:8b") == {
        "gen_ai.response.model": "llama3:8b",
        "server.address": "10.4.3.16",
        "server.port": 11434,
    }
    assert node_attributes("https://box/ollama", "m")["server.port"] == 443


class Collector(ThreadingHTTPServer):
    """Takes what is posted to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        self.came = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Collector)
        self.server.bodies.append(body)
        self.server.came.set()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Quiet."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@needs_otel
def test_a_span_reaches_the_collector_under_its_clients_own(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")

    async def run() -> None:
        tracer = tracer_from({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
        assert tracer.on
        asked = request_attributes("/api/chat", "llama3:8b")
        span = tracer.start("chat llama3:8b", asked, [(b"traceparent", PARENT), (b"x", b"Zq")])
        sent_on = dict(tracer.headers(span))
        assert sent_on[b"traceparent"].split(b"-")[1] == PARENT.split(b"-")[1]
        assert sent_on[b"traceparent"].split(b"-")[2] != PARENT.split(b"-")[2]
        tracer.end(span, node_attributes("http://10.4.3.16:11434", "llama3:8b"), "timeout")
        await tracer.aclose()

    asyncio.run(run())
    assert collector.came.wait(10)
    body = b"".join(collector.bodies)
    for text in (b"gen_ai.operation.name", b"10.4.3.16", b"error.type", b"aibs-gateway"):
        assert text in body, text
    assert bytes.fromhex(PARENT.split(b"-")[1].decode()) in body
    assert b"Zq" not in body


@needs_otel
def test_a_collector_that_is_away_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "CLOSE_S", 0.3)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")

    async def run() -> float:
        tracer = tracer_from(ENDPOINT)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(5000):
            tracer.end(tracer.start("chat", {}, []), {})
        assert loop.time() - began_s < 5.0
        began_s = loop.time()
        await tracer.aclose()
        return loop.time() - began_s

    assert asyncio.run(run()) < 2.0
