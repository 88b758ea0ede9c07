"""One request as it is to be placed and forwarded."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aibs.codec import dumps_in_order
from aibs.gateway.bodies import BadBody
from aibs.gateway.policy import shaped
from aibs.gateway.translated import translated
from aibs.gateway.translation import Envelope, NativeRequest, native_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.fleet import Worker
    from aibs.gateway.context import Phase
    from aibs.gateway.exchange import Exchange
    from aibs.gateway.targets import Target
    from aibs.gateway.translated import TranslatedResponse
    from aibs.gateway.translation import Answer
    from aibs.gateway.upstream import NodeResponse
    from aibs.placement.values import Class


@dataclass(frozen=True, slots=True)
class Sending:
    """What a node is sent. `answer` translates what it answers, None passes it on as it is."""

    path: str
    body: bytes
    answer: Answer | None = None
    streams: bool = False

    async def read(self, raw: NodeResponse, silence_s: float) -> NodeResponse | TranslatedResponse:
        """The answer in the client's form. Raises NodeFailure."""
        if self.answer is None:
            return raw
        return await translated(raw, self.answer, streams=self.streams, silence_s=silence_s)


@dataclass(slots=True)
class Job:
    """`fields` are the body's, `raw` the body where it may be forwarded as it came, `native`
    whether the worker's policy can be written into it; `headers` what a node gets. `phase` is kept
    current, for who interrupts.
    """

    exchange: Exchange
    target: Target
    fields: dict[str, Any]
    raw: bytes | None
    native: bool
    headers: dict[str, str]
    priority: Class
    wait_s: float
    tells_place: bool
    request_id: str = field(default_factory=lambda: secrets.token_hex(16))
    phase: Phase = "queued"
    granted_s: float | None = None
    """When the last lease was granted, on the clock of time.monotonic."""
    node: tuple[str, str] | None = None
    """The last lease's node, by its URL, and the model as the roster spells it."""
    whole: bool = False
    """The node's answer was passed on to its end."""
    on_served: Callable[[], object] = lambda: None
    """Called when a node begins to serve it."""
    _translated: NativeRequest | None = None

    def require_carried(self) -> None:
        """Raises BadBody where every worker would get it translated, and it cannot be."""
        if not self.native and all(worker.num_ctx is not None for worker in self.target.workers):
            self._native_request()

    def sending_to(self, worker: Worker, model: str) -> Sending:
        """What goes to a node, under a lease for that worker. OpenAI's routes carry no num_ctx, and
        would reload a model that has one of its own: those are asked on the native ones. Raises
        BadBody.
        """
        if self.native or worker.num_ctx is None:
            return Sending(self.exchange.path, self.body_for(worker, model))
        request = self._native_request()
        if self.target.spelled is not None:
            model = str(self.fields["model"])
        fields = {"model": model, **request.fields}
        answer = request.answer(Envelope(model, secrets.token_hex(12), int(time.time())))
        return Sending(
            request.path, _written(shaped(fields, worker) or fields), answer, request.streams
        )

    def _native_request(self) -> NativeRequest:
        if self._translated is None:
            self._translated = native_request(self.exchange.path, self.fields)
        return self._translated

    def body_for(self, worker: Worker, model: str) -> bytes:
        """What the node gets; `model` where the client did not name one as a node reads it."""
        fields = (shaped(self.fields, worker) if self.native else None) or self.fields
        if self.target.spelled is None:
            fields = {**fields, "model": model}
        # Go decodes a second `options` into the first, which was not looked at here.
        seen = not (self.native and "options" in self.fields)
        if fields is self.fields and self.raw is not None and seen:
            return self.raw
        return _written(fields)


def _written(fields: dict[str, Any]) -> bytes:
    try:
        return dumps_in_order(fields)
    except TypeError as error:
        raise BadBody(f"the request body has {error}") from error
