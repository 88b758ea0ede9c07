"""A control plane on a real pool and a real socket, without a data path beside it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
from starlette.routing import Router

from aibs import settings
from aibs.clock import SystemClock
from aibs.gateway.context import GatewayContext
from aibs.gateway.control import ControlPlane
from aibs.placement import open_placer
from tests.gateway_server import serving
from tests.placement_desk import FRESH_MS, MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.placement_desk import Desk

ROSTER = (
    f'[{{"worker_id":"answer","model":"{MODEL}","roles":["answer"],"kind":"chat",'
    '"resident_weight_gb":7,"active_parameter_billions":8}]'
)
NODES = {
    "AIBS_MODEL_CLUSTER_NODE_IDS": "box-c",
    "AIBS_MODEL_CLUSTER_NODE_URLS": "http://box-c:11434",
    "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": "80",
    "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": "2",
    "AIBS_MODEL_ADMISSION_WORKER_ROSTER": ROSTER,
    "AIBS_API_DRAIN_SECONDS": "0.3",
}


def environ_of(table: Desk, url: str = "") -> dict[str, str]:
    """The settings of a gateway on the desk's pool."""
    return {
        **NODES,
        "AIBS_NAMESPACE": "env",
        "AIBS_VALKEY_URL": url or table.url,
        "AIBS_MODEL_CLUSTER_NAMESPACE": table.keys.namespace,
        "AIBS_MODEL_CLUSTER_ENABLED": "true",
        "AIBS_MODEL_CLUSTER_MAX_RESIDENCY_STALENESS_MS": str(FRESH_MS),
        "AIBS_MODEL_CLUSTER_DRAIN_SECONDS": "0",
        "AIBS_DATA_DIR": str(table.directory),
    }


@dataclass(frozen=True)
class Instance:
    """One gateway process's control plane. `client` speaks to it, with a key where one is given."""

    url: str
    context: GatewayContext
    control: ControlPlane
    client: httpx.AsyncClient

    def key(self, key: str) -> httpx.AsyncClient:
        """The same client's connections with another key. Closed with the first."""
        other = httpx.AsyncClient(base_url=self.url, headers={"X-API-Key": key}, timeout=20)
        _CLIENTS.append(other)
        return other


_CLIENTS: list[httpx.AsyncClient] = []


@asynccontextmanager
async def instance(environ: dict[str, str], *, key: str = "") -> AsyncIterator[Instance]:
    """One, from its start to its end."""
    configured = settings.load(environ, None)
    async with open_placer(configured, role="gateway") as placer:
        context = GatewayContext(
            settings=configured,
            fleet=configured.fleet(),
            placer=placer,
            clock=SystemClock(),
            local=not configured.model_cluster_enabled,
        )
        async with ControlPlane(context) as control:
            app = control.guard(Router(control.routes, redirect_slashes=False))
            headers = {"X-API-Key": key} if key else {}
            async with (
                serving(app) as url,
                httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as client,
            ):
                try:
                    yield Instance(url, context, control, client)
                finally:
                    while _CLIENTS:
                        await _CLIENTS.pop().aclose()
