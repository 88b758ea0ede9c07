"""GET /metrics: the gateway's own counts and the pool's, in Prometheus' or OpenMetrics' format."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from aibs.gateway.control.answering import route
from aibs.gateway.control.pool_metrics import build_info, pool_metrics
from aibs.gateway.once import Once

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric
    from starlette.requests import Request
    from starlette.routing import Route

    from aibs.gateway.context import GatewayContext
    from aibs.gateway.control.meter import GatewayMeter
    from aibs.gateway.control.names import ModelNames
    from aibs.gateway.control.watch import PoolWatch

KEEP_S: Final = 0.2
LIMIT_S: Final = 10.0
"""Of writing one scrape out, which takes a thread of its own for a large fleet."""


class _Collected:
    """Metrics as they were at one moment, as the client library wants them."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class Metrics:
    """The route. `watch` is None in a process that admits by itself: it has no pool's metrics."""

    def __init__(
        self,
        context: GatewayContext,
        meter: GatewayMeter,
        watch: PoolWatch | None,
        names: ModelNames,
    ) -> None:
        self._meter = meter
        self._watch = watch
        self._names = names
        self._scrape = Once(self._collect, context.clock, keep_s=KEEP_S, limit_s=LIMIT_S)

    def route(self) -> Route:
        """GET /metrics."""
        return route("/metrics", {"GET": self.metrics}, self._meter)

    async def close(self) -> None:
        """Nothing is being made any more."""
        await self._scrape.close()

    async def metrics(self, request: Request) -> Response:
        """All metrics, as the scraper prefers them."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        collected = cast("Any", await self._scrape.get())
        # Apart: the lines of a large fleet take longer to write than a request may wait.
        body = await asyncio.to_thread(encode, collected)
        return Response(body, 200, {"cache-control": "no-store", "content-type": content_type})

    async def _collect(self) -> _Collected:
        found = [build_info()]
        if self._watch is not None:
            await self._watch.want()
            found += pool_metrics(self._watch, self._names)
        nodes = None if self._watch is None else self._watch.nodes
        return _Collected([*found, *self._meter.collect(nodes)])
