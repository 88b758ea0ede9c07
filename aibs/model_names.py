"""Ollama's names for models: how they are read, shown and compared.

Rules as in Ollama's own parser (`types/model/name.go`): `[scheme://]host/namespace/model:tag`, with
the defaults registry.ollama.ai, library and latest; the scheme is no part of the identity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

CACHED: Final = 1024
"""Names whose reading is kept: a fleet and its clients use few."""

Source = Literal["any", "cloud", "local"]

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")


class InvalidModelName(ValueError):
    """The text is not a model name. The message is a clause that says why."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A full name, with the case as written."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def key(self) -> str:
        """What names are compared by: all four parts, ASCII lower case."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}".lower()

    @property
    def display(self) -> str:
        """The short form that Ollama prints: default host and namespace left out, tag always."""
        short = f"{self.model}:{self.tag}"
        if self.host.lower() != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{short}"
        if self.namespace.lower() != DEFAULT_NAMESPACE:
            return f"{self.namespace}/{short}"
        return short


@dataclass(frozen=True, slots=True)
class Reference:
    """A name as a client of Ollama 0.18 or newer means it: cloud never runs on the node."""

    name: ModelName
    source: Source


def _require(pattern: re.Pattern[str], part: str, what: str) -> str:
    if not part:
        raise InvalidModelName(f"its {what} is empty")
    if not pattern.fullmatch(part):
        raise InvalidModelName(f"its {what} {part[:100]!r} has a character or length not allowed")
    return part


@lru_cache(maxsize=CACHED)
def parse(raw: str) -> ModelName:
    """A name as it stands in `/api/ps`, `/api/tags` or a roster. Raises InvalidModelName."""
    text = raw
    colon, slash = text.rfind(":"), text.rfind("/")
    tag = DEFAULT_TAG
    if colon > slash:
        text, tag = text[:colon], _require(_PART, text[colon + 1 :], "tag")
    # From the right: two parts are always namespace/model, so a host needs a third.
    rest, _, model = text.rpartition("/")
    _require(_PART, model, "model")
    if not rest:
        if text.startswith("/"):
            raise InvalidModelName("its namespace is empty")
        return ModelName(DEFAULT_HOST, DEFAULT_NAMESPACE, model, tag)
    before, separator, namespace = rest.rpartition("/")
    _require(_NAMESPACE, namespace, "namespace")
    if not separator:
        return ModelName(DEFAULT_HOST, namespace, model, tag)
    # A scheme stands before a host alone: `http://m` is no name.
    scheme, cut, after = before.partition("://")
    host = _require(_HOST, after if cut else scheme, "host")
    return ModelName(host, namespace, model, tag)


@lru_cache(maxsize=CACHED)
def parse_reference(raw: str) -> Reference:
    """A name as Ollama 0.18 and newer reads it from a request. Raises InvalidModelName.

    Outer white space is cut; a last `:cloud` or `:local`, or a tag's ending `-cloud`, in any case,
    chooses where the model runs.
    """
    text = raw.strip()
    base, colon, last = text.rpartition(":")
    source: Source = "any"
    if colon and "/" not in last:
        lowered = last.lower()
        if lowered in ("cloud", "local"):
            source = "cloud" if lowered == "cloud" else "local"
            text = base
        elif lowered.endswith("-cloud"):
            source, text = "cloud", text[: -len("-cloud")]
    name = parse(text)
    if source != "any" and (
        name.tag.lower() in ("cloud", "local") or name.tag.lower().endswith("-cloud")
    ):
        raise InvalidModelName("it names where to run twice")
    return Reference(name, source)


def comparison_key(raw: str) -> str:
    """`host/namespace/model:tag` in lower case. Raises InvalidModelName."""
    return parse(raw).key
