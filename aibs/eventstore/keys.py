"""The one catalogue of keys. `lua/README.md` says what each holds."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_POOL_KEY = re.compile(rb"^\{aibs:([A-Za-z0-9][A-Za-z0-9._-]{0,63})\}:pool$")

POOL_KEY_PATTERN = "{aibs:*}:pool"
"""A SCAN pattern for the pools on a server."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one pool, under one hash tag, so that a cluster keeps them together."""

    namespace: str

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ValueError(f"namespace {self.namespace!r} cannot be part of a key")

    def key(self, name: str) -> str:
        """The full name of a key, by its short name in the scripts' headers."""
        return f"{{aibs:{self.namespace}}}:{name}"

    def telemetry(self, node_id: str) -> str:
        """Where the last poll of a node is kept in full."""
        return self.key(f"telemetry:{node_id}")

    @property
    def pattern(self) -> str:
        """A SCAN pattern for every key of the pool."""
        return self.key("*")


def namespace_of_pool_key(key: bytes) -> str | None:
    """The namespace of a key that `POOL_KEY_PATTERN` found, None where it is not a pool's."""
    match = _POOL_KEY.match(key)
    return match.group(1).decode() if match else None
