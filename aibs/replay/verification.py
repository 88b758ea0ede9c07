"""A log verified from its first event to its last; on a server, its fold against the live state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aibs.codec import rfc3339
from aibs.errors import CoordinationUnavailable
from aibs.eventstore.placement_state import PlacementState
from aibs.history.agreement import differences_of
from aibs.replay.entries import order
from aibs.replay.folding import Folded
from aibs.replay.source import LiveSource, behind
from aibs.replay.verify import Verifier, VerifyDocument

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aibs.clock import Clock
    from aibs.eventstore.placement_state import LiveParts
    from aibs.replay.source import Source

READ_TIMEOUT_S = 30.0

# What the live parts and the folds both have. A term's deadline moves without events.
POOL = ("pool_id", "run_id", "state", "epoch")
TERM = ("owner", "fence", "elected_at_ms", "ended", "last_owner", "event_id")
FLEET = ("revision", "fingerprint", "document", "event_id")


async def verify(source: Source, clock: Clock) -> VerifyDocument:
    """The document. The live state is read first, and the log up to the event that it is of."""
    live = await _live_parts(source) if isinstance(source, LiveSource) else None
    live_to = None if live is None or live.pool is None else order(live.pool.last_id)
    base = await source.beginning()
    snapshot_id = None if base is None else base.last_id
    verifier, folded = Verifier(base), Folded(base)
    async for item in source.items(behind(base)):
        verifier.feed(item)
        # What was written since is checked, and is no part of the state that was read.
        if live_to is None or item.id is None or order(item.id) <= live_to:
            folded.apply(item)
    if source.fault is not None:
        verifier.tell(source.fault.after_id, "truncated", str(source.fault))
    if live is not None:
        for event_id, sentence in _differences(live, folded):
            verifier.tell(event_id, "live_differs", sentence)
    problems = verifier.all_problems()
    return VerifyDocument(
        generated_at=rfc3339(clock.wall_ms()),
        ok=not problems,
        events=verifier.events,
        first_id=verifier.first_id,
        last_id=verifier.last_id,
        snapshot_id=snapshot_id,
        truncated=source.fault is not None or (verifier.begins_late and snapshot_id is None),
        compared_with_live_state=live is not None,
        problems=problems,
    )


async def _live_parts(source: LiveSource) -> LiveParts:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await PlacementState(source.client, source.keys).read_all()
    except TimeoutError as error:
        raise CoordinationUnavailable(
            f"The pool {source.namespace} was not read within {READ_TIMEOUT_S:g} s."
        ) from error


def _differences(live: LiveParts, folded: Folded) -> Iterator[tuple[str | None, str]]:
    """Where the live state and the fold part, with the event that last changed the part."""
    state = folded.coordination
    pool = live.pool
    if pool is None:
        yield state.last_id, "The log tells of a pool, and there is no live state."
        return
    pairs: list[tuple[str, str | None, Mapping[str, object], Mapping[str, object]]] = [
        ("pool", pool.last_id, _picked(pool, POOL), state.identity.live_part())
    ]
    if live.term is not None:
        term = live.term
        pairs.append(("term", term.event_id, _picked(term, TERM), state.ownership.live_part()))
    if live.fleet is not None:
        fleet = live.fleet
        pairs.append(("fleet", fleet.event_id, _picked(fleet, FLEET), state.declared.live_part()))
    for what, event_id, here, told in pairs:
        parted = ", ".join(name for name in here if here[name] != told[name])
        if parted:
            yield event_id, f"The {what} is live otherwise than the log tells: {parted}."
    for sentence in differences_of(live, state):
        yield pool.last_id, sentence


def _picked(part: object, names: tuple[str, ...]) -> dict[str, object]:
    return {name: getattr(part, name) for name in names}
