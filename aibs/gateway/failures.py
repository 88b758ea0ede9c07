"""How a node failed a request, and what of it is the node's fault. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aibs.codec import loads

if TYPE_CHECKING:
    from aibs.gateway.context import FailureKind

NOT_THE_CLIENTS: Final = frozenset({401, 403, 407, 421})
"""Refusals of the node or of a proxy in front of it: the client's credentials never get there."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """A whole answer that is no success, small enough to be passed on."""

    status: int
    content_type: str
    body: bytes


@dataclass(eq=False)
class NodeFailure(Exception):
    """A node failed a request before a byte of it was passed on. `answer`: what it said, if it
    did; `counts` whether it speaks against the node.
    """

    node_id: str
    kind: FailureKind
    detail: str
    answer: NodeAnswer | None = None
    counts: bool = True

    def __str__(self) -> str:
        return f"{self.node_id}: {self.detail}"


@dataclass(eq=False)
class ModelMissing(Exception):
    """The node has not the model (`key` is its comparison key): nothing is wrong with the node."""

    node_id: str
    key: str
    answer: NodeAnswer | None = None


def is_node_fault(status: int) -> bool:
    """Whether a status speaks of the node and not of the request."""
    return status >= 500 or 300 <= status < 400 or status in NOT_THE_CLIENTS or status == 499


def error_text(body: bytes, limit: int = 300) -> str:
    """What an error answer says, for a log line."""
    try:
        document = loads(body)
    except ValueError:
        return body[:limit].decode("utf-8", "replace").strip() or "no text"
    said = document.get("error") if isinstance(document, dict) else None
    if isinstance(said, dict):
        said = said.get("message")
    return said[:limit] if isinstance(said, str) else "no text"
