"""What all parts of a running gateway share. Made once a process, by `aibs.gateway.running`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from aibs.gateway.tracing import NoTracer

if TYPE_CHECKING:
    from aibs.clock import Clock
    from aibs.fleet import Fleet
    from aibs.gateway.tracing import Tracer
    from aibs.placement import Placer
    from aibs.placement.values import Class
    from aibs.settings import Settings

Phase = Literal["queued", "loading", "before_first_byte", "streaming"]
"""Where a client was when it left."""

FailureKind = Literal["connect", "timeout", "reset", "http_5xx", "truncated", "stalled"]
"""How a node failed a request; the labels of aibs_gateway_upstream_failures_total."""

Direction = Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `name` is the API key's, None where no keys are set; `max_class` bounds the
    priority that may be asked for.
    """

    name: str | None = None
    max_class: Class = "high"


ANYBODY = Caller()


class Meter(Protocol):
    """What the data path counts. Every call is cheap and raises nothing.

    `model` is the roster's name or None; durations are seconds; `route` is the path's pattern.
    """

    def began(self, route: str) -> None:
        """A request arrived."""
        ...

    def ended(self, route: str, status: int, model: str | None, seconds: float) -> None:
        """A request is over; `status` is what the client got, 499 where it left before."""
        ...

    def placed(
        self, outcome: Literal["granted", "denied", "left"], reason: str, seconds: float
    ) -> None:
        """A request got a lease, a denial with its reason, or was given up by its client."""
        ...

    def waited(self, model: str, seconds: float) -> None:
        """A granted request stood in the queue so long."""
        ...

    def first_byte(self, model: str, seconds: float) -> None:
        """The first byte for the client came so long after the request was sent to the node."""
        ...

    def tokens(self, model: str, direction: Direction, count: int) -> None:
        """What a node reported at the end of an answer."""
        ...

    def upstream_failed(self, node_id: str, kind: FailureKind) -> None:
        """A node failed a request."""
        ...

    def client_left(self, phase: Phase) -> None:
        """A client closed its connection before its answer was whole."""
        ...


class NoMeter:
    """Counts nothing."""

    def began(self, route: str) -> None:
        """Nothing."""

    def ended(self, route: str, status: int, model: str | None, seconds: float) -> None:
        """Nothing."""

    def placed(
        self, outcome: Literal["granted", "denied", "left"], reason: str, seconds: float
    ) -> None:
        """Nothing."""

    def waited(self, model: str, seconds: float) -> None:
        """Nothing."""

    def first_byte(self, model: str, seconds: float) -> None:
        """Nothing."""

    def tokens(self, model: str, direction: Direction, count: int) -> None:
        """Nothing."""

    def upstream_failed(self, node_id: str, kind: FailureKind) -> None:
        """Nothing."""

    def client_left(self, phase: Phase) -> None:
        """Nothing."""


@dataclass(slots=True)
class Draining:
    """Whether this process is on its way out: it then takes no new request."""

    on: bool = False


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """The running process's parts. `local` where it admits by itself, without a shared pool."""

    settings: Settings
    fleet: Fleet
    placer: Placer
    clock: Clock
    local: bool
    meter: Meter = field(default_factory=NoMeter)
    tracer: Tracer = field(default_factory=NoTracer)
    draining: Draining = field(default_factory=Draining)
