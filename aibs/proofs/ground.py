"""Where a proof runs: the configured Valkey and nodes, or all of it made for the proof."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aibs.codec import dumps_text
from aibs.eventstore.connection import open_client
from aibs.eventstore.embedded import EmbeddedValkey
from aibs.proofs.monitors import Monitor
from aibs.settings import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aibs.settings import Settings

GB = 10**9
ANSWER_TIMEOUT_S = 5.0
TIMES = (
    "AIBS_MODEL_CLUSTER_RESIDENCY_MONITOR_",
    "AIBS_MODEL_CLUSTER_MAX_RESIDENCY_STALENESS_MS",
)
"""What a self-contained proof takes of the settings: the times that it proves."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A server, the settings, and how to start a monitor there."""

    settings: Settings
    client: Any
    directory: Path
    environment: Mapping[str, str]
    cwd: Path

    def start(self, name: str, namespace: str, directory: Path) -> Monitor:
        """A monitor of the proof's namespace, not yet running."""
        own = {
            "AIBS_MODEL_CLUSTER_NAMESPACE": namespace,
            "AIBS_MODEL_CLUSTER_RESIDENCY_MONITOR_ENABLED": "true",
            "AIBS_LOG_FORMAT": "json",
            "AIBS_LOG_LEVEL": "info",
        }
        return Monitor(name, {**self.environment, **own}, directory, self.cwd)


@asynccontextmanager
async def configured(settings: Settings) -> AsyncIterator[Ground]:
    """The settings' own server and nodes. The monitors read the same environment and .env."""
    async with AsyncExitStack() as stack:
        directory = _directory(stack)
        if settings.model_pool_url == "embedded":
            embedded = await EmbeddedValkey.ensure(Path(settings.data_dir))
            stack.push_async_callback(embedded.close)
        client = await _client(settings, stack)
        yield Ground(settings, client, directory, dict(os.environ), Path.cwd())


@asynccontextmanager
async def self_contained() -> AsyncIterator[Ground]:
    """A Valkey and two simulated nodes of its own; of the environment it takes the times alone."""
    from aibs.ollama.sim import SimModel, SimServer, SimSpec

    async with AsyncExitStack() as stack:
        directory = _directory(stack)
        specs = (
            SimSpec("box-c", 90 * GB, (SimModel("llama3:8b", 7 * GB, loaded=True),)),
            SimSpec("box-e", 104 * GB, (SimModel("somebody/elses:70b", 43 * GB, loaded=True),)),
        )
        nodes = await stack.enter_async_context(SimServer(specs))
        embedded = await EmbeddedValkey.ensure(directory / "data")
        stack.push_async_callback(embedded.close)
        own = {
            "AIBS_DATA_DIR": str(directory / "data"),
            "AIBS_VALKEY_URL": "embedded",
            "AIBS_MODEL_CLUSTER_NODE_IDS": ",".join(spec.name for spec in specs),
            "AIBS_MODEL_CLUSTER_NODE_URLS": ",".join(nodes.urls),
            "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": "90,104",
            "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": "1,1",
            "AIBS_MODEL_ADMISSION_WORKER_ROSTER": dumps_text(
                [
                    {
                        "worker_id": "answer",
                        "model": "llama3:8b",
                        "roles": ["answer"],
                        "kind": "chat",
                        "resident_weight_gb": 7,
                        "active_parameter_billions": 8,
                    }
                ]
            ),
        }
        times = {name: value for name, value in os.environ.items() if name.startswith(TIMES)}
        plain = {n: v for n, v in os.environ.items() if not n.startswith("AIBS_")}
        settings = load({**times, **own}, env_file=None)
        client = await _client(settings, stack)
        yield Ground(settings, client, directory, {**plain, **times, **own}, directory)


def _directory(stack: AsyncExitStack) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="aibs-proof-"))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return directory


async def _client(settings: Settings, stack: AsyncExitStack) -> Any:
    client = await open_client(
        settings.model_pool_url,
        data_dir=Path(settings.data_dir),
        purpose="write",
        timeout_s=ANSWER_TIMEOUT_S,
    )
    stack.push_async_callback(client.aclose)
    return client
