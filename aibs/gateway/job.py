"""One request as it is to be placed and forwarded."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aibs.codec import dumps_in_order
from aibs.gateway.bodies import BadBody
from aibs.gateway.policy import shaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.fleet import Worker
    from aibs.gateway.context import Phase
    from aibs.gateway.exchange import Exchange
    from aibs.gateway.targets import Target
    from aibs.placement.values import Class


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

    def body_for(self, worker: Worker, model: str) -> bytes:
        """What the node gets; `model` where the client did not name one as a node reads it."""
        fields = (shaped(self.fields, worker) if self.native else None) or self.fields
        if self.target.spelled is None:
            fields = {**fields, "model": model}
        # Go decodes a second `options` into the first, which was not looked at here.
        seen = not (self.native and "options" in self.fields)
        if fields is self.fields and self.raw is not None and seen:
            return self.raw
        try:
            return dumps_in_order(fields)
        except TypeError as error:
            raise BadBody(f"the request body has {error}") from error
