"""Whether a log is still the one that was read, and still reaches back to where reading goes on.

A reader keeps an anchor: ID, number and hash of the last event that it read. IDs alone do not do:
a stream that was deleted and made anew accepts any ID, an older file that is restored goes on with
IDs that look like a continuation, and trimming leaves no mark in `max-deleted-entry-id`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from aibs.codec import dumps
from aibs.errors import ReplacedLog, RewoundLog, TrimmedLog
from aibs.eventstore.events.envelope import parse_entry
from aibs.eventstore.reading import answered

if TYPE_CHECKING:
    from aibs.eventstore.commands import Commands, Entry
    from aibs.eventstore.events.envelope import Event
    from aibs.eventstore.keys import Keys

_FROM_SNAPSHOT = "Read on from the newest snapshot."


@dataclass(frozen=True, slots=True)
class Anchor:
    """The last event that was read. An ID of `0-0` with number 0: nothing was."""

    id: str = "0-0"
    seq: int = 0
    hash: str = ""


@dataclass(frozen=True, slots=True)
class LogEnds:
    """What the server says of the stream. `first_seq` 0: the log is empty, or its first entry is
    damaged; `added` counts entries that were ever added.
    """

    first_id: str
    first_seq: int
    last_id: str
    added: int
    length: int


def event_hash(event: Event) -> str:
    """What tells an entry of the log from another one under the same ID: SHA-256 in hex."""
    return hashlib.sha256(dumps(event.as_document())).hexdigest()


def id_order(entry_id: str) -> tuple[int, int]:
    """An event ID as what it is ordered by."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)


async def log_ends(client: Commands, keys: Keys) -> LogEnds:
    """Where the log begins and ends."""
    with answered("the log"):
        try:
            found = await client.xinfo_stream(keys.key("log"))
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            return LogEnds("0-0", 0, "0-0", 0, 0)
    first: Entry | None = found["first-entry"]
    return LogEnds(
        first_id=found["recorded-first-entry-id"].decode(),
        first_seq=0 if first is None else _seq(first),
        last_id=found["last-generated-id"].decode(),
        added=int(found["entries-added"]),
        length=int(found["length"]),
    )


def _seq(entry: Entry) -> int:
    text = entry[1].get(b"seq", b"0")
    return int(text) if text.isdigit() else 0


async def check_anchor(client: Commands, keys: Keys, anchor: Anchor) -> None:
    """Nothing, where reading may go on behind the anchor.

    Raises TrimmedLog, RewoundLog, ReplacedLog; CorruptLog where the anchor's entry is damaged.
    """
    ends = await log_ends(client, keys)
    if anchor.seq == 0:
        if ends.first_seq > 1:
            raise TrimmedLog(
                f"The log begins with event {ends.first_seq} ({ends.first_id}): those before it "
                "were trimmed.",
                mend=_FROM_SNAPSHOT,
            )
        return
    with answered("the log"):
        held = await client.xrange(keys.key("log"), anchor.id, anchor.id, count=1)
    if held:
        if event_hash(parse_entry(*held[0])) != anchor.hash:
            raise ReplacedLog(
                f"The log has another event {anchor.id} than was read there: it was replaced.",
                mend=_FROM_SNAPSHOT,
            )
        return
    _without_entry(anchor, ends)


def _without_entry(anchor: Anchor, ends: LogEnds) -> None:
    """The anchor's entry is not there: trimmed, set back, or never part of this log."""
    if id_order(ends.last_id) < id_order(anchor.id):
        raise RewoundLog(
            f"The log ends at {ends.last_id}, before {anchor.id} that was read already: it was set "
            "back or flushed.",
            mend=_FROM_SNAPSHOT,
        )
    if ends.length and id_order(ends.first_id) < id_order(anchor.id):
        raise RewoundLog(
            f"The log holds events before and after {anchor.id}, which was read, and not itself: "
            "it was set back and went on otherwise.",
            mend=_FROM_SNAPSHOT,
        )
    if (ends.length and ends.first_seq <= anchor.seq) or ends.added < anchor.seq:
        raise ReplacedLog(
            f"The log begins with event {ends.first_seq} at {ends.first_id}, and event "
            f"{anchor.seq} was read at {anchor.id}: it is another log.",
            mend=_FROM_SNAPSHOT,
        )
    if ends.first_seq != anchor.seq + 1:
        raise TrimmedLog(
            f"The log begins with event {ends.first_seq} ({ends.first_id}), and was read up to "
            f"event {anchor.seq} ({anchor.id}): those between were trimmed.",
            mend=_FROM_SNAPSHOT,
        )
