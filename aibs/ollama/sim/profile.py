"""What a version of Ollama does: the differences that a client must live with, by release."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from aibs.ollama.sim.spec import Engine

Route = Literal["generate", "chat", "embed", "embeddings"]

NAMED = {
    "0.1": "0.1.38",
    "0.3": "0.3.0",
    "0.9": "0.9.0",
    "0.12": "0.12.6",
    "0.30": "0.30.11",
    "0.32": "0.32.15",
}
"""Which release a short name stands for: the one whose ways differ from its neighbours'."""

DEFAULT = "0.32"

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


@dataclass(frozen=True)
class Profile:
    """A release, and what it does. `release` is (major, minor, patch)."""

    release: tuple[int, int, int]

    @property
    def version(self) -> str:
        """As `/api/version` tells it."""
        return ".".join(str(part) for part in self.release)

    def since(self, major: int, minor: int, patch: int = 0) -> bool:
        """Whether this release has what came with that one."""
        return self.release >= (major, minor, patch)

    @cached_property
    def has_ps(self) -> bool:
        """Without `/api/ps` there is nothing to poll."""
        return self.since(0, 1, 38)

    @cached_property
    def bare_ps(self) -> bool:
        """0.1.38 to 0.1.41: no size_vram where it is 0, and a modified_at of the year 1."""
        return self.has_ps and not self.since(0, 1, 42)

    @cached_property
    def ps_locks(self) -> bool:
        """`/api/ps` waits while a runner is being killed or (MLX) loaded."""
        return self.since(0, 32, 4)

    @cached_property
    def fit_percent(self) -> int:
        """How much of the free memory a model may take next to others."""
        return 80 if self.since(0, 30) else 100

    @cached_property
    def default_parallel(self) -> int:
        """OLLAMA_NUM_PARALLEL where nobody set it."""
        return 4 if self.since(0, 2) and not self.since(0, 10) else 1

    @cached_property
    def default_max_loaded(self) -> int:
        """OLLAMA_MAX_LOADED_MODELS where nobody set it: three a GPU, one before 0.2."""
        return 3 if self.since(0, 2) else 1

    @cached_property
    def default_num_ctx(self) -> int:
        """The context length where neither request nor environment says one."""
        return 4096 if self.since(0, 7) else 2048

    def visible_while_loading(self, engine: Engine) -> bool:
        """Whether `/api/ps` lists a model before it can answer."""
        if not self.since(0, 11, 5):
            return True
        return engine == "mlx" if self.since(0, 30) else engine != "llama"

    def unloads(self, route: Route, keep_alive_ns: int | None) -> bool:
        """Whether an empty request with this keep-alive is an unload call on that route.

        Where it is none, the model is loaded first and dropped when the request ends.
        """
        if keep_alive_ns is None or route in ("embed", "embeddings") or not self.since(0, 3, 11):
            return False
        exact = self.since(0, 11, 8)
        if route == "chat" and self.since(0, 12) and not self.since(0, 12, 4):
            exact = False
        return keep_alive_ns == 0 if exact else int(keep_alive_ns / 1e9) == 0


@lru_cache(maxsize=64)
def profile_of(name: str) -> Profile:
    """The profile of a version such as 0.12.6, or of a short name. Raises ValueError."""
    text = name.strip()
    match = _VERSION.fullmatch(NAMED.get(text.removeprefix("v"), text))
    if match is None:
        raise ValueError(
            f"{name!r} is not a version of Ollama: say one such as 0.12.6, or one of "
            f"{', '.join(NAMED)}"
        )
    major, minor, patch = (int(part or 0) for part in match.groups())
    return Profile((major, minor, patch))
