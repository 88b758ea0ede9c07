"""The words of `aibs node sim` as specs: sizes, names, and every fault of them in one sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from aibs.errors import ConfigurationError
from aibs.model_names import InvalidModelName, comparison_key, parse
from aibs.ollama.sim.profile import DEFAULT, profile_of
from aibs.ollama.sim.spec import SimModel, SimSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNT_MAX = 10_000
_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(GB|MB|TB)?", re.IGNORECASE)
_BYTES = {"": 10**9, "gb": 10**9, "mb": 10**6, "tb": 10**12}
_SIZE_MAX = 2**50


@dataclass(frozen=True, slots=True)
class NodeWords:
    """What was typed. Sizes as `24GB` or `24`; models as NAME=SIZE, aliases as NAME=OTHER."""

    vram_gb: str
    models: Sequence[str] = ()
    embeddings: Sequence[str] = ()
    aliases: Sequence[str] = ()
    loaded: Sequence[str] = ()
    profile: str = DEFAULT
    load_seconds: float = 0.0
    unload_seconds: float = 0.0
    token_seconds: float = 0.0
    num_parallel: int | None = None
    max_loaded: int | None = None
    count: int = 1


def size_bytes(text: str, option: str) -> int:
    """A size in decimal units, GB where none is said. Raises ConfigurationError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(
            f"{option}: {text!r} is not a size.", mend="Say one such as 24GB, 500MB or 24."
        )
    size = int(Decimal(match.group(1)) * _BYTES[(match.group(2) or "").lower()])
    if size > _SIZE_MAX:
        raise ConfigurationError(f"{option}: {text!r} is more than any machine has.")
    return size


def specs_of(words: NodeWords) -> list[SimSpec]:
    """The nodes that were asked for. Raises ConfigurationError."""
    if not 1 <= words.count <= COUNT_MAX:
        raise ConfigurationError(f"--count: {words.count} is not between 1 and {COUNT_MAX}.")
    for option, seconds in (
        ("--load-seconds", words.load_seconds),
        ("--unload-seconds", words.unload_seconds),
        ("--token-seconds", words.token_seconds),
    ):
        if not 0 <= seconds <= 86_400:
            raise ConfigurationError(f"{option}: {seconds:g} is not between 0 and 86400.")
    try:
        profile_of(words.profile)
    except ValueError as error:
        raise ConfigurationError(f"--profile: {error}.") from error
    spec = SimSpec(
        name="sim",
        vram_bytes=size_bytes(words.vram_gb, "--vram-gb"),
        models=_models(words),
        profile=words.profile,
        load_seconds=words.load_seconds,
        unload_seconds=words.unload_seconds,
        token_seconds=words.token_seconds,
        num_parallel=words.num_parallel,
        max_loaded=words.max_loaded,
    )
    return [replace(spec, name=f"sim-{index}") for index in range(words.count)]


def _models(words: NodeWords) -> tuple[SimModel, ...]:
    models: dict[str, SimModel] = {}
    for text in words.models:
        _add(models, _sized(text, "--model"), "--model")
    for text in words.embeddings:
        model = replace(_sized(text, "--embedding"), kind="embedding", max_context=2048)
        _add(models, model, "--embedding")
    for text in words.aliases:
        name, other = _pair(text, "--alias", "OTHER")
        of = models.get(_key(other, "--alias"))
        if of is None:
            raise ConfigurationError(
                f"--alias: {other} is no model of this node.",
                mend="Name it with --model or --embedding too.",
            )
        _add(models, replace(of, name=name, weights=of.weights_key), "--alias")
    for name in words.loaded:
        key = _key(name, "--loaded")
        if key not in models:
            raise ConfigurationError(
                f"--loaded: {name} is no model of this node.",
                mend="Name it with --model or --embedding too.",
            )
        models[key] = replace(models[key], loaded=True)
    return tuple(models.values())


def _add(models: dict[str, SimModel], model: SimModel, option: str) -> None:
    key = _key(model.name, option)
    if key in models:
        raise ConfigurationError(f"{option}: {model.name} is there twice.")
    models[key] = model


def _sized(text: str, option: str) -> SimModel:
    name, size_text = _pair(text, option, "SIZE")
    size = size_bytes(size_text, option)
    if size <= 0:
        raise ConfigurationError(f"{option}: {name} has a size of nothing.")
    return SimModel(name=name, size_bytes=size)


def _pair(text: str, option: str, second: str) -> tuple[str, str]:
    name, equals, other = text.rpartition("=")
    if not equals or not name or not other:
        raise ConfigurationError(f"{option}: {text!r} is not NAME={second}.")
    _key(name, option)
    return name, other


def _key(name: str, option: str) -> str:
    try:
        parse(name)
        return comparison_key(name)
    except InvalidModelName as error:
        raise ConfigurationError(f"{option}: {name!r} is not a model name: {error}.") from error
