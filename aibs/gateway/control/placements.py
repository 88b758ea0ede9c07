"""The Placements API: leases for applications that call Ollama themselves.

    POST   /placements                      a lease on a node, or why there is none
    POST   /placements/{lease_id}/heartbeat it goes on
    DELETE /placements/{lease_id}           it is over
    DELETE /placements?request_id=…         whatever became of that request is not wanted

These leases are the application's. The gateway does not renew them, and does not end them when it
stops: their holder is the API key, not a process, so any instance takes the calls of another. Only
the key that a lease was granted to can touch it; to others it is unknown.

Failure: while the coordination server is away every call is refused at once, and may be repeated:
the same request, the same release are the same. An application that dies leaves a lease that ends
by its deadline.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from aibs import logs
from aibs.codec import rfc3339
from aibs.errors import PlacementDenied
from aibs.gateway.access import CALLER
from aibs.gateway.asked import RANKS, default_class
from aibs.gateway.context import ANYBODY, Caller
from aibs.gateway.control.answering import Refused, json_answer, read_document, route
from aibs.gateway.control.flights import Flights
from aibs.gateway.control.lease_calls import LeaseCalls, holder_of
from aibs.gateway.control.placement_bodies import (
    Denial,
    HeartbeatBody,
    NodeDenial,
    Placement,
    PlacementBody,
    ReleaseBody,
    Renewal,
    call_id_of,
    read_body,
    require_request_id,
)
from aibs.gateway.denials import answer_to, logged_of, sentence_of
from aibs.gateway.replies import retry_after_s
from aibs.gateway.watch import ClientLeft, ClientWatch
from aibs.placement.asking import request_of
from aibs.placement.opening import timing_of
from aibs.placement.wording import node_clause

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

    from aibs.gateway.context import GatewayContext, Meter
    from aibs.gateway.control.lease_calls import StoredLeases
    from aibs.placement.values import Granted
    from aibs.placement.values import Request as Asked

NOBODY: Final = "local"
"""Who holds leases where no keys are set."""

NO_HEARTBEAT_MS: Final = 1
"""An application beats as it likes: its time to live is bounded otherwise."""


class Placements:
    """The routes."""

    def __init__(self, context: GatewayContext, meter: Meter, stored: StoredLeases) -> None:
        self._context = context
        self._meter = meter
        self._placer = context.placer
        self._flights = Flights(context.placer)
        self._calls = LeaseCalls(context.placer, stored)
        self._timing = replace(timing_of(context.settings), heartbeat_ms=NO_HEARTBEAT_MS)
        self._ttl_max_s = context.settings.active_lease_ttl_ms / 1000
        self._log = logs.get("aibs.gateway.placements")

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            route("/placements", {"POST": self.place, "DELETE": self.cancel}, self._meter),
            route("/placements/{lease_id}", {"DELETE": self.release}, self._meter),
            route("/placements/{lease_id}/heartbeat", {"POST": self.heartbeat}, self._meter),
        ]

    async def close(self) -> None:
        """End the waits; leases are not touched."""
        await self._flights.close()

    async def place(self, request: Request) -> Response:
        """201 with a lease; 403, 404, 409, 429, 503 with the reason."""
        caller = _caller(request)
        body = read_body(PlacementBody, await read_document(request))
        asked = self._asked(caller, body)
        began_s = time.monotonic()
        try:
            with ClientWatch(request.scope):
                granted, new = await self._flights.grant(asked)
        except ClientLeft:
            self._meter.placed("left", "", time.monotonic() - began_s)
            raise
        except PlacementDenied as denial:
            self._meter.placed("denied", denial.reason, time.monotonic() - began_s)
            self._log.info(
                "placement_denied",
                key=asked.requester,
                request_id=asked.request_id,
                reason=denial.reason,
                error=logged_of(denial),
            )
            return _denied(denial)
        if new:
            self._note(asked, granted, time.monotonic() - began_s)
        return self._granted(granted)

    async def heartbeat(self, request: Request) -> Response:
        """200 with what is left; 410 where the lease is over."""
        caller, lease_id = _caller(request), request.path_params["lease_id"]
        body = read_body(HeartbeatBody, await read_document(request))
        left_ms = await self._calls.renew(self._identity(caller), lease_id, body.token)
        return json_answer(Renewal(expires_in_ms=left_ms).model_dump())

    async def release(self, request: Request) -> Response:
        """204; 410 where it was over otherwise."""
        caller, lease_id = _caller(request), request.path_params["lease_id"]
        document = await read_document(request)
        if not document:
            # Some clients send no body with DELETE.
            document = {**request.query_params}
        body = read_body(ReleaseBody, document)
        lease = await self._calls.release(
            self._identity(caller), lease_id, body.token, body.outcome, call_id_of(body)
        )
        if lease is not None:
            self._log.info(
                "placement_released",
                key=caller.name or NOBODY,
                request_id=lease.request_id,
                lease_id=lease_id,
                node_id=lease.node_id,
                node_base_url=lease.base_url,
                model=lease.model,
                outcome=body.outcome,
            )
        return Response(status_code=204)

    async def cancel(self, request: Request) -> Response:
        """204, whatever became of the request."""
        caller = _caller(request)
        request_id = request.query_params.get("request_id", "")
        if not request_id:
            document = await read_document(request)
            request_id = document.get("request_id", "")
        if not isinstance(request_id, str) or not request_id:
            raise Refused(400, "bad_request", "Name the request: DELETE /placements?request_id=…")
        require_request_id(request_id)
        what = await self._calls.cancel(self._identity(caller), request_id)
        self._log.info(
            "placement_cancelled", key=caller.name or NOBODY, request_id=request_id, was=what
        )
        return Response(status_code=204)

    def _identity(self, caller: Caller) -> tuple[str, str]:
        """The environment, and who asks there."""
        return self._context.settings.namespace, caller.name or NOBODY

    def _asked(self, caller: Caller, body: PlacementBody) -> Asked:
        """The request of the protocol. Raises Refused."""
        environment, requester = self._identity(caller)
        priority = body.priority or default_class(caller)
        if RANKS[priority] > RANKS[caller.max_class]:
            raise Refused(
                403,
                "forbidden",
                f"The key {requester} may ask for the priority {caller.max_class} at most, not "
                f"{priority}.",
            )
        require_request_id(body.request_id)
        if body.ttl_seconds is not None and body.ttl_seconds > self._ttl_max_s:
            raise Refused(
                400,
                "bad_request",
                f"The field ttl_seconds is larger than {self._ttl_max_s:g}, which "
                "AIBS_MODEL_CLUSTER_ACTIVE_LEASE_TTL_SECONDS allows; heartbeats prolong a lease.",
            )
        try:
            return request_of(
                replace(self._placer.session, holder=holder_of((environment, requester))),
                self._timing,
                model=body.model,
                role=body.role,
                priority=priority,
                timeout=body.wait_seconds or 0,
                ttl=body.ttl_seconds,
                request_id=body.request_id,
                requester=requester,
            )
        except ValueError as error:
            raise Refused(400, "bad_request", str(error)) from error

    def _note(self, asked: Asked, granted: Granted, seconds: float) -> None:
        """Count and log a new lease."""
        lease = granted.lease
        self._meter.placed("granted", "", seconds)
        self._meter.waited(lease.model, lease.queue_ms / 1000)
        self._log.info(
            "placement_acquired",
            key=asked.requester,
            request_id=lease.request_id,
            lease_id=lease.lease_id,
            node_id=lease.node_id,
            node_base_url=lease.base_url,
            model=lease.model,
            queue_ms=lease.queue_ms,
        )

    def _granted(self, granted: Granted) -> Response:
        lease = granted.lease
        # The memory back end's times are no day's.
        deadline_ms = (
            self._context.clock.wall_ms() + granted.remaining_ms
            if self._context.local
            else lease.deadline_ms
        )
        document = Placement(
            lease_id=lease.lease_id,
            token=lease.token,
            node_id=lease.node_id,
            node_base_url=lease.base_url,
            model=lease.model,
            worker_id=lease.worker_id,
            warm=lease.warm,
            unload_first=list(lease.unload_first),
            expires_in_ms=max(0, granted.remaining_ms),
            deadline=rfc3339(deadline_ms),
            queue_ms=lease.queue_ms,
            role=lease.role,
            heartbeat_every_ms=min(
                self._context.settings.heartbeat_interval_ms, max(1, lease.ttl_ms // 3)
            ),
        )
        headers = {
            "x-aibs-node": lease.node_id,
            "x-aibs-lease": lease.lease_id,
            "x-aibs-queue-ms": str(lease.queue_ms),
        }
        return json_answer(document.model_dump(), 201, headers)


def _caller(request: Request) -> Caller:
    caller = request.scope.get(CALLER, ANYBODY)
    assert isinstance(caller, Caller)
    return caller


def _denied(denial: PlacementDenied) -> Response:
    status, retry_after_ms = answer_to(denial.reason, denial.retry_after_ms)
    document: dict[str, Any] = Denial(
        reason=denial.reason,
        detail=sentence_of(denial),
        nodes=[
            NodeDenial(node_id=node.node_id, reason=node.reason, detail=f"{node_clause(node)}.")
            for node in denial.nodes
        ],
        retry_after_ms=retry_after_ms,
        position=denial.position,
    ).model_dump()
    headers = {} if retry_after_ms is None else {"retry-after": str(retry_after_s(retry_after_ms))}
    return json_answer(document, status, headers)
