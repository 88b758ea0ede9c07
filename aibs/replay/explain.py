"""The story of one request or lease, in two readings of the log: whose it is, then the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.errors import ConfigurationError, Refused
from aibs.replay.chapters import Chapters
from aibs.replay.entries import event_of
from aibs.replay.folding import Folded
from aibs.replay.source import behind

if TYPE_CHECKING:
    from aibs.clock import Clock
    from aibs.eventstore.events import Event
    from aibs.replay.source import Source
    from aibs.replay.story import ExplainDocument

SHOWN_MAX = 8


@dataclass(frozen=True, slots=True)
class Found:
    """Whose story it is. `lease_id` where a lease was named."""

    request_key: str
    lease_id: str | None


async def explain(source: Source, name: str, clock: Clock) -> ExplainDocument:
    """The story of a lease id, a request id or a request key.

    Raises Refused where the log knows none, ConfigurationError where it knows several.
    """
    found = await _find(source, name)
    base = await source.beginning()
    folded = Folded(base)
    chapters = Chapters(found.request_key, found.lease_id, source.timing, source.namespace)
    if base is not None:
        chapters.begin_with(base)
    async for item in source.items(behind(base)):
        event = event_of(item)
        if event is None:
            folded.apply(item)
            continue
        told = _guarded(chapters, event, folded)
        folded.apply(item)
        if told:
            chapters.after(event, folded)
    notes = _notes(folded, base is not None)
    return chapters.document(folded.at_ms, notes, generated_ms=clock.wall_ms())


def _guarded(chapters: Chapters, event: Event, folded: Folded) -> bool:
    """Whether the event could be read as a part of the story."""
    try:
        return chapters.before(event, folded)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _notes(folded: Folded, snapshot: bool) -> list[str]:
    notes = []
    if snapshot:
        notes.append("The log begins with a stored state: what came before it is not told.")
    if folded.unread:
        notes.append(f"{folded.unread} events could not be read, {folded.last_unread} among them.")
    if folded.coordination.holes:
        notes.append(f"The log has {folded.coordination.holes} holes in its numbers.")
    return notes


async def _find(source: Source, name: str) -> Found:
    keys: dict[str, None] = {}
    base = await source.beginning()
    if base is not None:
        for lease_id, lease in base.leases.live_part()["leases"].items():
            if lease_id == name:
                return Found(lease["request_key"], lease_id)
            _match(keys, lease, name)
        for waiter in base.queue.live_part()["waiters"].values():
            _match(keys, waiter, name)
    async for item in source.items(behind(base)):
        event = event_of(item)
        if event is None:
            continue
        document = _named_in(event)
        if document is None:
            continue
        if document.get("lease_id") == name:
            return Found(str(document.get("request_key")), name)
        _match(keys, document, name)
    if len(keys) > 1:
        shown = ", ".join(list(keys)[:SHOWN_MAX])
        raise ConfigurationError(
            f"{name[:60]!r} is the id of {len(keys)} requests: {shown}.",
            mend="Name one of them whole.",
        )
    for key in keys:
        return Found(key, None)
    raise Refused(
        f"No event of {source.name} tells of a lease or request {name[:60]!r}.",
        mend="A denial like one of the 10 s before it is counted (DenialsCounted), not told.",
    )


def _named_in(event: Event) -> dict[str, Any] | None:
    """What an event says of a request: its id and key."""
    data = event.data
    match event.type:
        case "LeaseAcquired":
            found = data.get("lease")
        case "LeaseQueued":
            found = data.get("waiter")
        case "LeaseDenied":
            found = {**data, "request_key": denied_key(data)}
        case _:
            return None
    return found if isinstance(found, dict) else None


def denied_key(data: dict[str, Any]) -> str:
    """A denial names the parts of its request's key."""
    return f"{data.get('environment')}|{data.get('requester')}|{data.get('request_id')}"


def _match(keys: dict[str, None], document: dict[str, Any], name: str) -> None:
    key = document.get("request_key")
    if name in (key, document.get("request_id")) and isinstance(key, str):
        keys[key] = None
