"""The steps after the audit: requests sent, and the log asked what became of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from aibs.eventstore.log import Log, after
from aibs.eventstore.placement_state import PlacementState
from aibs.eventstore.state import LiveState
from aibs.proofs.smoke.asks import broad, narrow, to_be_cut
from aibs.proofs.smoke.evidence import Evidence, base_of, with_ids
from aibs.proofs.smoke.verdict import Ground, Sent, judge_cut, judge_leaks, judge_served

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import httpx

    from aibs.clock import Clock
    from aibs.proofs.smoke.asks import Ask
    from aibs.proofs.smoke.document import SmokeStep, StepName
    from aibs.proofs.smoke.evidence import Grant
    from aibs.proofs.smoke.gateway import Gateway
    from aibs.reports.moment import PoolReader
    from aibs.settings import Settings

END_WITHIN_S = 10.0
"""How long after its answer, or after its client left, a lease may take to end."""

SETTLE_S = 1.0
"""How long after the last end a second or late release is waited for."""

LOOK_EVERY_S = 0.05

CUT_TOKENS = (256, 8192)
"""Lengths of the answers that a client leaves: the longer one where the shorter was too fast."""

EARLY_S = (0.0, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.008, 0.012, 0.02, 0.03)
"""Where even that was: how long after sending a request its client leaves without an answer."""

SLIP_MS = 250
"""How long after its client left the end of a whole answer may be recorded."""

FOUND_WITHIN_S = 0.5
"""How long a request that was left early may take to show in the log."""


class Steps:
    """Runs the steps against one gateway and one pool."""

    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        reader: PoolReader,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._fleet = settings.fleet()
        self._ground = Ground(
            settings.model_cluster_namespace,
            {node.node_id: node.base_url for node in self._fleet.nodes},
        )
        self._gateway = gateway
        self._clock = clock
        self._tell = tell
        self._log = Log(reader.client, reader.keys)
        self._placement = PlacementState(reader.client, reader.keys)
        self._live = LiveState(reader.client, reader.keys)
        self._sent: list[Sent] = []
        self._began_id = "0-0"

    async def run(self) -> list[SmokeStep]:
        """All steps. Raises CoordinationUnavailable; interrupted, it waits for its leases' ends."""
        self._began_id = await self._log.last_id()
        try:
            return [
                self._said(await self._served("narrow", [narrow(self._fleet)])),
                self._said(await self._served("broad", broad(self._fleet))),
                self._said(
                    await self._served("concurrent_broad", broad(self._fleet), broad(self._fleet))
                ),
                self._said(await self._cancelled()),
                self._said(await self._no_leaks()),
            ]
        except asyncio.CancelledError:
            await self._wait_for_own()
            raise

    # --- steps

    async def _served(self, name: StepName, *conversations: Sequence[Ask]) -> SmokeStep:
        """Each conversation sends its requests at once, all conversations at the same time."""
        count = sum(map(len, conversations))
        self._tell(f"{name}: {count} request{'s' if count > 1 else ''} ...")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._converse(asks)) for asks in conversations]
        sent = [one for task in tasks for one in task.result()]
        self._sent += sent
        evidence = await self._settled(with_ids(_ids(sent)))
        return judge_served(name, sent, evidence, self._ground)

    async def _converse(self, asks: Sequence[Ask]) -> list[Sent]:
        async with self._gateway.conversation() as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._gateway.ask(client, ask)) for ask in asks]
        return [task.result() for task in tasks]

    async def _cancelled(self) -> SmokeStep:
        sent: list[Sent] = []
        async with self._gateway.conversation() as client:
            self._tell("cancelled: a request whose client leaves ...")
            cut_at_ms = await self._leave(client, sent)
            if cut_at_ms is None and (not sent or sent[-1].error is None):
                cut_at_ms = await self._leave_early(client, sent)
        self._sent += sent
        evidence = await self._settled(with_ids(_ids(sent)))
        bound_ms = round(END_WITHIN_S * 1000)
        return judge_cut(sent, evidence, cut_at_ms=cut_at_ms, bound_ms=bound_ms)

    async def _leave(self, client: httpx.AsyncClient, sent: list[Sent]) -> int | None:
        """Leave a streamed answer after its first bytes; when, None where it was whole by then."""
        for tokens in CUT_TOKENS:
            ask = to_be_cut(self._fleet, tokens)
            if ask.kind == "embedding":
                return None
            one, whole = await self._gateway.leave(client, ask)
            left_at_ms = await self._live.server_now_ms()
            sent.append(one)
            if one.error is not None:
                return None
            if not whole and not await self._was_over(one, left_at_ms):
                return left_at_ms
        return None

    async def _leave_early(self, client: httpx.AsyncClient, sent: list[Sent]) -> int | None:
        """Leave before the answer, sooner or later, until a lease was there to be cancelled.

        Such a request has no answer that tells its id: it is the one that was granted meanwhile for
        that role, and it is passed over where several were.
        """
        ask = to_be_cut(self._fleet, CUT_TOKENS[0])
        for after_s in EARLY_S:
            began_id = await self._log.last_id()
            one = await self._gateway.leave_early(client, ask, after_s)
            left_at_ms = await self._live.server_now_ms()
            grant = await self._granted_since(began_id, one)
            if grant is None:
                continue
            sent.append(
                replace(
                    one,
                    request_id=grant.request_id,
                    lease_id=grant.lease_id,
                    node_id=grant.node_id,
                )
            )
            if not _was_over(grant, left_at_ms):
                return left_at_ms
        if not sent:
            sent.append(Sent(ask, 0, error="no request whose client left early got a lease"))
        return None

    async def _no_leaks(self) -> SmokeStep:
        self._tell("no_leaks: the log and the pool ...")
        await self._clock.sleep(SETTLE_S)
        ours = with_ids(_ids(self._sent))
        evidence = await self._settled(ours)
        bases = {base_of(one) for one in _ids(self._sent)}
        leases, waiters = await self._placement.leases(), await self._placement.waiters()
        return judge_leaks(
            self._sent,
            evidence,
            living=[key for key, one in leases.items() if base_of(one["request_id"]) in bases],
            waiting=[
                one["request_id"] for one in waiters.values() if base_of(one["request_id"]) in bases
            ],
        )

    # --- the log

    async def _settled(
        self, ours: Callable[[Grant], bool], *, since: str | None = None, wanted: int = 0
    ) -> Evidence:
        """Our grants since the beginning, once each has ended or the time for that is over.

        `wanted`: so many are waited for, for a shorter time.
        """
        evidence, cursor = Evidence(ours), since or self._began_id
        begun_ms = self._clock.boottime_ms()
        while True:
            async for event in self._log.read(after(cursor)):
                evidence.take(event)
                cursor = event.id
            waited_s = (self._clock.boottime_ms() - begun_ms) / 1000
            enough = len(evidence.grants) >= wanted or waited_s >= FOUND_WITHIN_S
            if (evidence.settled and enough) or waited_s >= END_WITHIN_S:
                return evidence
            await self._clock.sleep(LOOK_EVERY_S)

    async def _was_over(self, one: Sent, left_at_ms: int) -> bool:
        grants = (await self._settled(with_ids(_ids([one])))).grants
        return bool(grants) and _was_over(grants[-1], left_at_ms)

    async def _granted_since(self, began_id: str, one: Sent) -> Grant | None:
        ask, known = one.ask, {base_of(request_id) for request_id in self._gateway.told}

        def may_be(grant: Grant) -> bool:
            if one.request_id is not None:
                return base_of(grant.request_id) == base_of(one.request_id)
            asked = grant.role == ask.role if ask.role else grant.model == ask.model
            return asked and base_of(grant.request_id) not in known

        found = (await self._settled(may_be, since=began_id, wanted=1)).grants
        return found[-1] if len({base_of(grant.request_id) for grant in found}) == 1 else None

    async def _wait_for_own(self) -> None:
        """Interrupted: the connections are closed by now, and the gateway gives the leases back."""
        evidence = await self._settled(with_ids(self._gateway.told))
        left = [grant for grant in evidence.grants if not grant.ends]
        if left:
            names = ", ".join(grant.lease_id for grant in left)
            self._tell(f"Leases of this test that are still held (aibs leaks): {names}.")

    def _said(self, step: SmokeStep) -> SmokeStep:
        self._tell(f"{step.name}: {'passed' if step.passed else 'FAILED'}")
        return step


def _ids(sent: Sequence[Sent]) -> list[str]:
    return [one.request_id for one in sent if one.request_id is not None]


def _was_over(grant: Grant, left_at_ms: int) -> bool:
    """Whether the answer was whole before its client left, so that there was nothing to cancel."""
    return grant.how == "completed" and grant.ends[0].at_ms <= left_at_ms + SLIP_MS
