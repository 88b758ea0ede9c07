"""What a simulated node is: its memory, its models, and how long things take there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from aibs.model_names import ModelName, parse
from aibs.ollama.keep_alive import parse_keep_alive
from aibs.ollama.sim.profile import DEFAULT, Profile, profile_of

Engine = Literal["llama", "ollama", "mlx"]
"""What runs the model: it decides when `/api/ps` shows it, and whether that waits for a load."""


@dataclass(frozen=True)
class SimModel:
    """One installed name.

    `size_bytes` is what it occupies without KV cache; `kv_bytes_per_token` is added for each token
    of context and each slot. `weights` names the blob: models that share it share a runner and,
    unless `digest` says otherwise, the digest, as after `ollama cp`. `loaded` has it resident from
    the start, with `keep_alive` as a request would give it.
    """

    name: str
    size_bytes: int
    kind: Literal["chat", "embedding"] = "chat"
    weights: str | None = None
    digest: str | None = None
    loaded: bool = False
    keep_alive: str | float = -1
    engine: Engine = "llama"
    max_context: int = 131_072
    num_ctx: int | None = None
    kv_bytes_per_token: int = 0
    load_seconds: float | None = None
    family: str | None = None

    def __post_init__(self) -> None:
        if self.size_bytes <= 0:
            raise ValueError(f"{self.name} has a size of {self.size_bytes} bytes")
        parse(self.name)
        parse_keep_alive(self.keep_alive)

    @cached_property
    def full_name(self) -> ModelName:
        """The name in its four parts."""
        return parse(self.name)

    @cached_property
    def display(self) -> str:
        """The name as ps and tags show it."""
        return self.full_name.display

    @cached_property
    def weights_key(self) -> str:
        """The blob that its runner is kept under."""
        return self.weights if self.weights is not None else self.full_name.key

    @cached_property
    def shown_digest(self) -> str:
        """64 hex digits."""
        if self.digest is not None:
            return self.digest
        return hashlib.sha256(self.weights_key.encode()).hexdigest()

    @cached_property
    def shown_family(self) -> str:
        """The model family in its details."""
        return self.family or ("nomic-bert" if self.kind == "embedding" else "llama")


@dataclass(frozen=True)
class SimSpec:
    """One node. Absent numbers are the profile's; `vram_bytes` 0 is a server without a GPU."""

    name: str = "sim"
    vram_bytes: int = 0
    models: tuple[SimModel, ...] = ()
    profile: str = DEFAULT
    load_seconds: float = 0.0
    unload_seconds: float = 0.0
    vram_recovery_seconds: float = 0.0
    num_parallel: int | None = None
    max_loaded: int | None = None
    max_queue: int = 512
    default_keep_alive: str | float = "5m"
    default_num_ctx: int | None = None
    reply_tokens: int = 8
    prompt_seconds: float = 0.0
    token_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.vram_bytes < 0 or self.max_queue < 1:
            raise ValueError(f"{self.name} has a negative memory or no queue")
        if any(
            number is not None and number < 1 for number in (self.num_parallel, self.max_loaded)
        ):
            raise ValueError(f"{self.name} has no slot or no room for a model")
        keys = [model.full_name for model in self.models]
        if len(set(keys)) != len(keys):
            raise ValueError(f"{self.name} has a model twice")
        profile_of(self.profile)

    @cached_property
    def release(self) -> Profile:
        """What its version does."""
        return profile_of(self.profile)

    @cached_property
    def models_max(self) -> int:
        """How many models may be loaded at once."""
        return self.max_loaded or self.release.default_max_loaded

    def slots(self, model: SimModel) -> int:
        """How many requests one runner of the model serves at once."""
        if model.kind == "embedding":
            return 1
        return self.num_parallel or self.release.default_parallel
