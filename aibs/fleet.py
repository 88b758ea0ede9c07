"""The fleet: nodes, roster and role affinity together, with a fingerprint. Values only, no I/O."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from aibs.codec import dumps
from aibs.errors import Broken
from aibs.model_names import InvalidModelName, comparison_key

if TYPE_CHECKING:
    from collections.abc import Mapping

Memory = Literal["unified", "discrete"]
Kind = Literal["chat", "embedding"]
KeepAlive = str | int | None

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]")


class InvalidNodeUrl(ValueError):
    """The text is not a URL that a node may have. The message is a clause that says why."""


class InvalidFleetDocument(Broken):
    """A stored fleet document is not one."""


def normalise_url(raw: str) -> str:
    """One spelling for each node: scheme and host in lower case, no default port, no last slash.

    Only http and https; no user, password, query or fragment. Raises InvalidNodeUrl, whose message
    never repeats a password.
    """
    text = raw.strip()
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        # The port may be a password's beginning: the cause's text is not repeated.
        raise InvalidNodeUrl("cannot be read as a URL") from error
    if port == 0:
        raise InvalidNodeUrl("has the port 0, which does not exist")
    scheme = parts.scheme.lower()
    if scheme not in _DEFAULT_PORTS:
        raise InvalidNodeUrl("does not begin with http:// or https://")
    # Behind an unescaped / or ? of a password the @ is no longer in the authority.
    if "@" in text:
        raise InvalidNodeUrl("carries a user or password, which nodes do not take")
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise InvalidNodeUrl("has a query or fragment, which a node's base URL has not")
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(shown):
        raise InvalidNodeUrl("has no usable host name")
    if any(ord(character) <= 32 or ord(character) > 126 for character in text):
        raise InvalidNodeUrl("has a space or a character outside ASCII")
    where = shown if port in (None, _DEFAULT_PORTS[scheme]) else f"{shown}:{port}"
    return f"{scheme}://{where}{parts.path.rstrip('/')}"


@dataclass(frozen=True, slots=True)
class Node:
    """One Ollama server. The budget in bytes and the slots are None where nobody declared them."""

    node_id: str
    base_url: str
    vram_budget_bytes: int | None = None
    max_parallel_requests: int | None = None
    memory: Memory = "unified"


@dataclass(frozen=True, slots=True)
class Worker:
    """One lane of the roster. The weight in bytes and the parameters are None where unmeasured."""

    worker_id: str
    model: str
    roles: tuple[str, ...] = ()
    kind: Kind = "chat"
    resident_weight_bytes: int | None = None
    active_parameter_billions: Decimal | None = None
    num_ctx: int | None = None
    keep_alive: KeepAlive = None

    @property
    def key(self) -> str:
        """The comparison key of its model."""
        return comparison_key(self.model)

    @property
    def measured(self) -> bool:
        """Whether it may ever be placed."""
        return self.resident_weight_bytes is not None and self.active_parameter_billions is not None


@dataclass(frozen=True)
class Fleet:
    """Nodes, workers and affinity (role → the nodes that it may run on; absent: all)."""

    revision: int = 0
    nodes: tuple[Node, ...] = ()
    workers: tuple[Worker, ...] = ()
    affinity: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The canonical form: sorted, whole numbers and text only, so that equal fleets are equal
        byte for byte.
        """
        return {
            "revision": self.revision,
            "nodes": [_node_document(node) for node in sorted(self.nodes, key=lambda n: n.node_id)],
            "workers": [
                _worker_document(worker)
                for worker in sorted(self.workers, key=lambda w: w.worker_id)
            ],
            "affinity": {role: sorted(set(self.affinity[role])) for role in sorted(self.affinity)},
        }

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical form without the revision, in hex."""
        document = self.document()
        del document["revision"]
        return hashlib.sha256(dumps(document)).hexdigest()

    @cached_property
    def workers_by_key(self) -> dict[str, tuple[Worker, ...]]:
        """The workers of each model, by comparison key."""
        found: dict[str, tuple[Worker, ...]] = {}
        for worker in self.workers:
            found[worker.key] = (*found.get(worker.key, ()), worker)
        return found

    def node(self, node_id: str) -> Node | None:
        """The node with that id."""
        return next((node for node in self.nodes if node.node_id == node_id), None)

    def nodes_for_role(self, role: str) -> tuple[Node, ...]:
        """The nodes on which a request in that role may run: all, where affinity does not say."""
        if role not in self.affinity:
            return self.nodes
        return tuple(node for node in self.nodes if node.node_id in self.affinity[role])

    def allowed_nodes(self, worker: Worker) -> tuple[Node, ...]:
        """The nodes on which the worker may run in at least one of its roles."""
        if not worker.roles:
            return self.nodes
        allowed = {node.node_id for role in worker.roles for node in self.nodes_for_role(role)}
        return tuple(node for node in self.nodes if node.node_id in allowed)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Fleet:
        """The fleet of a canonical document. Raises InvalidFleetDocument."""
        try:
            return cls(
                revision=_whole(document["revision"]) or 0,
                nodes=tuple(_node(item) for item in document["nodes"]),
                workers=tuple(_worker(item) for item in document["workers"]),
                affinity={
                    str(role): _names(node_ids) for role, node_ids in document["affinity"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError, InvalidOperation) as error:
            raise InvalidFleetDocument(
                f"The declared fleet cannot be read: {type(error).__name__} {error}."
            ) from error


def _node_document(node: Node) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "base_url": node.base_url,
        "vram_budget_bytes": node.vram_budget_bytes,
        "max_parallel_requests": node.max_parallel_requests,
        "memory": node.memory,
    }


def _worker_document(worker: Worker) -> dict[str, Any]:
    billions = worker.active_parameter_billions
    return {
        "worker_id": worker.worker_id,
        "model": worker.model,
        "roles": sorted(set(worker.roles)),
        "kind": worker.kind,
        "resident_weight_bytes": worker.resident_weight_bytes,
        # Text, and without the zeros that 90 and 90.0 differ by.
        "active_parameter_billions": None if billions is None else f"{billions.normalize():f}",
        "num_ctx": worker.num_ctx,
        "keep_alive": worker.keep_alive,
    }


def _whole(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _names(value: Any) -> tuple[str, ...]:
    # A single text would else become a name for each of its letters.
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"{value!r} is not a list of names")
    return tuple(value)


def _node(item: Mapping[str, Any]) -> Node:
    memory = item["memory"]
    if memory not in ("unified", "discrete"):
        raise ValueError(f"memory {memory!r}")
    return Node(
        node_id=str(item["node_id"]),
        base_url=normalise_url(item["base_url"]),
        vram_budget_bytes=_whole(item["vram_budget_bytes"]),
        max_parallel_requests=_whole(item["max_parallel_requests"]),
        memory=memory,
    )


def _worker(item: Mapping[str, Any]) -> Worker:
    kind, billions = item["kind"], item["active_parameter_billions"]
    if kind not in ("chat", "embedding"):
        raise ValueError(f"kind {kind!r}")
    try:
        comparison_key(item["model"])
    except InvalidModelName as error:
        raise ValueError(f"model {item['model']!r}: {error}") from error
    return Worker(
        worker_id=str(item["worker_id"]),
        model=str(item["model"]),
        roles=_names(item["roles"]),
        kind=kind,
        resident_weight_bytes=_whole(item["resident_weight_bytes"]),
        active_parameter_billions=None if billions is None else Decimal(str(billions)),
        num_ctx=_whole(item["num_ctx"]),
        keep_alive=item["keep_alive"],
    )
