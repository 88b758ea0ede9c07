"""The pure model beside the scripts: asked the same, it must answer the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.placement.model.decide import PlacementModel
from aibs.placement.model.observe import Poll, SeenModel, observe
from aibs.placement.values import Denied, Granted, Queued

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aibs.fleet import Fleet
    from aibs.placement.values import Beat, Lease, Limits, Outcome, Place, Request

Answer = Granted | Queued | Denied


def told(answer: Answer) -> dict[str, Any]:
    """What of an answer must be equal. Tokens are each side's own."""
    nodes = (
        []
        if isinstance(answer, Granted)
        else [
            (one.node_id, one.reason, one.missing_bytes, one.wait_ms, one.why)
            for one in answer.nodes
        ]
    )
    match answer:
        case Granted():
            lease = answer.lease
            return {
                "granted": lease.lease_id,
                "node": lease.node_id,
                "worker": lease.worker_id,
                "weight": lease.weight_bytes,
                "warm": lease.warm,
                "probe": lease.probe,
                "unload": lease.unload_first,
                "queue_ms": lease.queue_ms,
                "remaining": answer.remaining_ms,
            }
        case Queued():
            return {"queued": answer.position, "reason": answer.reason, "nodes": nodes}
        case Denied():
            return {"denied": answer.reason, "detail": answer.detail, "nodes": nodes}


class Oracle:
    """Mirrors every call on the model."""

    def __init__(self, limits: Limits) -> None:
        self.model = PlacementModel(limits)
        self._leases: dict[str, Lease] = {}

    def declare(self, fleet: Fleet) -> None:
        self.model.declare(fleet)

    def acquire(self, request: Request, lease_id: str, now: int) -> Answer:
        answer = self.model.acquire(request, lease_id=lease_id, now=now)
        if isinstance(answer, Granted):
            self._leases[answer.lease.lease_id] = answer.lease
        return answer

    def release(self, lease: Lease, outcome: Outcome, call_id: str, now: int) -> str:
        mine = self._leases[lease.lease_id]
        return self.model.release(mine, outcome, call_id=call_id, now=now).word

    def heartbeat(self, holder: str, leases: Sequence[Lease], now: int) -> list[Beat]:
        pairs = [(one.lease_id, self._leases[one.lease_id].token) for one in leases]
        return self.model.heartbeat(holder, pairs, now)

    def refresh(self, keys: Sequence[str], now: int) -> list[Place]:
        return self.model.refresh(keys, now)

    def observe(
        self,
        node_id: str,
        models: Sequence[dict[str, Any]],
        *,
        good: bool,
        unaccounted: bool,
        healthy: bool | None,
        loading: bool,
        logged: bool,
        begun_ms: int,
        now: int,
    ) -> None:
        seen = tuple(
            SeenModel(
                model["key"],
                model["charge_bytes"],
                model["digest"],
                model["context_length"],
                model["expires_at_ms"],
            )
            for model in models
            if model["ownership"] == "own"
        )
        foreign = sum(m["charge_bytes"] for m in models if m["ownership"] != "own")
        poll = Poll(
            node_id,
            begun_ms,
            good,
            seen if good else (),
            foreign,
            unaccounted,
            healthy,
            loading,
            logged,
        )
        observe(self.model, poll, now)
