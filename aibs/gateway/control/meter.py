"""What this process's requests count: the gateway's own metrics.

Of several worker processes each counts for itself, and a scrape of any gives the sum: the client
library keeps the numbers in files of PROMETHEUS_MULTIPROC_DIR where that is set when it is
imported. What the log tells is the same at each of them and is not counted here.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    multiprocess,
)

from aibs.gateway.control.tally import FIRST_BYTE_S, OTHER, QUEUE_S, REQUEST_S
from aibs.placement import reasons

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from prometheus_client.metrics_core import Metric

    from aibs.gateway.context import Direction, FailureKind, Phase
    from aibs.gateway.control.names import ModelNames

# One quantity a metric: when a counter was made is another one, which nobody asked for.
disable_created_metrics()  # type: ignore[no-untyped-call]

MetricType = TypeVar("MetricType", Counter, Gauge, Histogram)

SHARED_DIR: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Where workers' metrics are added up; the client library's own variable."""

ROUTES: Final = frozenset(
    {
        *(f"/api/{name}" for name in ("chat", "generate", "embed", "embeddings", "tags", "ps")),
        *(f"/api/{name}" for name in ("show", "version", "pull", "push", "create", "copy")),
        *("/api/delete", "/api/blobs/{digest}", "/", "/api/me", "/api/signout"),
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"),
        *("/v1/models", "/v1/models/{model}"),
        *("/placements", "/placements/{lease_id}", "/placements/{lease_id}/heartbeat"),
        *("/health", "/livez", "/readyz", "/status", "/metrics", "/openapi.json"),
    }
)
"""Labels. Any other path is a client's text."""

HEARTBEAT: Final = "/heartbeat"
PATTERNS: Final = (
    ("/v1/models/", "/v1/models/{model}"),
    ("/api/blobs/", "/api/blobs/{digest}"),
    ("/placements/", "/placements/{lease_id}"),
)

REASONS: Final = frozenset({"", *reasons.ALL})


class GatewayMeter:
    """Meter, in a registry of its own."""

    def __init__(self, names: ModelNames) -> None:
        self._names = names
        self.registry = CollectorRegistry()
        made = _Maker(self.registry)
        self._requests = made.counter(
            "aibs_gateway_requests", "Requests, by what the client got.", "route", "status_class"
        )
        self._in_flight = made.gauge(
            "aibs_gateway_requests_in_flight", "Requests that are being answered.", "route"
        )
        self._durations = made.histogram(
            "aibs_gateway_request_duration_seconds",
            "From a request's arrival to the end of its answer.",
            REQUEST_S,
            "route",
            "model",
        )
        self._first_bytes = made.histogram(
            "aibs_gateway_time_to_first_byte_seconds",
            "From sending a request to a node to its first byte.",
            FIRST_BYTE_S,
            "model",
        )
        self._tokens = made.counter(
            "aibs_gateway_tokens", "Tokens, where nodes report them.", "model", "direction"
        )
        self._failures = made.counter(
            "aibs_gateway_upstream_failures", "Requests that a node failed.", "node", "kind"
        )
        self._left = made.counter(
            "aibs_gateway_client_disconnects",
            "Clients that left before their answer was whole.",
            "phase",
        )
        self._placements = made.counter(
            "aibs_placements", "Requests for a lease, by how they ended.", "outcome", "reason"
        )
        self._placing = made.histogram(
            "aibs_placement_duration_seconds",
            "From a request for a lease to its grant or denial, waiting included.",
            QUEUE_S,
        )
        self._waits = made.histogram(
            "aibs_queue_wait_seconds", "How long granted requests waited.", QUEUE_S, "model"
        )

    def collect(self, nodes: Collection[str] | None = None) -> Iterable[Metric]:
        """All of them, of all workers. Values of a node that is none of `nodes` are left out, as
        long as it is not: None leaves none out.
        """
        found = self._collect()
        if nodes is not None:
            for metric in found:
                metric.samples = [
                    one
                    for one in metric.samples
                    if "node" not in one.labels or one.labels["node"] in nodes
                ]
        return found

    def _collect(self) -> list[Metric]:
        shared = os.environ.get(SHARED_DIR)
        if not shared:
            return list(self.registry.collect())
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together, shared)  # type: ignore[no-untyped-call]
        # Names that nothing was counted under in any process have no file: their heads are told
        # all the same.
        found = {metric.name: metric for metric in self.registry.collect()}
        for metric in found.values():
            metric.samples = []
        return list({**found, **{metric.name: metric for metric in together.collect()}}.values())

    def close(self) -> None:
        """What is under way in this process is so no more."""
        if os.environ.get(SHARED_DIR):
            multiprocess.mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]

    # --- Meter

    def began(self, route: str) -> None:
        """A request arrived."""
        self._in_flight(_route(route)).inc()

    def ended(self, route: str, status: int, model: str | None, seconds: float) -> None:
        """A request is over."""
        route = _route(route)
        self._in_flight(route).dec()
        self._requests(route, f"{status // 100}xx").inc()
        self._durations(route, self._names.of(model)).observe(seconds)

    def placed(
        self, outcome: Literal["granted", "denied", "left"], reason: str, seconds: float
    ) -> None:
        """A request got a lease, a denial with its reason, or was given up by its client."""
        self._placements(outcome, reason if reason in REASONS else OTHER).inc()
        self._placing().observe(seconds)

    def waited(self, model: str, seconds: float) -> None:
        """A granted request stood in the queue so long."""
        self._waits(self._names.of(model)).observe(seconds)

    def first_byte(self, model: str, seconds: float) -> None:
        """The first byte for the client came so long after the request was sent to the node."""
        self._first_bytes(self._names.of(model)).observe(seconds)

    def tokens(self, model: str, direction: Direction, count: int) -> None:
        """What a node reported at the end of an answer."""
        if count > 0:
            self._tokens(self._names.of(model), direction).inc(count)

    def upstream_failed(self, node_id: str, kind: FailureKind) -> None:
        """A node failed a request."""
        self._failures(node_id, kind).inc()

    def client_left(self, phase: Phase) -> None:
        """A client closed its connection before its answer was whole."""
        self._left(phase).inc()


class _Maker:
    """Metrics of one registry, each as a function from its labels to what is counted by.

    Found once and kept: the client library's own look-up costs as much as the counting. Labels are
    bounded, so what is kept is.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, about: str, *labels: str) -> Callable[..., Counter]:
        return _kept(Counter(name, about, labels, registry=self._registry), labels)

    def gauge(self, name: str, about: str, *labels: str) -> Callable[..., Gauge]:
        made = Gauge(name, about, labels, registry=self._registry, multiprocess_mode="livesum")
        return _kept(made, labels)

    def histogram(
        self, name: str, about: str, bounds: Sequence[float], *labels: str
    ) -> Callable[..., Histogram]:
        more: dict[str, Any] = {"buckets": bounds}
        return _kept(Histogram(name, about, labels, registry=self._registry, **more), labels)


def _kept(metric: MetricType, labels: Sequence[str]) -> Callable[..., MetricType]:
    return cache(metric.labels) if labels else lambda: metric


def _route(path: str) -> str:
    """The label. A refusal before the routes knows the path alone, and not its pattern."""
    if path in ROUTES:
        return path
    for start, pattern in PATTERNS:
        if path.startswith(start):
            beats = start == "/placements/" and path.endswith(HEARTBEAT)
            return f"{pattern}{HEARTBEAT}" if beats else pattern
    return OTHER
