"""A small fleet in full operation: simulated nodes, a real monitor, a real `aibs serve`."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from aibs.children.child import Child
from aibs.codec import dumps_text
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from tests.monitor_process import FAST, PATIENCE_S, Pool, watch
from tests.valkey_server import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

GB = 10**9
NAMES = ("box-c", "box-e")
ROSTER = (
    {
        "worker_id": "answer",
        "model": "llama3:8b",
        "roles": ["answer", "judge"],
        "kind": "chat",
        "resident_weight_gb": 7,
        "active_parameter_billions": 8,
    },
    {
        "worker_id": "embed",
        "model": "nomic-embed-text",
        "roles": ["embed"],
        "kind": "embedding",
        "resident_weight_gb": 1,
        "active_parameter_billions": 0.137,
    },
)
ENABLED = "AIBS_MODEL_CLUSTER_ENABLED"


def specs(*, load_s: float = 0.2, token_s: float = 0.02, tokens: int = 40) -> tuple[SimSpec, ...]:
    """Nodes whose models are cold, and whose answers take long enough to be left."""
    models = (
        SimModel("llama3:8b", 7 * GB, loaded=False),
        SimModel("nomic-embed-text", GB, kind="embedding"),
    )
    return tuple(
        SimSpec(
            name, 90 * GB, models, load_seconds=load_s, token_seconds=token_s, reply_tokens=tokens
        )
        for name in NAMES
    )


@dataclass(frozen=True)
class Served:
    """The running fleet; `environ` are the settings of all its processes."""

    environ: Mapping[str, str]
    nodes: SimServer
    pool: Pool
    directory: Path
    url: str

    def environment(self, **changes: str) -> dict[str, str]:
        """A whole environment with these settings."""
        return whole({**self.environ, **changes})

    @asynccontextmanager
    async def gateway(self, *arguments: str, **changes: str) -> AsyncIterator[Child]:
        """`aibs serve`, once it answers."""
        environment = self.environment(**changes)
        child = Child("gateway", ("serve", *arguments), environment, grace_s=20, cwd=self.directory)
        async with child:
            await answering(self.url, child)
            yield child

    async def run(self, *arguments: str, **changes: str) -> tuple[int, str, str]:
        """`aibs <arguments>` to its end: status, standard output, standard error."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aibs", *arguments),
            env=self.environment(**changes),
            cwd=self.directory,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            raise
        assert process.returncode is not None
        assert b"Traceback" not in err, err.decode()
        return process.returncode, out.decode(), err.decode()


def whole(environ: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without its own settings, and these."""
    return {**{n: v for n, v in os.environ.items() if not n.startswith("AIBS_")}, **environ}


async def answering(url: str, child: Child) -> None:
    """Wait until the gateway answers."""
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(trust_env=False) as client:
        while True:
            assert child.running, child.last_words()
            try:
                answer = await client.get(f"{url}/health")
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
            else:
                assert answer.status_code == httpx.codes.OK
                return


@asynccontextmanager
async def served_fleet(
    url: str,
    namespace: str,
    directory: Path,
    *,
    nodes: Sequence[SimSpec] | None = None,
    slots: int = 1,
    enabled: bool = True,
) -> AsyncIterator[Served]:
    """Nodes and a monitor that has observed them; a gateway is started by `gateway`."""
    async with SimServer(nodes or specs()) as simulated:
        port = free_port()
        environ = {
            **FAST,
            "AIBS_VALKEY_URL": url,
            "AIBS_MODEL_CLUSTER_NAMESPACE": namespace,
            "AIBS_MODEL_CLUSTER_NODE_IDS": ",".join(NAMES),
            "AIBS_MODEL_CLUSTER_NODE_URLS": ",".join(simulated.urls),
            "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": ",".join("90" for _ in NAMES),
            "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": ",".join(str(slots) for _ in NAMES),
            "AIBS_MODEL_ADMISSION_WORKER_ROSTER": dumps_text(list(ROSTER)),
            "AIBS_API_PORT": str(port),
            "AIBS_LOG_FORMAT": "json",
            ENABLED: "true" if enabled else "false",
        }
        pool, close = await watch(url, namespace, directory)
        monitor = Child("monitor", ("monitor",), whole(environ), grace_s=20, cwd=directory)
        try:
            async with monitor:
                await pool.observed_under(1, NAMES)
                yield Served(environ, simulated, pool, directory, f"http://127.0.0.1:{port}")
        finally:
            await close()
