"""What to say where no node is configured: by what this machine has, and without a guess."""

from __future__ import annotations

from aibs.errors import AibsError, ConfigurationError
from aibs.ollama.client import NodeClient

LOCAL_OLLAMA = "http://127.0.0.1:11434"
ANSWER_TIMEOUT_S = 2.0

_SETTINGS = """
  AIBS_MODEL_CLUSTER_NODE_IDS=this-machine
  AIBS_MODEL_CLUSTER_NODE_URLS={url}
  AIBS_MODEL_CLUSTER_NODE_VRAM_GB=              (memory for models, in GB)
  AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS=      (requests at a time)
  AIBS_MODEL_ADMISSION_WORKER_ROSTER=@roster.yaml
`aibs audit --node-url {url}` shows what is loaded there; the README shows a roster."""


async def no_nodes(url: str = LOCAL_OLLAMA) -> ConfigurationError:
    """The error for a fleet without nodes. Looks whether an Ollama answers on this machine."""
    sentence = "AIBS_MODEL_CLUSTER_NODE_IDS is empty, so there is no node to place requests on."
    version = await _version(url)
    if version is None:
        return ConfigurationError(
            sentence,
            mend="List the nodes there, and give URL, memory and slots of each in "
            "AIBS_MODEL_CLUSTER_NODE_URLS, _NODE_VRAM_GB and _NODE_MAX_PARALLEL_REQUESTS; "
            "`aibs demo` needs none.",
        )
    return ConfigurationError(
        sentence,
        mend=f"An Ollama {version} answers at {url}; to use it, set in .env:"
        + _SETTINGS.format(url=url),
    )


async def _version(url: str) -> str | None:
    try:
        async with NodeClient(url, timeout_s=ANSWER_TIMEOUT_S) as client:
            return await client.version()
    except AibsError:
        return None
