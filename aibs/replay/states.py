"""States of the past: the log folded up to a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.codec import rfc3339
from aibs.errors import ConfigurationError, TruncatedLog
from aibs.replay.entries import event_of, order
from aibs.replay.folding import Folded
from aibs.replay.points import Bound
from aibs.replay.source import Range

if TYPE_CHECKING:
    from aibs.replay.source import Source


@dataclass(frozen=True, slots=True)
class Past:
    """A state after the event `folded.last_id`, looked at when the server's clock said `at_ms`.

    `partial` says that the log no longer reaches back to its beginning and no snapshot stands in.
    """

    folded: Folded
    at_ms: int
    partial: bool


async def past(source: Source, moment: Bound, option: str) -> Past:
    """The state at a moment. Raises ConfigurationError where the log holds nothing of it."""
    if source.live and moment.at_ms is not None:
        now_ms = await source.now_ms()
        if now_ms is not None and moment.at_ms > now_ms:
            raise ConfigurationError(
                f"{option} is {moment}, and the server's clock says {rfc3339(now_ms)}."
            )
    folded, partial = await fold_to(source, moment)
    # A file that begins with a state tells nothing of the time before it.
    early = moment.at_ms is not None and folded.at_ms > moment.at_ms
    if folded.last_id == "0-0" or early:
        raise ConfigurationError(f"{option} is {moment}, before the first event of {source.name}.")
    return Past(folded, folded.at_ms if moment.at_ms is None else moment.at_ms, partial)


async def fold_to(source: Source, until: Bound | None) -> tuple[Folded, bool]:
    """The state after every event up to a moment, and whether its beginning is missing."""
    base = await source.base(until)
    folded = Folded(base)
    partial = False
    after = None if base is None else base.last_id
    async for item in source.items(Range(after=after, until=until)):
        event = event_of(item)
        if event is not None and folded.last_id == "0-0":
            partial = base is None and not _first_of_all(event.seq, event.type)
        folded.apply(item)
    return folded, partial


def _first_of_all(seq: int, type_: str) -> bool:
    return seq == 1 or type_ == "PoolCreated"


async def fold_before(source: Source, since: Bound | None) -> Folded | None:
    """The state before a range's first event; None where the range begins with the log.

    Raises TruncatedLog where the state cannot be had.
    """
    if since is None:
        base = await source.beginning()
        if base is None:
            return None
        return Folded(base)
    folded, partial = await fold_to(source, just_before(since))
    if folded.last_id == "0-0":
        return None
    if partial:
        raise TruncatedLog(
            f"{source.name} begins after its first event, so the state at {since} is not known.",
            mend="Export the log without --since.",
        )
    return folded


def just_before(since: Bound) -> Bound:
    """The last moment before it."""
    if since.id is None:
        return Bound(at_ms=(since.at_ms or 0) - 1)
    ms, number = order(since.id)
    return Bound(id=f"{ms}-{number - 1}" if number else f"{max(0, ms - 1)}-{2**64 - 1}")
