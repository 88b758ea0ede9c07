"""What a process without a monitor remembers of its nodes' models: what its own leases left there.

A model is taken to be there from a load that its holder reported, or a lease that its holder
completed, until its keep-alive has run out since the last lease of it, until a grant has it
unloaded for another one's room, or until something failed there. Then it may be there: it counts
for the room that a load needs, and not as warm, so that the next lease of it sends a load, which
Ollama answers at once where the model is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.ollama.keep_alive import parse_keep_alive
from aibs.placement.model.observe import Poll, SeenModel, observe

if TYPE_CHECKING:
    from aibs.fleet import Fleet, Worker
    from aibs.placement.model.pool import PoolState

KEPT_BY_DEFAULT_MS = 300_000
"""Ollama's own keep-alive, where neither a request nor the node's environment has another."""

MARGIN_MS = 2_000
"""So much before its keep-alive runs out a model is not relied on: a request has to get there."""

_NS_PER_MS = 1_000_000


class Remembered:
    """Every node as if it were seen at each call, holding what is remembered of it."""

    def __init__(self, fleet: Fleet, pool: PoolState) -> None:
        self._pool = pool
        self._nodes = [node.node_id for node in fleet.nodes]
        self._kept_ms = {
            key: min(map(_kept_ms, workers)) for key, workers in fleet.workers_by_key.items()
        }
        self._used_ms: dict[tuple[str, str], int] = {}

    def look(self, now: int) -> None:
        """See every node."""
        for node_id in self._nodes:
            node = self._pool.nodes[node_id]
            leased = node.leased()
            for key in leased:
                self._used_ms[node_id, key] = now
            doubted = {
                key
                for key, resident in node.own.items()
                if resident.maybe or (key not in leased and self._has_run_out(node_id, key, now))
            }
            seen = tuple(SeenModel(key, resident.charge) for key, resident in node.own.items())
            observe(self._pool, Poll(node_id, now, good=True, models=seen, logged=False), now)
            for key in doubted & node.own.keys():
                node.own[key].maybe = True

    def doubt(self, node_id: str, key: str | None = None) -> None:
        """Something failed there: the model, or all of them, may be gone."""
        node = self._pool.nodes.get(node_id)
        for held, resident in node.own.items() if node is not None else ():
            if key in (None, held):
                resident.maybe = True

    def _has_run_out(self, node_id: str, key: str, now: int) -> bool:
        used_ms = self._used_ms.get((node_id, key), 0)
        return now - used_ms > self._kept_ms.get(key, 0) - MARGIN_MS


def _kept_ms(worker: Worker) -> int:
    kept_ns = parse_keep_alive(worker.keep_alive)
    return KEPT_BY_DEFAULT_MS if kept_ns is None else kept_ns // _NS_PER_MS
