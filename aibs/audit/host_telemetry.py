"""A node's GPU memory, as its telemetry agent tells it.

The agent answers `GET` on the configured URL with a JSON object, of which this reads
`gpu.combined_used_bytes` and `gpu.combined_total_bytes` (VRAM and GTT together, whole numbers;
either may be null). An agent that is absent is shown as such and costs nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.audit.facts import HostMemory
from aibs.codec import loads
from aibs.errors import AibsError
from aibs.ollama.http import exchange, new_http_client

if TYPE_CHECKING:
    from collections.abc import Mapping

GPU_BYTES_MAX = 2**50


async def read_host_memory(url: str | None, *, timeout_s: float) -> HostMemory | None:
    """What the agent at `url` says; None where none is configured."""
    if not url:
        return None
    http = new_http_client(url, connections=1)
    try:
        answer = await exchange(http, "GET", url, timeout_s=timeout_s)
    except AibsError as error:
        return HostMemory(url, error=str(error))
    finally:
        await http.aclose()
    if answer.status != 200:
        return HostMemory(url, error=f"{url} answered with status {answer.status}.")
    return parse_host_memory(url, answer.body)


def parse_host_memory(url: str, body: bytes) -> HostMemory:
    """An agent's answer; what it does not tell is None."""
    try:
        document = loads(body)
    except (ValueError, RecursionError):
        return HostMemory(url, error=f"{url} answered with something that is not JSON.")
    gpu = document.get("gpu") if isinstance(document, dict) else None
    if not isinstance(gpu, dict):
        return HostMemory(url, error=f"{url} tells nothing of a GPU.")
    return HostMemory(
        url,
        gpu_used_bytes=_bytes(gpu, "combined_used_bytes"),
        gpu_total_bytes=_bytes(gpu, "combined_total_bytes"),
    )


def _bytes(gpu: Mapping[str, Any], member: str) -> int | None:
    value = gpu.get(member)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= GPU_BYTES_MAX else None
