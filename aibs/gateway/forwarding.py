"""A granted request on its node: load, send, and pass the answer on byte by byte."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from aibs.errors import ModelNotInstalled, NodeError, WarmUpFailed
from aibs.gateway.failures import (
    ModelMissing,
    NodeAnswer,
    NodeFailure,
    error_text,
    is_node_fault,
)

if TYPE_CHECKING:
    from aibs.gateway.context import FailureKind, Meter
    from aibs.gateway.exchange import Exchange
    from aibs.gateway.job import Job
    from aibs.gateway.passive import NodeHealth
    from aibs.gateway.translated import TranslatedResponse
    from aibs.gateway.upstream import NodeResponse, Upstream
    from aibs.gateway.watch import ClientWatch
    from aibs.placement import HeldLease

    Response = NodeResponse | TranslatedResponse

ERROR_BODY_MAX: Final = 1 << 16
WHOLE_ANSWER_FACTOR: Final = 5
"""An answer that is not streamed has no byte before its last token: so many times the limit of a
first byte it may take."""


class Forwarder:
    """Talks to the nodes for granted requests. Limits in seconds."""

    def __init__(
        self,
        upstream: Upstream,
        health: NodeHealth,
        meter: Meter,
        *,
        first_byte_s: float,
        silence_s: float,
    ) -> None:
        self._upstream = upstream
        self._health = health
        self._meter = meter
        self._first_byte_s = first_byte_s
        self._silence_s = silence_s
        self._leaving = asyncio.Lock()

    async def run(self, lease: HeldLease, job: Job, watch: ClientWatch) -> None:
        """Serve the job on the lease's node.

        Raises NodeFailure and ModelMissing while nothing was passed on, FleetMismatch, ClientLeft;
        what fails later is told to the client, and the lease then ends as failed.
        """
        sending = job.sending_to(lease.worker, lease.model)
        job.phase = "loading"
        await self._prepare(lease, watch)
        job.phase = "before_first_byte"
        exchange = job.exchange
        sent_s = time.monotonic()
        limit_s = self._first_byte_s
        if exchange.format == "whole" and "/embed" not in exchange.path:
            limit_s *= WHOLE_ANSWER_FACTOR
        async with self._upstream.answer(
            lease.node_id,
            "POST",
            lease.node_base_url + sending.path,
            job.headers,
            sending.body,
            job.exchange.limit,
            first_byte_s=limit_s,
        ) as raw:
            response = await sending.read(raw, self._silence_s)
            await self._require_served(lease, response, exchange)
            job.phase = "streaming"
            if response.status < 300:
                job.on_served()
            elif exchange.started:
                # With its places in the queue: what comes now must be of that stream.
                lease.end_as("failed")
                await exchange.answer(await self._small(response))
                return
            self._meter.first_byte(lease.model, time.monotonic() - sent_s)
            await self._relay(lease, response, exchange, watch)
            job.whole = True

    async def _prepare(self, lease: HeldLease, watch: ClientWatch) -> None:
        """Have the model loaded. A client that leaves breaks no load off that only it waits for:
        Ollama would start it from zero for the next one (ollama.md, pitfall 2).
        """
        if not lease.needs_load:
            return
        watch.hold()
        loading = asyncio.ensure_future(lease.prepare())
        try:
            if not loading.done():
                left = asyncio.ensure_future(watch.left.wait())
                try:
                    await asyncio.wait({loading, left}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    left.cancel()
            if not loading.done():
                # One after the other: two that left at once would each rely on the other.
                async with self._leaving:
                    if lease.load_is_shared:
                        loading.cancel()
                        await asyncio.wait({loading})
            if not loading.done():
                await asyncio.wait({loading})
        except asyncio.CancelledError:
            # The lease is lost, or the process ends: nobody may use the memory any more.
            loading.cancel()
            await asyncio.wait({loading})
            raise
        try:
            watch.let_go()
        finally:
            failed = None if loading.cancelled() else loading.exception()
        if failed is not None:
            raise load_failure(lease, failed) from failed

    async def _require_served(
        self, lease: HeldLease, response: Response, exchange: Exchange
    ) -> None:
        """Raises NodeFailure, ModelMissing for an answer that another node may better."""
        status = response.status
        if status < 300:
            if exchange.format == "ndjson" and response.first.lstrip().startswith(b'{"error"'):
                # Before 0.12.6 a failure at once came with status 200.
                answer = await self._small(response)
                raise NodeFailure(
                    response.node_id, "http_5xx", error_text(answer.body), answer=answer
                )
            return
        if is_node_fault(status):
            answer = await self._small(response)
            raise NodeFailure(
                response.node_id,
                "http_5xx",
                f"status {status}: {error_text(answer.body)}",
                answer=answer if status >= 500 else None,
            )
        if response.model_missing:
            raise ModelMissing(lease.node_id, lease.model_key, await self._small(response))

    async def _small(self, response: Response) -> NodeAnswer:
        try:
            body = await response.whole(ERROR_BODY_MAX, self._silence_s)
        except NodeFailure:
            body = response.first
        return NodeAnswer(response.status, response.content_type or "text/plain", body or b"")

    async def _relay(
        self, lease: HeldLease, response: Response, exchange: Exchange, watch: ClientWatch
    ) -> None:
        exchange.start(response)
        chunk = response.first
        try:
            while chunk:
                await exchange.pass_on(chunk)
                chunk = await self._next_chunk(response, exchange, watch)
        except NodeFailure as failure:
            lease.end_as("failed")
            self._health.failed(failure)
            self._meter.upstream_failed(failure.node_id, failure.kind)
            await exchange.fail(
                f"The answer of {failure.node_id} ended early: {failure.detail}.",
                "node_unhealthy",
                502,
            )
            return
        if response.status >= 300:
            lease.end_as("failed")
            return
        ending = exchange.ending()
        for direction, count in (("input", ending.input_tokens), ("output", ending.output_tokens)):
            if count is not None:
                self._meter.tokens(lease.model, direction, count)  # type: ignore[arg-type]
        if ending.complete:
            self._health.served(lease.node_id)
            return
        lease.end_as("failed")
        self._meter.upstream_failed(lease.node_id, "truncated")
        if ending.error is None:
            self._health.failed(
                NodeFailure(lease.node_id, "truncated", "a stream ended without its end")
            )

    async def _next_chunk(
        self, response: Response, exchange: Exchange, watch: ClientWatch
    ) -> bytes:
        """Empty at the end. Raises NodeFailure."""
        try:
            return await response.next_chunk(self._silence_s)
        except asyncio.CancelledError:
            # A client needs no end of the node's connection to know that it has all.
            if watch.left.is_set() and exchange.said_all():
                return b""
            raise
        except NodeFailure:
            # How the node closes behind its last word takes nothing from the answer.
            if exchange.said_all():
                return b""
            raise


def load_failure(lease: HeldLease, error: BaseException) -> BaseException:
    """What a failed load says of the node."""
    node_id = lease.node_id
    if isinstance(error, ModelNotInstalled):
        return ModelMissing(node_id, lease.model_key)
    if isinstance(error, WarmUpFailed):
        # Broken off with its lease, or refused as a mistake of the roster: no fault of the node.
        counts = error.reason not in ("cancelled", "http_400")
        return NodeFailure(node_id, "http_5xx", error.sentence.rstrip("."), counts=counts)
    if isinstance(error, NodeError):
        kinds: dict[str, FailureKind] = {
            "connect_failed": "connect",
            "dns": "connect",
            "tls": "connect",
            "timeout": "timeout",
        }
        kind = kinds.get(error.reason, "reset")
        return NodeFailure(node_id, kind, error.sentence.rstrip("."))
    return error
