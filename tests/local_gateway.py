"""A whole gateway in the test's own loop, with local admission and plain servers for its nodes."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import JSONResponse
from starlette.routing import Route, Router

from aibs import settings
from aibs.codec import dumps_text, loads
from aibs.gateway.app import open_gateway
from tests.gateway_server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.requests import Request

    from aibs.gateway.app import Gateway

MODEL = "chat:8b"
ROSTER = [
    {
        "worker_id": "answer",
        "model": MODEL,
        "roles": ["answer"],
        "kind": "chat",
        "resident_weight_gb": 8,
        "active_parameter_billions": 8,
    }
]


@dataclass
class PlainNode:
    """Lists `installed`, and says of every other model that it is not found."""

    installed: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Paths that came, those of models alone."""

    def routes(self) -> Router:
        """Its application."""
        return Router(
            [
                Route("/api/tags", self._tags),
                Route("/api/ps", self._ps),
                Route("/api/version", self._version),
                *(
                    Route(f"/{path}", self._model, methods=["POST"])
                    for path in ("api/chat", "api/generate", "api/show", "v1/chat/completions")
                ),
            ]
        )

    async def _tags(self, _: Request) -> JSONResponse:
        listed: list[dict[str, Any]] = [{"name": name, "model": name} for name in self.installed]
        return JSONResponse({"models": listed})

    async def _ps(self, _: Request) -> JSONResponse:
        return JSONResponse({"models": []})

    async def _version(self, _: Request) -> JSONResponse:
        return JSONResponse({"version": "0.20.0"})

    async def _model(self, request: Request) -> JSONResponse:
        model = loads(await request.body())["model"]
        self.asked.append(request.url.path)
        if model not in self.installed:
            return JSONResponse({"error": f"model '{model}' not found"}, 404)
        message = {"role": "assistant", "content": "word"}
        return JSONResponse({"model": model, "message": message, "done": True})


@dataclass(frozen=True)
class LocalGateway:
    """`client` speaks to it."""

    gateway: Gateway
    client: httpx.AsyncClient

    async def counted(self) -> dict[tuple[str, str], float]:
        """Requests so far, by route and class of status; scrapes are left out."""
        text = (await self.client.get("/metrics")).text
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                route = sample.labels.get("route")
                if sample.name == "aibs_gateway_requests_total" and route != "/metrics":
                    found[route or "", sample.labels["status_class"]] = sample.value
                if sample.name == "aibs_gateway_requests_in_flight" and route != "/metrics":
                    assert sample.value == 0, sample
        return found


@asynccontextmanager
async def local_gateway(
    directory: Path, nodes: dict[str, PlainNode], *, key: str = "", **more: str
) -> AsyncIterator[LocalGateway]:
    """One on these nodes. `more` are variables without their prefix."""
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(node.routes())) for node in nodes.values()]
        environ = {
            "MODEL_CLUSTER_ENABLED": "false",
            "DATA_DIR": str(directory),
            "MODEL_CLUSTER_NODE_IDS": ",".join(nodes),
            "MODEL_CLUSTER_NODE_URLS": ",".join(urls),
            "MODEL_CLUSTER_NODE_VRAM_GB": ",".join("60" for _ in nodes),
            "MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": ",".join("2" for _ in nodes),
            "MODEL_ADMISSION_WORKER_ROSTER": dumps_text(ROSTER),
            **more,
        }
        configured = settings.load({f"AIBS_{name}": value for name, value in environ.items()}, None)
        gateway = await stack.enter_async_context(open_gateway(configured))
        url = await stack.enter_async_context(serving(gateway.app))
        headers = {"X-API-Key": key} if key else {}
        client = httpx.AsyncClient(base_url=url, headers=headers, timeout=20)
        yield LocalGateway(gateway, await stack.enter_async_context(client))
