"""Whether one node may take one request, and the first reason why not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.placement.values import NodeReason

if TYPE_CHECKING:
    from aibs.lanes import Lane
    from aibs.placement.model.state import NodeRecord
    from aibs.placement.values import Limits

OBSERVED_WEIGHT_MS = 86_400_000

NEARNESS = {
    reason: position
    for position, reason in enumerate(
        (
            "reserved",
            "draining",
            "no_slot",
            "no_memory",
            "node_loading",
            "unaccounted_resident",
            "pool_recovering",
            "stale_residency",
            "node_tripped",
            "node_unhealthy",
            "node_cordoned",
            "affinity",
        )
    )
}
"""Of several reasons, the one that is nearest to a grant stands for all."""


def weight_on(node: NodeRecord, lane: Lane, now: int) -> tuple[int, str]:
    """The declared weight, or what was observed there if that is more, and which of them it is."""
    weight, at_ms = node.seen.get(lane.key, (0, 0))
    if weight > lane.weight and (lane.key in node.own or at_ms >= now - OBSERVED_WEIGHT_MS):
        return weight, "observed"
    return lane.weight, "declared"


def idle(node: NodeRecord) -> dict[str, int]:
    """Own models that are resident and that nobody uses, with their charges."""
    leased = node.leased()
    return {
        key: resident.charge
        for key, resident in node.own.items()
        if key not in leased and key not in node.busy and key not in node.going
    }


def to_unload(node: NodeRecord, key: str, weight: int) -> tuple[str, ...]:
    """The idle own models to unload before a load: the largest first, so that they are fewest."""
    others = {name: charge for name, charge in idle(node).items() if name != key}
    occupied = node.foreign_for(key) + sum(node.leased().values()) + weight + sum(others.values())
    chosen = []
    for name in sorted(others, key=lambda one: (-others[one], one)):
        if occupied <= (node.budget or 0):
            break
        chosen.append(name)
        occupied -= others[name]
    return tuple(chosen)


def lacking(node: NodeRecord, key: str, weight: int) -> int:
    """Bytes by which a lease of that weight would leave the node over its budget."""
    leased = node.leased()
    added = max(0, weight - leased[key]) if key in leased else weight
    return node.foreign_for(key) + sum(leased.values()) + added - (node.budget or 0)


def closed(
    node: NodeRecord, key: str, now: int, limits: Limits, *, recovering: bool, epoch: int
) -> NodeReason | None:
    """What no lease's end can mend."""

    def because(reason: str, wait_ms: int | None = None) -> NodeReason:
        return NodeReason(node.node_id, reason, wait_ms=wait_ms)

    until = node.cordon_until_ms
    if until is not None and (until == 0 or now < until):
        return because("node_cordoned", until - now if until else None)
    if node.trip is not None and (now < node.trip.reopen_ms or node.trip.probe is not None):
        return because("node_tripped", max(0, node.trip.reopen_ms - now))
    if node.healthy is False:
        return because("node_unhealthy")
    if node.loading or key in node.going:
        return because("node_loading")
    if node.observed_ms and (recovering or node.epoch != epoch):
        return because("pool_recovering")
    age_ms = now - node.observed_ms
    if not node.observed_ms or not node.of_fleet or not 0 <= age_ms <= limits.staleness_ms:
        return because("stale_residency")
    return because("unaccounted_resident") if node.unaccounted else None


def full(node: NodeRecord, now: int) -> NodeReason | None:
    """Whether every slot is taken, and whether some of them drain."""
    if (node.slots or 0) - node.used > 0:
        return None
    if (node.slots or 0) - (node.used - node.draining) > 0:
        till = min(hold.till_ms for hold in node.holds.values() if hold.till_ms is not None)
        return NodeReason(node.node_id, "draining", wait_ms=max(0, till - now))
    return NodeReason(node.node_id, "no_slot")


def beside(node: NodeRecord, key: str, weight: int) -> bool:
    """Whether it fits beside the request that the node is reserved for."""
    reserved = node.reserved
    if reserved is None:
        return True
    models = dict(reserved.since.values())
    models[key] = max(models.get(key, 0), weight)
    models.pop(reserved.key, None)
    total = node.foreign_for(key) + reserved.weight + sum(models.values())
    return total <= (node.budget or 0) and len(reserved.since) + 2 <= (node.slots or 0)
