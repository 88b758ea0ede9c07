"""What each node can hold and holds: budget, residency, leases, slots, and what closes it.

Everything as the log tells it. A healthy node is observed at every poll, of which the log has one a
minute and each change: how old the live stamp is, the log does not know, and does not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.projections.engine import Fold
from aibs.projections.node_capacity import NodeCapacity, closed_by, new_node, rests, see

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aibs.eventstore.events import Event
    from aibs.projections.engine import Handler


class Capacity(Fold):
    """Every node that is declared, or that still has leases."""

    name = "capacity"
    version = 2
    """2 keeps when a slot's lease ended, and when its node was seen, which it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, dict[str, Any]] = {}
        self._where: dict[str, str] = {}

    # --- what it says

    def at(self, at_ms: int, polled: Mapping[str, int] | None = None) -> tuple[NodeCapacity, ...]:
        """Every node as it stands at that moment, by id. `polled` tells of each node's newest poll
        when it began, where its caller knows of younger ones than the log.
        """
        known = polled or {}
        return tuple(
            self.node_at(node_id, at_ms, known.get(node_id, 0)) for node_id in sorted(self.nodes)
        )

    def node_at(self, node_id: str, at_ms: int, polled_ms: int = 0) -> NodeCapacity:
        """One node. Raises KeyError where it was never heard of."""
        node = self.nodes[node_id]
        seen_ms = max(node["seen_at_ms"], polled_ms)
        seen = node["residency"]
        leases = {
            lease_id: held
            for lease_id, held in node["leases"].items()
            if held["base_url"] == node["base_url"]
        }
        draining = [one for one in node["draining"] if rests(one, seen_ms, at_ms)]
        weights: dict[str, int] = {}
        for held in (*leases.values(), *draining):
            weights[held["key"]] = max(weights.get(held["key"], 0), held["weight_bytes"])
        leased = sum(weights.values())
        foreign = None if seen is None else seen["foreign_bytes"]
        budget, slots = node["budget_bytes"], node["slots"]
        used = len(leases) + len(draining)
        return NodeCapacity(
            node_id=node_id,
            base_url=node["base_url"],
            declared=node["declared"],
            budget_bytes=budget,
            own_bytes=None if seen is None else seen["own_bytes"],
            foreign_bytes=foreign,
            leased_bytes=leased,
            free_bytes=None if budget is None or foreign is None else budget - foreign - leased,
            slots=slots,
            slots_used=used,
            slots_draining=len(draining),
            slots_free=None if slots is None else max(0, slots - used),
            leases=tuple(sorted(leases)),
            observed_ms_ago=None if seen is None else at_ms - seen["observed_at_ms"],
            closed_by=tuple(closed_by(node, at_ms)),
            evidence=node["evidence"],
        )

    # --- how it comes to know

    def handlers(self) -> dict[str, Handler]:
        """By event type."""
        return {
            "FleetDeclared": self._declared,
            "ResidencyObserved": self._observed,
            "NodeHealthChanged": self._health_changed,
            "LeaseAcquired": self._acquired,
            "LeaseReleased": self._released,
            "LeaseExpired": self._lapsed,
            "LeaseReaped": self._reaped,
            "NodeCordoned": self._cordoned,
            "NodeUncordoned": lambda _event, data: self._mark(data["node_id"], "cordon", None),
            "NodeTripped": self._tripped,
            "NodeRestored": lambda _event, data: self._mark(data["node_id"], "trip", None),
        }

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "nodes": {
                node_id: {
                    **node,
                    "leases": dict(node["leases"]),
                    "draining": list(node["draining"]),
                }
                for node_id, node in self.nodes.items()
            }
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become what was written as this."""
        self.nodes = state["nodes"]
        self._where = {
            lease_id: node_id for node_id, node in self.nodes.items() for lease_id in node["leases"]
        }

    @classmethod
    def lifted(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Version 1 let a slot rest for its time alone."""
        if document["version"] != 1:
            return super().lifted(document)
        nodes = {
            node_id: {
                **node,
                "seen_at_ms": 0 if node["residency"] is None else 1,
                "draining": [{**one, "ended_at_ms": 0} for one in node["draining"]],
            }
            for node_id, node in document["state"]["nodes"].items()
        }
        return {**document, "state": {"nodes": nodes}}

    def _node(self, node_id: str, base_url: str) -> dict[str, Any]:
        node = self.nodes.get(node_id)
        if node is None:
            node = self.nodes[node_id] = new_node(base_url)
        return node

    def _declared(self, event: Event, data: dict[str, Any]) -> None:
        declared = {node["node_id"]: node for node in data["fleet"].get("nodes", ())}
        for node_id, node in list(self.nodes.items()):
            if node_id not in declared:
                node["declared"], node["budget_bytes"], node["slots"] = False, None, None
                self._forget_if_empty(node_id, event.at_ms)
        for node_id, said in declared.items():
            node = self._node(node_id, said["base_url"])
            if node["base_url"] != said["base_url"] or not node["declared"]:
                # A new URL under an old id is a new node: nothing known of it stays but its leases.
                # One that comes back as it was has its resting slots, too.
                before, node = node, new_node(said["base_url"])
                node["leases"] = before["leases"]
                if before["base_url"] == said["base_url"]:
                    node["draining"] = before["draining"]
                self.nodes[node_id] = node
            node["declared"] = True
            node["budget_bytes"] = said.get("vram_budget_bytes")
            node["slots"] = said.get("max_parallel_requests")

    def _observed(self, event: Event, data: dict[str, Any]) -> None:
        node = self._node(data["node_id"], data["base_url"])
        see(node, data["observed_at_ms"], event.at_ms)
        node["residency"] = {
            "healthy": data["healthy"],
            "reason": data["reason"],
            "own_bytes": data["own_bytes"],
            "foreign_bytes": data["foreign_bytes"],
            "unaccounted": data["unaccounted"],
            "observed_at_ms": data["observed_at_ms"],
            "fence": event.fence,
            "event_id": event.id,
            "models": [
                {
                    "name": model["name"],
                    "key": model["key"],
                    "ownership": model["ownership"],
                    "charge_bytes": model["charge_bytes"],
                }
                for model in data["models"]
            ],
        }

    def _health_changed(self, event: Event, data: dict[str, Any]) -> None:
        node = self._node(data["node_id"], data["base_url"])
        seen = node["residency"]
        if seen is None:
            node["unhealthy"] = None if data["healthy"] else data["reason"]
            return
        node["residency"] = {
            **seen,
            "healthy": data["healthy"],
            "reason": data["reason"],
            "event_id": event.id,
        }

    def _acquired(self, event: Event, data: dict[str, Any]) -> None:
        lease = data["lease"]
        node_id, lease_id = lease["node_id"], lease["lease_id"]
        node = self._node(node_id, lease["base_url"])
        node["leases"][lease_id] = {
            "key": lease["key"],
            "weight_bytes": lease["weight_bytes"],
            "drain_ms": lease["drain_ms"],
            "base_url": lease["base_url"],
        }
        node["evidence"] = data["evidence"]
        # A grant says how fresh its node's stamp was, also where no event told of the poll.
        see(node, data["evidence"]["observed_at_ms"], event.at_ms)
        self._where[lease_id] = node_id

    def _end(self, lease_id: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        node_id = self._where.pop(lease_id, None)
        if node_id is None:
            return None
        node = self.nodes[node_id]
        return node, node["leases"].pop(lease_id)

    def _released(self, event: Event, data: dict[str, Any]) -> None:
        found = self._end(data["lease_id"])
        if found is not None and not found[0]["declared"]:
            self._forget_if_empty(data["node_id"], event.at_ms)

    def _lapsed(self, event: Event, data: dict[str, Any]) -> None:
        found = self._end(data["lease_id"])
        if found is None:
            return
        node, held = found
        if held["base_url"] == node["base_url"]:
            still = [one for one in node["draining"] if rests(one, node["seen_at_ms"], event.at_ms)]
            drain = {
                "lease_id": data["lease_id"],
                "key": held["key"],
                "weight_bytes": held["weight_bytes"],
                "ended_at_ms": event.at_ms,
                "until_ms": event.at_ms + held["drain_ms"],
            }
            node["draining"] = [*still, drain]
        if not node["declared"]:
            self._forget_if_empty(data["node_id"], event.at_ms)

    def _reaped(self, event: Event, data: dict[str, Any]) -> None:
        (self._lapsed if data["drained"] else self._released)(event, data)

    def _forget_if_empty(self, node_id: str, at_ms: int) -> None:
        node = self.nodes.get(node_id)
        if node is None or node["leases"]:
            return
        if all(one["until_ms"] <= at_ms for one in node["draining"]):
            del self.nodes[node_id]

    def _mark(self, node_id: str, name: str, mark: dict[str, Any] | None) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            node[name] = mark

    def _cordoned(self, _event: Event, data: dict[str, Any]) -> None:
        mark = {"why": data["why"], "by": data["by"], "until_ms": data["until_ms"]}
        self._mark(data["node_id"], "cordon", mark)

    def _tripped(self, _event: Event, data: dict[str, Any]) -> None:
        mark = {"why": data["why"], "by": data["by"], "reopen_at_ms": data["reopen_at_ms"]}
        self._mark(data["node_id"], "trip", mark)
