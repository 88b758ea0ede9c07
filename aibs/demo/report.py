"""What the demo prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.codec import rfc3339
from aibs.projections.timeline import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aibs.demo.requests import Answered
    from aibs.eventstore.events.envelope import Event
    from aibs.eventstore.state import TermState

TYPE_WIDTH = 20
NAME_WIDTH = 12
PATH_WIDTH = 20
LEASE_SHOWN = 8


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


def answered_line(answered: Answered) -> str:
    """Where a request went, under which lease, and how long it stood in the queue."""
    streamed = f", in {answered.chunks} pieces" if answered.chunks > 1 else ""
    return (
        f"  {answered.name:{NAME_WIDTH}} {answered.path:{PATH_WIDTH}} {answered.node_id}  lease "
        f"{answered.lease_id[:LEASE_SHOWN]}  queued {answered.queue_ms:>4} ms  answered after "
        f"{answered.took_ms:>4} ms{streamed}"
    )


def how_to_use(url: str) -> list[str]:
    """Lines that point a client at the gateway, while the demo goes on."""
    return [
        "To try it, in another terminal:",
        f"  export OLLAMA_HOST={url}",
        f"  curl -i {url}/api/chat -d "
        """'{"model":"aibs/answer","messages":[{"role":"user","content":"hi"}],"stream":false}'""",
    ]


def where_to_look(environment: Mapping[str, str], url: str) -> list[str]:
    """Lines to paste into another terminal, while the demo goes on."""
    lines = [f"  export {name}='{value}'" for name, value in sorted(environment.items())]
    commands = (
        "aibs audit",
        "aibs status",
        "aibs leaks",
        "aibs replay --since -5m",
        f"aibs smoke --url {url}",
    )
    return ["To look around, in another terminal:", *lines, *(f"  {one}" for one in commands)]
