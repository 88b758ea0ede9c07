"""Every call of the protocol as one decision of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aibs.placement.model import check
from aibs.placement.model.pool import Candidate, PoolState
from aibs.placement.model.state import (
    HeldLease,
    NodeRecord,
    Resident,
    Tombstone,
    Trip,
    Waiter,
)
from aibs.placement.values import Beat, Denied, Granted, Lease, Place, Queued, Released

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aibs.placement.values import Limits, NodeReason, Outcome, Request

TOMBSTONE_MS = 600_000
TRIP_FIRST_MS = 10_000
TRIP_MAX_MS = 300_000
REAP_BY_ACQUIRE_MAX = 16
REAP_MAX = 64
NEWEST = 2**53


class PlacementModel(PoolState):
    """One pool. `wakes` collects the request keys that decisions named as free to go."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.leases: dict[str, HeldLease] = {}
        self.requests: dict[str, str] = {}
        self.ended: dict[str, Tombstone] = {}
        self.wakes: list[tuple[str, ...]] = []

    def _begin(self, now: int, *node_ids: str) -> None:
        self.freed = False
        self.settle(now, node_ids)

    # --- requests

    def acquire(self, request: Request, *, lease_id: str, now: int) -> Granted | Queued | Denied:
        """Place the request, queue it, or say why not."""
        self._begin(now)
        rest = self._known(request, now)
        if rest is not None:
            return rest
        waiter = self.waiters.get(request.request_key)
        if waiter is not None and waiter.wait_deadline_ms > now:
            self._keep_place(waiter, now)
        if self.waiters or self.recovering or not self._easily(request, now):
            self._reap(now, REAP_BY_ACQUIRE_MAX)
        asking = waiter or _asking(request, now)
        buried = self.ended.get(request.request_key)
        if (buried is not None and buried.until_ms > now) or (
            waiter is not None and waiter.wait_deadline_ms <= now
        ):
            return self._timed_out(asking, waiter, now)
        self._sweep(now, REAP_BY_ACQUIRE_MAX)
        if waiter is not None and not self.worth_a_look(waiter, now) and now >= waiter.tried_ms:
            place = self.in_order(now).index(waiter) + 1
            return Queued(now, place, waiter.tried_reason, (), {}, waiter.wait_deadline_ms)
        if self.declared is None:
            return Denied("stale_residency")
        lanes = self.lanes_for(request.lane)
        if isinstance(lanes, str):
            if waiter is not None:
                self._end_wait(waiter, "refused", now)
            return Denied(lanes)
        asking.lanes = lanes
        best, nearest, claimed = self.refusals(asking, now)
        if best is not None:
            queue_ms = 0
            if waiter is not None:
                queue_ms = max(0, now - waiter.arrival_ms)
                self._end_wait(waiter, "granted", now)
            return self._grant(request, best, lease_id, queue_ms, now, waited=waiter is not None)
        reason, told, others = self.told(asking, nearest)
        if waiter is None:
            if request.wait_ms == 0 or self.avoids_all(asking):
                waits = [one.wait_ms for one in nearest.values() if one.wait_ms is not None]
                return Denied(reason, told, others, retry_after_ms=min(waits, default=None))
            full = len(self.waiters) >= self.limits.queue_max
            mine = sum(one.environment == request.environment for one in self.waiters.values())
            if full or mine >= max(1, self.limits.queue_max // 4):
                return Denied("queue_full")
            waiter = self._enqueue(request, asking, now)
        self.reserve(waiter, now)
        if not claimed:
            waiter.tried, waiter.tried_ms, waiter.tried_reason = self.frees, now, reason
        place = self.in_order(now).index(waiter) + 1
        return Queued(now, place, reason, told, others, waiter.wait_deadline_ms)

    def _known(self, request: Request, now: int) -> Granted | Denied | None:
        """What is remembered of the request; None where it is to be decided."""
        buried = self.ended.get(request.request_key)
        if buried is not None and buried.until_ms > now:
            if buried.request_hash not in (request.request_hash, "-"):
                return Denied("request_conflict")
            if buried.how == "timed_out":
                return None
            return Denied("request_ended", detail=buried.how)
        lease_id = self.requests.get(request.request_key)
        if lease_id is not None:
            held = self.leases[lease_id]
            if held.request_hash != request.request_hash:
                return Denied("request_conflict")
            if held.deadline_ms <= now:
                return Denied("request_ended", detail=self._end_overdue(held, now))
            lease = replace(held.lease, deadline_ms=held.deadline_ms)
            return Granted(lease, now, held.deadline_ms - now)
        waiter = self.waiters.get(request.request_key)
        if waiter is not None and waiter.request_hash != request.request_hash:
            return Denied("request_conflict")
        return None

    def _easily(self, request: Request, now: int) -> bool:
        """Whether a node takes it as things are: then nothing is reaped first."""
        lanes = self.lanes_for(request.lane) if self.declared is not None else ""
        if isinstance(lanes, str):
            return False
        asking = _asking(request, now)
        asking.lanes = lanes
        return self.refusals(asking, now)[0] is not None

    def _timed_out(self, asking: Waiter, waiter: Waiter | None, now: int) -> Denied:
        lanes = self.lanes_for(asking.lane)
        told: tuple[NodeReason, ...] = ()
        others: dict[str, int] = {}
        if not isinstance(lanes, str):
            asking.lanes = lanes
            _, told, others = self.told(asking, self.refusals(asking, now)[1])
        if waiter is not None:
            self._end_wait(waiter, "timed_out", now)
        self._sweep(now, REAP_BY_ACQUIRE_MAX)
        return Denied("wait_timeout", told, others)

    def _enqueue(self, request: Request, asking: Waiter, now: int) -> Waiter:
        self.arrivals += 1
        newest = [
            one.arrival_ms for one in self.waiters.values() if one.priority == request.priority
        ]
        waiter = Waiter(
            request.request_key,
            request.priority,
            max([now, *newest]),
            self.arrivals,
            request.lane,
            asking.lanes,
            request.environment,
            request.request_hash,
            now + request.wait_ms,
            avoid=request.avoid,
        )
        self.waiters[request.request_key] = waiter
        self.note_heads(now)
        self._keep_place(waiter, now)
        return waiter

    def _keep_place(self, waiter: Waiter, now: int) -> None:
        waiter.place_until_ms = min(now + self.limits.grace_ms, waiter.wait_deadline_ms)

    def _grant(
        self,
        request: Request,
        found: Candidate,
        lease_id: str,
        queue_ms: int,
        now: int,
        *,
        waited: bool,
    ) -> Granted:
        node, lane = found.node, found.lane
        weight, _ = check.weight_on(node, lane, now)
        unload = check.to_unload(node, lane.key, weight)
        warm = node.resident(lane.key)
        others = () if warm else tuple(sorted(key for key in node.going if key != lane.key))
        probe = node.trip is not None
        self.hold(node, lease_id, lane, now, request.request_key)
        if not warm:
            node.going |= dict.fromkeys(unload, (lease_id, now))
        if node.trip is not None:
            node.trip.probe = lease_id
        self.granted += 1
        self.cursor = node.node_id
        lease = Lease(
            lease_id=lease_id,
            token=str(self.granted),
            request_key=request.request_key,
            request_id=request.request_id,
            environment=request.environment,
            holder=request.holder,
            model=lane.model,
            key=lane.key,
            worker_id=lane.worker_id,
            role=request.role,
            node_id=node.node_id,
            base_url=node.base_url,
            weight_bytes=weight,
            ttl_ms=request.ttl_ms,
            acquired_at_ms=now,
            deadline_ms=now + request.ttl_ms,
            warm=warm,
            probe=probe,
            unload_first=(*unload, *others),
            queue_ms=queue_ms,
        )
        self.leases[lease_id] = HeldLease(
            lease, request.request_hash, lane.params, self.limits.drain_ms, lease.deadline_ms
        )
        self.requests[request.request_key] = lease_id
        if waited:
            self.wakes.append(self.next_to_look(now))
        return Granted(lease, now, request.ttl_ms)

    def cancel(self, request_key: str, request_hash: str, now: int) -> str:
        """End a request whatever became of it: what it was."""
        self._begin(now)
        buried = self.ended.get(request_key)
        if buried is not None and buried.until_ms > now:
            return "ended"
        waiter, lease_id = self.waiters.get(request_key), self.requests.get(request_key)
        if waiter is None and lease_id is None:
            self._bury(request_key, request_hash or "-", "cancelled", now)
            return "unseen"
        known = waiter.request_hash if waiter else self.leases[lease_id or ""].request_hash
        if request_hash and known != request_hash:
            return "another"
        if waiter is not None:
            self._end_wait(waiter, "cancelled", now)
            return "queued"
        self._give_back(self.leases[lease_id or ""], "cancelled", "-", now)
        return "leased"

    def refresh(self, request_keys: Sequence[str], now: int) -> list[Place]:
        """Keep the places of waiters, and tell each where it stands."""
        self._begin(now)
        for key in request_keys:
            waiter = self.waiters.get(key)
            if waiter is not None and waiter.wait_deadline_ms > now:
                self._keep_place(waiter, now)
        self._sweep(now, REAP_BY_ACQUIRE_MAX)
        order = self.in_order(now)
        places = []
        for key in request_keys:
            buried = self.ended.get(key)
            if key in self.waiters:
                position = order.index(self.waiters[key]) + 1
                places.append(Place(key, "queued", position=position))
            elif key in self.requests:
                places.append(Place(key, "leased"))
            elif buried is not None and buried.until_ms > now:
                places.append(Place(key, "ended", how=buried.how))
            else:
                places.append(Place(key, "unknown"))
        return places

    # --- leases

    def heartbeat(self, holder: str, leases: Sequence[tuple[str, str]], now: int) -> list[Beat]:
        """Renew leases by (lease id, token)."""
        self._begin(now)
        beats, overdue = [], []
        for lease_id, token in leases:
            held = self.leases.get(lease_id)
            if held is None or (held.lease.token, held.lease.holder) != (token, holder):
                beats.append(Beat(lease_id, "unknown"))
            elif held.revoked is not None:
                beats.append(Beat(lease_id, "revoked"))
            elif held.deadline_ms <= now:
                beats.append(Beat(lease_id, "expired"))
                overdue.append(held)
            else:
                held.deadline_ms, held.heartbeat_ms = now + held.lease.ttl_ms, now
                beats.append(Beat(lease_id, "ok", held.deadline_ms))
        for held in overdue:
            if held.lease.lease_id in self.leases:
                self._end_overdue(held, now)
        return beats

    def release(self, lease: Lease, outcome: Outcome, *, call_id: str, now: int) -> Released:
        """End a lease by its holder."""
        self._begin(now)
        held = self.leases.get(lease.lease_id)
        if held is None or held.lease.token != lease.token:
            return self._released_before(lease, call_id, now)
        if held.revoked is not None or held.deadline_ms <= now:
            how = "revoked" if held.revoked is not None else "expired"
            if held.revoked is not None:
                self._reap_lease(held, now, drains=False)
            else:
                self._expire(held, now)
            buried = self.ended[lease.request_key]
            buried.how, buried.call_id = f"{how}_told", call_id
            return Released("late", ended_by=how)
        held_ms = max(0, now - held.lease.acquired_at_ms)
        self._give_back(held, outcome, call_id, now)
        return Released("ok", held_ms=held_ms)

    def _released_before(self, lease: Lease, call_id: str, now: int) -> Released:
        buried = self.ended.get(lease.request_key)
        if (
            buried is None
            or buried.until_ms <= now
            or (buried.lease_id, buried.token) != (lease.lease_id, lease.token)
        ):
            return Released("unknown")
        if buried.call_id == call_id:
            return Released("duplicate")
        if buried.how in ("expired", "reaped"):
            how, buried.how, buried.call_id = buried.how, f"{buried.how}_told", call_id
            buried.until_ms = now + TOMBSTONE_MS
            return Released("late", ended_by=how)
        if buried.how.endswith("_told"):
            return Released("late", ended_by=buried.how.removesuffix("_told"))
        return Released("double")

    def report(self, lease_id: str, kind: str, key: str, *, ok: bool, now: int) -> None:
        """What a holder saw is as good as a poll, and sooner."""
        self._begin(now)
        held = self.leases.get(lease_id)
        if held is None or ((kind == "loading") == held.loading and kind != "unloaded"):
            return
        if kind != "unloaded":
            held.loading = kind == "loading"
        self.settle(now, [held.lease.node_id])
        node = self.nodes.get(held.lease.node_id)
        if node is None or node.base_url != held.lease.base_url or not ok:
            return
        if kind == "loaded":
            there = node.own.setdefault(
                held.lease.key, Resident(held.lease.weight_bytes, now, None)
            )
            there.maybe = False
        elif kind == "unloaded" and key in node.own:
            del node.own[key]
            node.busy.discard(key)
            node.going.pop(key, None)
            node.ended[key] = now

    def reap(self, now: int) -> tuple[int, int]:
        """End what time has ended: leases and waiters, how many of each."""
        self._begin(now)
        return self._reap(now, REAP_MAX), self._sweep(now, REAP_MAX)

    def revoke(self, lease_id: str, why: str, *, force: bool, heartbeat_ms: int, now: int) -> str:
        """Take a lease from its holder by an operator's hand."""
        self._begin(now)
        held = self.leases.get(lease_id)
        if held is None:
            return "unknown"
        if held.revoked is not None:
            return "already"
        heard = held.lease.acquired_at_ms if held.heartbeat_ms is None else held.heartbeat_ms
        if not force and now - heard < 2 * heartbeat_ms:
            return "renewed_recently"
        held.revoked = {"why": why}
        held.deadline_ms = now + heartbeat_ms
        return "ok"

    def end_session(self, holder: str, now: int) -> int:
        """A dead holder's leases are reaped at once."""
        self._begin(now)
        left = [held for held in self.leases.values() if held.lease.holder == holder]
        for held in left:
            self._reap_lease(held, now, drains=True)
        return len(left)

    def _reap(self, now: int, most: int) -> int:
        due = sorted(
            (held for held in self.leases.values() if held.deadline_ms <= now),
            key=lambda held: (held.deadline_ms, held.lease.lease_id),
        )
        for held in due[:most]:
            self._end_overdue(held, now)
        return len(due[:most])

    def _end_overdue(self, held: HeldLease, now: int) -> str:
        if held.revoked is not None:
            self._reap_lease(held, now, drains=True)
            return "reaped"
        self._expire(held, now)
        return "expired"

    def _expire(self, held: HeldLease, now: int) -> None:
        node = self._vacate(held, now, drains=True)
        self._forget(held, "expired", "-", now)
        self._judge_probe(held, "expired", node, now)

    def _reap_lease(self, held: HeldLease, now: int, *, drains: bool) -> None:
        node = self._vacate(held, now, drains=drains)
        self._forget(held, "reaped", "-", now)
        self._judge_probe(held, "reaped", node, now)

    def _give_back(self, held: HeldLease, outcome: str, call_id: str, now: int) -> None:
        node = self._vacate(held, now, drains=False, outcome=outcome)
        if self.waiters:
            self.wakes.append(self.next_on(node, now))
        self._forget(held, outcome, call_id, now)
        self._judge_probe(held, outcome, node, now)

    def _vacate(
        self, held: HeldLease, now: int, *, drains: bool, outcome: str = ""
    ) -> NodeRecord | None:
        """Takes the lease off its node: at once, or once its slot has drained."""
        lease = held.lease
        self.settle(now, [lease.node_id])
        node = self.nodes.get(lease.node_id)
        if node is None or node.base_url != lease.base_url:
            return None
        for key, (lease_id, _) in list(node.going.items()):
            if lease_id == lease.lease_id:
                del node.going[key]
                # Gone or not: the next poll tells.
                if key in node.own:
                    node.own[key].maybe = True
        if node.reserved is not None:
            node.reserved.since.pop(lease.lease_id, None)
        if drains:
            hold = node.holds[lease.lease_id]
            hold.ended_ms, hold.till_ms = now, now + held.drain_ms
        else:
            self.give_back(node, lease.lease_id, now)
            _leave_behind(node, lease, outcome, now)
            self.free_something()
        return node

    def _forget(self, held: HeldLease, how: str, call_id: str, now: int) -> None:
        lease = held.lease
        del self.leases[lease.lease_id]
        self._bury(
            lease.request_key,
            held.request_hash,
            how,
            now,
            lease_id=lease.lease_id,
            token=lease.token,
            call_id=call_id,
        )

    def _bury(
        self,
        request_key: str,
        request_hash: str,
        how: str,
        now: int,
        *,
        lease_id: str = "",
        token: str = "",
        call_id: str = "",
    ) -> None:
        self.requests.pop(request_key, None)
        self.ended[request_key] = Tombstone(
            request_hash, now + TOMBSTONE_MS, how, lease_id, token, call_id
        )

    # --- waiters

    def _end_wait(self, waiter: Waiter, how: str, now: int) -> None:
        node = self.reserved_by(waiter.request_key)
        if node is not None:
            self.drop_reservation(node)
        del self.waiters[waiter.request_key]
        self.note_heads(now)
        if how != "granted":
            self.free_something()
            self._bury(waiter.request_key, waiter.request_hash, how, now)

    def _sweep(self, now: int, most: int) -> int:
        due = sorted(
            (one for one in self.waiters.values() if one.place_until_ms <= now),
            key=lambda one: (one.place_until_ms, one.request_key),
        )
        for waiter in due[:most]:
            how = "timed_out" if waiter.wait_deadline_ms <= now else "forgotten"
            self._end_wait(waiter, how, now)
        return len(due[:most])

    # --- nodes

    def cordon(self, node_id: str, *, until_ms: int, now: int) -> str:
        """Close a node for new leases; 0 is until further notice."""
        self._begin(now, node_id)
        node = self.nodes.get(node_id)
        if node is None or node_id not in (self.declared or ()):
            return "undeclared"
        if node.cordon_until_ms == until_ms:
            return "unchanged"
        node.cordon_until_ms = until_ms
        self.drop_reservation(node)
        return "ok"

    def uncordon(self, node_id: str, now: int) -> str:
        """Open a node again."""
        self._begin(now, node_id)
        node = self.nodes.get(node_id)
        if node is None or node.cordon_until_ms is None:
            return "unchanged"
        node.cordon_until_ms = None
        self.free_something()
        return "ok"

    def trip(self, node_id: str, now: int) -> str:
        """Close a node whose answers failed."""
        self._begin(now, node_id)
        node = self.nodes.get(node_id)
        if node is None or node_id not in (self.declared or ()):
            return "undeclared"
        if node.trip is not None:
            return "unchanged"
        node.trip = Trip(now + TRIP_FIRST_MS, TRIP_FIRST_MS)
        self.drop_reservation(node)
        return "ok"

    def forget_weights(self, node_id: str, now: int) -> None:
        """Drop what models were seen to weigh there."""
        self._begin(now, node_id)
        node = self.nodes.get(node_id)
        if node is not None and node.seen:
            node.seen.clear()
            node.digests.clear()
            self.free_something()

    def _judge_probe(self, held: HeldLease, how: str, node: NodeRecord | None, now: int) -> None:
        if node is None or node.trip is None or node.trip.probe != held.lease.lease_id:
            return
        if how == "completed":
            node.trip = None
            self.free_something()
        elif how == "cancelled":
            node.trip.probe = None
        else:
            backoff_ms = min(TRIP_MAX_MS, node.trip.backoff_ms * 2)
            node.trip = Trip(now + backoff_ms, backoff_ms)


def _asking(request: Request, now: int) -> Waiter:
    """One that asks now, behind everybody who waits."""
    return Waiter(
        request.request_key,
        request.priority,
        now,
        NEWEST,
        request.lane,
        avoid=request.avoid,
    )


def _leave_behind(node: NodeRecord, lease: Lease, outcome: str, now: int) -> None:
    """A model that a lease may have loaded since the last poll is there until a later poll tells:
    warm only where its holder says that the work was done.
    """
    held = node.own.setdefault(lease.key, Resident(lease.weight_bytes, now, None, maybe=True))
    if outcome == "completed":
        held.maybe = False
