"""The pool as the model keeps it: whose turn it is, which node is best, and why not the others."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aibs.lanes import UNMEASURED, lanes_of
from aibs.placement.model import check
from aibs.placement.model.state import Hold, NodeRecord, Reservation, Waiter
from aibs.placement.values import NodeReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aibs.fleet import Fleet
    from aibs.lanes import Lane
    from aibs.placement.values import Limits

WALK_MAX = 64
TRIED_FOR_MS = 1_000
NEXT_MAX = 8
NAMED_AFTER_A_GRANT = 2
REASONS_MAX = 16


@dataclass(frozen=True)
class Candidate:
    """A node that may take the request, with what ranks it."""

    node: NodeRecord
    lane: Lane
    free_slots: int
    warm: bool
    params: int
    free: int


@dataclass
class PoolState:
    """Everything. `frees` counts decisions that may have made room."""

    limits: Limits
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    declared: tuple[str, ...] | None = None
    lanes: dict[str, tuple[Lane, ...] | str] = field(default_factory=dict)
    waiters: dict[str, Waiter] = field(default_factory=dict)
    recovering: bool = False
    epoch: int = 0
    frees: int = 0
    cursor: str = ""
    arrivals: int = 0
    granted: int = 0
    freed: bool = False

    # --- the fleet

    def declare(self, fleet: Fleet) -> None:
        """The fleet from now on. A node that is gone, or that moved, is another node."""
        self.freed = False
        urls = {node.node_id: node.base_url for node in fleet.nodes}
        for node_id, record in list(self.nodes.items()):
            if record.base_url == urls.get(node_id):
                continue
            if record.used and node_id not in urls:
                kept = NodeRecord(node_id, record.base_url, holds=record.holds, undeclared=True)
                kept.ended = record.ended
                self.nodes[node_id] = kept
            else:
                del self.nodes[node_id]
        for node in fleet.nodes:
            record = self.nodes.setdefault(node.node_id, NodeRecord(node.node_id, node.base_url))
            if record.base_url != node.base_url:
                record = self.nodes[node.node_id] = NodeRecord(node.node_id, node.base_url)
            record.budget, record.slots = node.vram_budget_bytes, node.max_parallel_requests
            record.of_fleet, record.undeclared = False, False
        self.declared = tuple(sorted(urls))
        self.lanes = dict(lanes_of(fleet))
        self.free_something()

    def lanes_for(self, name: str) -> tuple[Lane, ...] | str:
        """The lanes of a request, or the denial that no time will mend."""
        found = self.lanes.get(name, "unknown_model")
        if isinstance(found, str):
            return found if found == UNMEASURED else "unknown_model"
        if all(lane.most == 0 for lane in found):
            return "affinity"
        if all(lane.weight > lane.most for lane in found):
            return "never_fits"
        return found

    # --- room

    def free_something(self) -> None:
        """Waiters that were refused for want of room are worth another look."""
        if not self.freed:
            self.freed = True
            self.frees += 1

    def settle(self, now: int, node_ids: Iterable[str]) -> None:
        """Slots that have drained come back on nodes that a decision looks at. A node that left the
        fleet is not polled: there time is all.
        """
        for node in [self.nodes[one] for one in node_ids if one in self.nodes]:
            for lease_id, hold in list(node.holds.items()):
                if (
                    hold.ended_ms is not None
                    and hold.till_ms is not None
                    and (node.undeclared or node.observed_ms > hold.ended_ms)
                    and now >= hold.till_ms
                ):
                    self.give_back(node, lease_id, now)
                    self.free_something()

    def give_back(self, node: NodeRecord, lease_id: str, now: int) -> None:
        """A hold ends. The next poll to begin is the first to tell our use from another's."""
        hold = node.holds.pop(lease_id)
        if hold.key not in node.leased():
            node.ended[hold.key] = now
        if node.undeclared and not node.holds:
            del self.nodes[node.node_id]

    # --- whose turn

    def rank(self, waiter: Waiter, now: int) -> int:
        """A waiter rises one class each SWAP_MAX_WAIT."""
        swap_ms = max(1, self.limits.swap_max_ms)
        return max(0, waiter.rank - max(0, now - waiter.arrival_ms) // swap_ms)

    def before(self, one: Waiter, other: Waiter, now: int) -> bool:
        """Whether one stands before the other."""
        return (self.rank(one, now), one.arrival_ms, one.number) < (
            self.rank(other, now),
            other.arrival_ms,
            other.number,
        )

    def in_order(self, now: int) -> list[Waiter]:
        """The waiters as they stand."""
        return sorted(
            self.waiters.values(),
            key=lambda one: (self.rank(one, now), one.arrival_ms, one.number),
        )

    def reason_at(
        self, node: NodeRecord, lane: Lane, asking: Waiter, now: int
    ) -> NodeReason | None:
        """Why the node does not take the request, its place in the queue aside."""
        if node.budget is None or node.slots is None:
            return NodeReason(node.node_id, "stale_residency")
        reason = check.closed(
            node, lane.key, now, self.limits, recovering=self.recovering, epoch=self.epoch
        ) or check.full(node, now)
        if reason is not None:
            return reason
        weight, _ = check.weight_on(node, lane, now)
        missing = check.lacking(node, lane.key, weight)
        if missing > 0:
            return NodeReason(node.node_id, "no_memory", missing_bytes=missing)
        stays = self._stays_ms(node, lane.key, weight, asking, now)
        if stays is not None:
            return NodeReason(node.node_id, "no_memory", wait_ms=stays, why="stays")
        if node.reserved is not None and node.reserved.request_key != asking.request_key:
            holder = self.waiters.get(node.reserved.request_key)
            older = holder is not None and self.before(holder, asking, now)
            if older and not check.beside(node, lane.key, weight):
                return NodeReason(node.node_id, "reserved")
        return None

    def _stays_ms(
        self, node: NodeRecord, key: str, weight: int, asking: Waiter, now: int
    ) -> int | None:
        """A model that others wait for stays a while before it is swapped out for another."""
        if node.warm(key):
            return None
        for name in check.to_unload(node, key, weight):
            left_ms = node.own[name].since_ms + self.limits.swap_min_ms - now
            wanted = any(
                name == lane.key
                for waiter in self.waiters.values()
                if node.node_id not in waiter.avoid
                for lane in waiter.lanes
            )
            if left_ms > 0 and wanted:
                return None if self._stood_long(asking, now) else left_ms
        return None

    def _stood_long(self, waiter: Waiter, now: int) -> bool:
        head = waiter.head_ms
        return head is not None and now - head >= max(1, self.limits.swap_max_ms)

    def order_at(self, node: NodeRecord, waiters: list[Waiter], now: int) -> list[Waiter]:
        """One that finds its model there passes those of its class right before it that do not,
        but for those that stood first for too long or have the node reserved.
        """
        order: list[Waiter] = []
        for waiter in waiters:
            at = len(order)
            if self._warm(node, waiter):
                while (
                    at > 0
                    and self._passable(node, order[at - 1], now)
                    and self.rank(order[at - 1], now) == self.rank(waiter, now)
                ):
                    at -= 1
            order.insert(at, waiter)
        return order

    def _warm(self, node: NodeRecord, waiter: Waiter) -> bool:
        return any(node.warm(lane.key) for lane in waiter.lanes)

    def _passable(self, node: NodeRecord, waiter: Waiter, now: int) -> bool:
        reserved = node.reserved is not None and node.reserved.request_key == waiter.request_key
        return not (self._warm(node, waiter) or self._stood_long(waiter, now) or reserved)

    def may_take(self, node: NodeRecord, lane: Lane, asking: Waiter, now: int) -> bool:
        """Whether nobody before it may take what it would take of this node."""
        imagined = copy.deepcopy(node)
        for waiter in self._preceding(node, asking, now):
            if (imagined.slots or 0) - imagined.used <= 0:
                return False
            if self.worth_a_look(waiter, now):
                self._imagine(imagined, waiter, now)
        return self.reason_at(imagined, lane, asking, now) is None

    def _wanting(self, node: NodeRecord, now: int) -> list[Waiter]:
        """The first waiters, but for those that must not get the node."""
        return [one for one in self.in_order(now)[:WALK_MAX] if node.node_id not in one.avoid]

    def _preceding(self, node: NodeRecord, asking: Waiter, now: int) -> list[Waiter]:
        """Those that it may not pass on the node: the ones ahead of it, but for those that it may
        pass; and those behind it that may pass it.
        """
        order = [one for one in self._wanting(node, now) if one is not asking]
        ahead = [one for one in order if self.before(one, asking, now)]
        behind = order[len(ahead) :]
        rank = self.rank(asking, now)
        if self._warm(node, asking):
            start = len(ahead)
            while (
                start > 0
                and self.rank(ahead[start - 1], now) == rank
                and (
                    self._warm(node, ahead[start - 1])
                    or self._passable(node, ahead[start - 1], now)
                )
            ):
                start -= 1
            return ahead[:start] + [one for one in ahead[start:] if self._warm(node, one)]
        passing = []
        if self._passable(node, asking, now):
            for one in behind:
                warm = self._warm(node, one)
                if self.rank(one, now) != rank or not (warm or self._passable(node, one, now)):
                    break
                if warm:
                    passing.append(one)
        return ahead + passing

    def worth_a_look(self, waiter: Waiter, now: int) -> bool:
        """Not where it was refused a moment ago, and nothing came free since."""
        return waiter.tried != self.frees or now - waiter.tried_ms > TRIED_FOR_MS

    def _imagine(self, node: NodeRecord, waiter: Waiter, now: int) -> bool:
        for lane in waiter.lanes:
            if lane.nodes is not None and node.node_id not in lane.nodes:
                continue
            if self.reason_at(node, lane, waiter, now) is None:
                self.hold(node, f"imagined {waiter.request_key}", lane, now, waiter.request_key)
                return True
        return False

    def hold(self, node: NodeRecord, lease_id: str, lane: Lane, now: int, request_key: str) -> int:
        """Put a lease on the node; its weight."""
        weight, _ = check.weight_on(node, lane, now)
        if node.reserved is not None and node.reserved.request_key != request_key:
            node.reserved.since[lease_id] = (lane.key, weight)
        node.holds[lease_id] = Hold(lane.key, weight, lane.params)
        return weight

    def next_on(self, node: NodeRecord | None, now: int) -> tuple[str, ...]:
        """The waiters that may go on the node now."""
        if node is None or node.slots is None:
            return ()
        imagined = copy.deepcopy(node)
        names: list[str] = []
        for waiter in self.order_at(node, self._wanting(node, now), now):
            if len(names) == NEXT_MAX or (imagined.slots or 0) - imagined.used <= 0:
                break
            if self._imagine(imagined, waiter, now):
                names.append(waiter.request_key)
        return tuple(names)

    def next_to_look(self, now: int) -> tuple[str, ...]:
        """The first waiters who may find room after a grant."""
        self.settle(now, list(self.nodes))
        roomy = {one.node_id for one in self.nodes.values() if one.slots and one.slots > one.used}
        names = [
            one.request_key
            for one in self.in_order(now)[:WALK_MAX]
            if roomy.difference(one.avoid) and self.worth_a_look(one, now)
        ]
        return tuple(names[:NAMED_AFTER_A_GRANT])

    # --- the choice

    def refusals(
        self, asking: Waiter, now: int
    ) -> tuple[Candidate | None, dict[str, NodeReason], bool]:
        """The best node, each node's nearest reason, and whether somebody ahead was in the way."""
        best: Candidate | None = None
        nearest: dict[str, NodeReason] = {}
        claimed = False
        for lane in asking.lanes:
            self.settle(now, list(lane.nodes if lane.nodes is not None else self.nodes))
            for node_id in self.declared or ():
                node = self.nodes[node_id]
                if lane.nodes is not None and node_id not in lane.nodes:
                    reason: NodeReason | None = NodeReason(node_id, "affinity")
                elif node_id in asking.avoid:
                    reason = NodeReason(node_id, "node_unhealthy", why="avoided")
                else:
                    reason = self.reason_at(node, lane, asking, now)
                    if (
                        reason is None
                        and self.waiters
                        and not self.may_take(node, lane, asking, now)
                    ):
                        reason = NodeReason(node_id, "reserved", why="queue")
                        claimed = True
                if reason is None:
                    found = self._candidate(node, lane)
                    if best is None or self._better(found, best):
                        best = found
                elif (
                    node_id not in nearest
                    or check.NEARNESS[reason.reason] < check.NEARNESS[nearest[node_id].reason]
                ):
                    nearest[node_id] = reason
        return best, nearest, claimed

    def avoids_all(self, asking: Waiter) -> bool:
        """Whether no node is left that it might get: no waiting helps."""
        nodes = {
            node_id
            for lane in asking.lanes
            for node_id in (lane.nodes if lane.nodes is not None else self.declared or ())
        }
        return nodes.issubset(asking.avoid)

    def _candidate(self, node: NodeRecord, lane: Lane) -> Candidate:
        return Candidate(
            node,
            lane,
            (node.slots or 0) - node.used,
            node.warm(lane.key),
            node.params,
            max(0, node.free()),
        )

    def _better(self, one: Candidate, other: Candidate) -> bool:
        def order(found: Candidate) -> tuple[int, bool, int, int, bool, str, str]:
            node_id = found.node.node_id
            return (
                -found.free_slots,
                not found.warm,
                found.params,
                -found.free,
                node_id <= self.cursor,
                node_id,
                found.lane.worker_id,
            )

        return order(one) < order(other)

    def told(
        self, asking: Waiter, nearest: dict[str, NodeReason]
    ) -> tuple[str, tuple[NodeReason, ...], dict[str, int]]:
        """The nearest reason, the first of each node's, and the rest counted."""
        one = asking.lanes[0]
        ids = one.nodes if len(asking.lanes) == 1 and one.nodes is not None else self.declared
        listed = sorted(
            (nearest[node_id] for node_id in ids or () if node_id in nearest),
            key=lambda reason: (check.NEARNESS[reason.reason], reason.node_id),
        )
        others: dict[str, int] = {}
        for reason in listed[REASONS_MAX:]:
            others[reason.reason] = others.get(reason.reason, 0) + 1
        first = listed[0].reason if listed else "stale_residency"
        return first, tuple(listed[:REASONS_MAX]), others

    # --- reservations

    def reserve(self, waiter: Waiter, now: int) -> None:
        """Keep a node for a waiter that has the memory nowhere now."""
        if self.reserved_by(waiter.request_key) is not None:
            return
        best: tuple[tuple[int, int, str], NodeRecord, Lane, int] | None = None
        for lane in waiter.lanes:
            for node_id in lane.nodes if lane.nodes is not None else self.declared or ():
                node = self.nodes.get(node_id)
                if node is None or node.budget is None or node.slots is None:
                    continue
                if node_id in waiter.avoid:
                    continue
                if check.closed(
                    node, lane.key, now, self.limits, recovering=self.recovering, epoch=self.epoch
                ):
                    continue
                weight, _ = check.weight_on(node, lane, now)
                if check.lacking(node, lane.key, weight) <= 0:
                    return
                room = node.foreign_for(lane.key) + weight <= node.budget
                if node.reserved is None and room:
                    order = (_blockers(node, lane.key, weight), -node.free(), node_id)
                    if best is None or order < best[0]:
                        best = (order, node, lane, weight)
        if best is not None:
            _, node, lane, weight = best
            node.reserved = Reservation(waiter.request_key, lane.key, weight)

    def reserved_by(self, request_key: str) -> NodeRecord | None:
        """The node that is kept for a waiter."""
        return next(
            (
                node
                for node in self.nodes.values()
                if node.reserved is not None and node.reserved.request_key == request_key
            ),
            None,
        )

    def drop_reservation(self, node: NodeRecord) -> None:
        """The node is kept for nobody any more."""
        if node.reserved is not None:
            node.reserved = None
            self.free_something()

    def note_heads(self, now: int) -> None:
        """The first of each class's list is noted once, when it comes to stand there."""
        for priority in ("high", "normal", "low"):
            of_class = [one for one in self.waiters.values() if one.priority == priority]
            if of_class:
                head = min(of_class, key=lambda one: (one.arrival_ms, one.number))
                if head.head_ms is None:
                    head.head_ms = now


def _blockers(node: NodeRecord, key: str, weight: int) -> int:
    """How many living leases must end before the request fits: heaviest models first."""
    missing = check.lacking(node, key, weight)
    counts: dict[str, int] = {}
    for hold in node.holds.values():
        counts[hold.key] = counts.get(hold.key, 0) + 1
    leased = node.leased()
    leases = 0
    for name in sorted((one for one in leased if one != key), key=lambda one: (-leased[one], one)):
        if missing <= 0:
            break
        missing -= leased[name]
        leases += counts[name]
    return max(leases, node.used - node.draining - (node.slots or 0) + 1)
