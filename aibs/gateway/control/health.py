"""Health: is the process alive, could it place a request, what does the pool look like.

    GET /health   200 while the loop turns: {"status": "ok" | "draining", "version"}
    GET /livez    the same question, for whoever restarts processes
    GET /readyz   200, or 503 with the reasons why nothing could be placed here
    GET /status   the document of `aibs status`

None of them waits for the pool, but for /status, which is bounded in time and made once a second
at most, however many ask.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from aibs.errors import CoordinationUnavailable, PoolMissing
from aibs.eventstore.placement_state import PlacementState
from aibs.gateway.control.answering import Refused, json_answer, route, unavailable
from aibs.gateway.control.local_status import local_status
from aibs.gateway.control.pool_view import Reason
from aibs.gateway.denials import AWAY_RETRY_MS
from aibs.gateway.once import Once
from aibs.gateway.replies import retry_after_s
from aibs.reports.moment import Moment
from aibs.reports.status import status_document, to_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from aibs.gateway.context import GatewayContext, Meter
    from aibs.gateway.control.watch import PoolWatch

VERSION: Final = version("aibs")

STATUS_KEEP_S: Final = 1.0
STATUS_LIMIT_S: Final = 2.5
"""An operator's page waits no longer to be told that the pool is away."""

ENDED_SINCE_MS: Final = 1
"""Leases that ended are no part of now."""


class Health:
    """The answers. `watch` is None in a process that admits by itself."""

    def __init__(self, context: GatewayContext, meter: Meter, watch: PoolWatch | None) -> None:
        self._context = context
        self._meter = meter
        self._watch = watch
        self._status = Once(
            self._make_status, context.clock, keep_s=STATUS_KEEP_S, limit_s=STATUS_LIMIT_S
        )
        self._began_s = time.monotonic()

    def routes(self) -> list[Route]:
        """All of them."""
        meter = self._meter
        return [
            route("/health", {"GET": self.health}, meter),
            route("/livez", {"GET": self.livez}, meter),
            route("/readyz", {"GET": self.readyz}, meter),
            route("/status", {"GET": self.status}, meter),
        ]

    async def close(self) -> None:
        """Nothing is being made any more."""
        await self._status.close()

    async def health(self, _: Request) -> Response:
        """Whether the process lives, and a word on what it is."""
        return json_answer(
            {
                "status": "draining" if self._context.draining.on else "ok",
                "version": VERSION,
                "mode": "local" if self._context.local else "cluster",
                "uptime_seconds": round(time.monotonic() - self._began_s, 1),
            }
        )

    async def livez(self, _: Request) -> Response:
        """Whether the loop turns."""
        return json_answer({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        """Whether a request could be placed here."""
        reasons = [{"reason": one.reason, "detail": one.detail} for one in self._hindrances()]
        if not reasons:
            return json_answer({"status": "ready", "reasons": []})
        # Looked up anew each second.
        again = {"retry-after": str(retry_after_s(AWAY_RETRY_MS))}
        return json_answer({"status": "unready", "reasons": reasons}, 503, again)

    async def status(self, _: Request) -> Response:
        """The pool as it is now."""
        try:
            return json_answer(await self._status.get())
        except TimeoutError as error:
            late = CoordinationUnavailable(f"The pool was not read within {STATUS_LIMIT_S:g} s.")
            raise unavailable(late) from error
        except PoolMissing as error:
            raise Refused(
                503, "stale_residency", str(error), retry_after_ms=AWAY_RETRY_MS
            ) from error

    def _hindrances(self) -> list[Reason]:
        found: list[Reason] = []
        if self._context.draining.on:
            found.append(Reason("shutting_down", "This gateway is shutting down."))
        if self._watch is not None:
            found += self._watch.hindrances()
        return found

    async def _make_status(self) -> dict[str, Any]:
        if self._watch is None:
            document = to_json(local_status(self._context))
            return {**document, "mode": "local", "draining": self._context.draining.on}
        if self._watch.away is not None:
            raise self._watch.away
        document = to_json(status_document(await self._moment(self._watch), self._context.settings))
        return {**document, "mode": "cluster", "draining": self._context.draining.on}

    async def _moment(self, watch: PoolWatch) -> Moment:
        """The live state, and the log folded up to it or, by the events of a moment, beyond."""
        async with watch.link.use() as client:
            live = await PlacementState(client, watch.link.keys).read_all()
        if live.pool is None:
            raise PoolMissing(
                f"There is no pool {watch.link.keys.namespace} on the coordination server.",
                mend="Start `aibs monitor`.",
            )
        await watch.read()
        folded = watch.follower.folded
        if folded is None or not watch.follower.current:
            raise CoordinationUnavailable("The pool's log is still being read.")
        since_ms = max(0, live.now_ms - ENDED_SINCE_MS)
        folded.leaks.since_ms = since_ms
        return Moment(live, folded.coordination, folded.leaks, since_ms)
