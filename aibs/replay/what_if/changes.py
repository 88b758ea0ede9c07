"""`--what-if NAME=VALUE`: what is changed of a fleet. Pure."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from aibs.codec import BYTES_PER_GB
from aibs.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aibs.fleet import Fleet

FORMS = "NODE.vram_gb=110, NODE.slots=2, NODE=off or worker.WORKER.resident_weight_gb=24"
SLOTS_MAX = 1024
GB_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """One change, as typed and as meant: `value` in bytes or slots; None switches a node off."""

    text: str
    kind: str
    name: str
    value: int | None


def read_changes(texts: Sequence[str]) -> tuple[Change, ...]:
    """The changes. Raises ConfigurationError with one sentence."""
    return tuple(_read(text) for text in texts)


def _read(text: str) -> Change:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise _unclear(text)
    if name.startswith("worker."):
        worker_id, dot, what = name.removeprefix("worker.").rpartition(".")
        if dot and worker_id and what == "resident_weight_gb":
            return Change(text, "weight", worker_id, _bytes(text, value))
        raise _unclear(text)
    node_id, dot, what = name.rpartition(".")
    if dot and node_id and what == "vram_gb":
        return Change(text, "budget", node_id, _bytes(text, value))
    if dot and node_id and what == "slots":
        return Change(text, "slots", node_id, _slots(text, value))
    if value == "off":
        return Change(text, "off", name, None)
    raise _unclear(text)


def _unclear(text: str) -> ConfigurationError:
    return ConfigurationError(f"--what-if {text!r} is no change of a fleet.", mend=f"Take {FORMS}.")


def _bytes(text: str, value: str) -> int:
    try:
        gigabytes = Decimal(value)
    except InvalidOperation:
        gigabytes = Decimal(-1)
    if not gigabytes.is_finite() or not 0 < gigabytes <= GB_MAX:
        raise ConfigurationError(
            f"--what-if {text!r}: {value!r} is no size in GB.", mend="Write it as 47.2."
        )
    return int(gigabytes * BYTES_PER_GB)


def _slots(text: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= SLOTS_MAX:
        raise ConfigurationError(
            f"--what-if {text!r}: {value!r} is no number of slots.",
            mend=f"Write a whole number from 1 to {SLOTS_MAX}.",
        )
    return int(value)


def require_names(fleets: Sequence[Fleet], changes: Iterable[Change]) -> None:
    """Raises ConfigurationError for a name that none of the fleets has."""
    nodes = sorted({node.node_id for fleet in fleets for node in fleet.nodes})
    workers = sorted({worker.worker_id for fleet in fleets for worker in fleet.workers})
    for change in changes:
        if change.kind == "weight":
            _require(change, workers, "worker")
        else:
            _require(change, nodes, "node")


def changed(fleet: Fleet, changes: Iterable[Change]) -> Fleet:
    """The fleet with the changes; those of a node or worker that it has not change nothing."""
    nodes = {node.node_id: node for node in fleet.nodes}
    workers = {worker.worker_id: worker for worker in fleet.workers}
    for change in changes:
        name, value = change.name, change.value
        if change.kind == "weight" and name in workers:
            workers[name] = replace(workers[name], resident_weight_bytes=value)
        elif change.kind == "budget" and name in nodes:
            nodes[name] = replace(nodes[name], vram_budget_bytes=value)
        elif change.kind == "slots" and name in nodes:
            nodes[name] = replace(nodes[name], max_parallel_requests=value)
    return replace(fleet, nodes=tuple(nodes.values()), workers=tuple(workers.values()))


def switched_off(changes: Iterable[Change]) -> frozenset[str]:
    """The nodes that take nothing."""
    return frozenset(change.name for change in changes if change.kind == "off")


def reweighed(fleet: Fleet, changes: Iterable[Change]) -> dict[str, int]:
    """By comparison key, the weights that are supposed: what was observed says nothing of them."""
    supposed = {change.name: change.value for change in changes if change.kind == "weight"}
    return {
        worker.key: supposed[worker.worker_id] or 0
        for worker in fleet.workers
        if worker.worker_id in supposed
    }


def _require(change: Change, names: Sequence[str], what: str) -> None:
    if change.name in names:
        return
    near = difflib.get_close_matches(change.name, names, 1)
    hint = f"Did you mean {near[0]}?" if near else f"They are: {', '.join(names) or 'none'}."
    raise ConfigurationError(
        f"--what-if {change.text!r}: the recorded fleet has no {what} {change.name}.", mend=hint
    )
