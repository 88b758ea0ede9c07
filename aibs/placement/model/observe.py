"""What a poll says of a node, as placement reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.placement.model.state import Resident

if TYPE_CHECKING:
    from aibs.placement.model.pool import PoolState
    from aibs.placement.model.state import NodeRecord

MOVED_MS = 1_000


@dataclass(frozen=True)
class SeenModel:
    """An own model in a poll's answer."""

    key: str
    charge: int
    digest: str | None = None
    context: int | None = None
    expires_ms: int | None = None


@dataclass(frozen=True)
class Poll:
    """A poll's answer. `foreign` are others' bytes; `healthy` and `loading` are what the stamp says
    after it; `logged` whether the log tells of it, which alone updates observed weights.
    """

    node_id: str
    begun_ms: int
    good: bool
    models: tuple[SeenModel, ...] = ()
    foreign: int = 0
    unaccounted: bool = False
    healthy: bool | None = True
    loading: bool = False
    logged: bool = True


def observe(pool: PoolState, poll: Poll, now: int) -> None:
    """Note a poll that the stamps took."""
    pool.freed = False
    node = pool.nodes[poll.node_id]
    pool.settle(now, [node.node_id])
    before = (
        not node.observed_ms
        or not node.of_fleet
        or node.healthy is False
        or node.loading
        or node.unaccounted
        or now - node.observed_ms > pool.limits.staleness_ms
    )
    foreign = node.foreign
    if poll.good:
        _judge_residents(node, poll)
        if poll.logged:
            _weigh(node, poll)
        node.observed_ms, node.of_fleet, node.epoch = poll.begun_ms, True, pool.epoch
        node.unaccounted, node.foreign = poll.unaccounted, poll.foreign
    node.healthy, node.loading = poll.healthy, poll.loading
    pool.settle(now, [node.node_id])
    if poll.good and (before or foreign != node.foreign or poll.logged):
        pool.free_something()
    if node.healthy is False:
        pool.drop_reservation(node)


def _weigh(node: NodeRecord, poll: Poll) -> None:
    """The most that a model was seen to weigh while its digest and context stay the same."""
    for model in poll.models:
        if model.charge <= 0:
            continue
        weight, what = model.charge, (model.digest, model.context)
        if node.digests.get(model.key) == what:
            weight = max(weight, node.seen[model.key][0])
        node.seen[model.key] = (weight, poll.begun_ms)
        node.digests[model.key] = what


def _judge_residents(node: NodeRecord, poll: Poll) -> None:
    own: dict[str, Resident] = {}
    busy: set[str] = set()
    for model in poll.models:
        held = node.own.get(model.key)
        since = held.since_ms if held else poll.begun_ms
        own[model.key] = Resident(model.charge, since, model.expires_ms)
        if _used_by_others(node, model.key, own[model.key], poll.begun_ms):
            busy.add(model.key)
    for key, at in node.ended.items():
        # A poll that began before our last lease ended does not tell what that lease left.
        if poll.begun_ms <= at and key not in own and key in node.own:
            own[key] = node.own[key]
    node.ended = {key: at for key, at in node.ended.items() if poll.begun_ms <= at}
    node.going = {
        key: (lease_id, at)
        for key, (lease_id, at) in node.going.items()
        if key in own or poll.begun_ms <= at
    }
    node.own, node.busy, node.residents_known = own, busy, True


def _used_by_others(node: NodeRecord, key: str, now_there: Resident, begun_ms: int) -> bool:
    """It appeared, or its keep-alive moved, while no lease of ours held it. The first poll of a
    node, and the first to begin after our last lease there, only note what is there.
    """
    if key in node.leased():
        now_there.expires_ms = None
        return False
    if not node.observed_ms or not node.residents_known:
        return False
    if key in node.ended:
        if begun_ms <= node.ended[key]:
            now_there.expires_ms = None
        return False
    before = node.own.get(key)
    if before is None or key in node.busy:
        return True
    return (
        before.expires_ms is not None
        and now_there.expires_ms is not None
        and abs(now_there.expires_ms - before.expires_ms) > MOVED_MS
    )
