"""What the demo prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.codec import rfc3339
from aibs.projections.timeline import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aibs.demo.placing import Placed
    from aibs.eventstore.events.envelope import Event
    from aibs.eventstore.state import TermState

TYPE_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Takeover:
    """How the term went from the killed owner to the standby. Milliseconds since the kill."""

    old: TermState
    new: TermState
    elected_after_ms: int
    fresh_after_ms: int


def event_line(event: Event) -> str:
    """`#12 12:03:04.567 OwnerElected         ...`"""
    clock = rfc3339(event.at_ms)[11:-1]
    return f"#{event.seq:<3} {clock} {event.type:<{TYPE_WIDTH}} {describe(event)}"


def takeover_line(takeover: Takeover) -> str:
    """The handover in one sentence."""
    return (
        f"Monitor B took over: elected {takeover.elected_after_ms / 1000:.1f} s after the kill "
        f"with fence {takeover.new.fence} (before: {takeover.old.fence}), every node observed "
        f"again after {takeover.fresh_after_ms / 1000:.1f} s."
    )


def placed_line(placed: Placed) -> str:
    """Where a request went, and whether it waited."""
    where = f"{placed.node_id}, where the model was {'there' if placed.warm else 'loaded first'}"
    waited = ""
    if placed.queue_ms:
        why = placed.reason.replace("_", " ")
        waited = f"waited {placed.queue_ms / 1000:.1f} s ({why}), then "
    return (
        f"  request {placed.number}: {waited}{where}; answered and given back after "
        f"{placed.took_ms / 1000:.1f} s"
    )


def where_to_look(environment: Mapping[str, str]) -> list[str]:
    """Lines to paste into another terminal, while the demo goes on."""
    lines = [f"  export {name}='{value}'" for name, value in sorted(environment.items())]
    commands = ("aibs audit", "aibs status", "aibs leaks", "aibs replay --since -5m")
    return ["To look around, in another terminal:", *lines, *(f"  {one}" for one in commands)]
