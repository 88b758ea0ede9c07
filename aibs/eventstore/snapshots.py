"""Snapshots of folds on the server: documents in parts, and up to which event they tell.

Knows nothing of what the documents mean. A snapshot is made under the owner's fence, part by part,
and is there only once its last call named every part. A reader trusts none of it before the parts
that it read have the checksum that the snapshot was taken with.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.codec import dumps, loads
from aibs.errors import RewoundLog, UnexpectedReply, UnusableSnapshot
from aibs.eventstore.anchor import Anchor, id_order
from aibs.eventstore.reading import answered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aibs.eventstore.commands import Commands
    from aibs.eventstore.keys import Keys
    from aibs.eventstore.pool import CoordinationPool

PART_BYTES_MAX = 1_000_000
COMPRESSION_LEVEL = 6
WORTH_COMPRESSING = 0.9
"""Compressed where that leaves less than this of it: a third to a tenth is usual."""


@dataclass(frozen=True, slots=True)
class StoredFold:
    """One fold in a snapshot. `sha256` is of its canonical JSON; `codec` is zlib or none."""

    name: str
    version: int
    parts: int
    bytes: int
    codec: str
    sha256: str

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    def part_names(self) -> list[str]:
        """The names of its parts, in order."""
        return [f"{self.name}|{number}" for number in range(1, self.parts + 1)]


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot that was taken. `upto_at_ms` is the time of its last event."""

    snapshot_id: str
    pool_id: str
    upto_id: str
    upto_seq: int
    upto_at_ms: int
    anchor_hash: str
    digest: str
    event_id: str
    folds: tuple[StoredFold, ...]

    @property
    def anchor(self) -> Anchor:
        """The last event that it tells of."""
        return Anchor(self.upto_id, self.upto_seq, self.anchor_hash)

    def fold(self, name: str) -> StoredFold | None:
        """One of its folds."""
        return next((fold for fold in self.folds if fold.name == name), None)


@dataclass(frozen=True, slots=True)
class Packed:
    """A fold's document, ready to be stored."""

    stored: StoredFold
    parts: tuple[bytes, ...]


def pack(document: Mapping[str, Any]) -> Packed:
    """Canonical JSON, compressed where it pays, in parts. The document has `name` and `version`."""
    text = dumps(document)
    body, codec = zlib.compress(text, COMPRESSION_LEVEL), "zlib"
    if len(body) > WORTH_COMPRESSING * len(text):
        body, codec = text, "none"
    parts = tuple(body[at : at + PART_BYTES_MAX] for at in range(0, len(body), PART_BYTES_MAX))
    sha256 = hashlib.sha256(text).hexdigest()
    stored = StoredFold(document["name"], document["version"], len(parts), len(body), codec, sha256)
    return Packed(stored, parts)


def digest_of(folds: Iterable[tuple[str, str]]) -> str:
    """What names a snapshot's whole content: SHA-256 of its folds' names and checksums."""
    lines = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(folds))
    return hashlib.sha256(lines.encode()).hexdigest()


class SnapshotWriter:
    """Takes snapshots and trims, as the owner of a term."""

    def __init__(self, pool: CoordinationPool, owner: str, fence: int) -> None:
        self._pool = pool
        self._owner = owner
        self._fence = fence

    def _term(self) -> dict[str, str | int]:
        return {"owner": self._owner, "fence": self._fence}

    async def take(
        self, snapshot_id: str, anchor: Anchor, at_ms: int, packed: Sequence[Packed]
    ) -> str:
        """Store every part and complete the snapshot; the same again is the same snapshot.

        The ID of its event. Raises Fenced; RewoundLog where the log has not that last event;
        OutcomeUnknown where an answer was lost: call it again.
        """
        for one in packed:
            for name, body in zip(one.stored.part_names(), one.parts, strict=True):
                answer = await self._pool.call(
                    "snapshot_part",
                    {**self._term(), "snapshot_id": snapshot_id, "part": name, "body": body},
                )
                if answer.word == "too_large":
                    raise UnexpectedReply(f"The snapshot's part {name} is too large to be stored.")
        folds = [one.stored for one in packed]
        answer = await self._pool.call(
            "snapshot",
            {
                **self._term(),
                "snapshot_id": snapshot_id,
                "upto_id": anchor.id,
                "upto_seq": anchor.seq,
                "upto_at_ms": at_ms,
                "anchor": anchor.hash,
                "digest": digest_of((fold.name, fold.sha256) for fold in folds),
                "folds": dumps([fold.document() for fold in folds]),
            },
            [name for fold in folds for name in fold.part_names()],
        )
        if answer.word == "rewound":
            raise RewoundLog(
                f"The log ends at {answer.texts[0]} and has no event {anchor.id}: it was set back."
            )
        if answer.word == "missing_part":
            raise UnusableSnapshot(
                f"The snapshot lost its part {answer.texts[0]} while it was made."
            )
        return answer.texts[0]

    async def trim(
        self, info: SnapshotInfo, digest: str, *, retention_ms: int, max_bytes: int, batch_max: int
    ) -> Trimmed:
        """Let at most `batch_max` of the oldest events go behind a snapshot.

        `digest` is of what was read back of it. Raises Fenced, UnusableSnapshot.
        """
        answer = await self._pool.call(
            "trim",
            {
                **self._term(),
                "snapshot_id": info.snapshot_id,
                "digest": digest,
                "retention_ms": retention_ms,
                "max_bytes": max_bytes,
                "batch_max": batch_max,
            },
        )
        if answer.word != "ok":
            raise UnusableSnapshot(
                f"The snapshot {info.snapshot_id} is {answer.word}: nothing is trimmed behind it."
            )
        removed, stopped, log_bytes = answer.texts
        return Trimmed(int(removed), stopped, int(log_bytes))


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What one call let go, and what stopped it: more (only the batch), kept (nothing old or large
    enough), snapshot, lease, waiter, or empty. `log_bytes` is the log's size before.
    """

    removed: int
    stopped: str
    log_bytes: int


class Snapshots:
    """Reads a pool's snapshots."""

    def __init__(self, client: Commands, keys: Keys) -> None:
        self.client = client
        self.keys = keys

    async def list(self) -> tuple[SnapshotInfo, ...]:
        """Every snapshot that was completed, the newest first. What cannot be read is left out."""
        with answered("the snapshots"):
            held = await self.client.hgetall(self.keys.key("snapshots"))
        found = [info for text in held.values() if (info := _info(text)) is not None]
        return tuple(sorted(found, key=lambda info: id_order(info.upto_id), reverse=True))

    async def document(self, info: SnapshotInfo, name: str) -> dict[str, Any]:
        """One fold's document. Raises UnusableSnapshot where it is not what was stored."""
        document: dict[str, Any] = loads(await self.text(info, name))
        return document

    async def text(self, info: SnapshotInfo, name: str) -> bytes:
        """The same as the canonical JSON that was stored."""
        fold = info.fold(name)
        if fold is None:
            raise UnusableSnapshot(f"The snapshot {info.snapshot_id} has no fold {name}.")
        return await self._text(info, fold)

    async def read_back(self, info: SnapshotInfo) -> str:
        """The digest of all of it, as it is read now. Raises UnusableSnapshot."""
        found = []
        for fold in info.folds:
            text = await self._text(info, fold)
            found.append((fold.name, hashlib.sha256(text).hexdigest()))
        return digest_of(found)

    async def _text(self, info: SnapshotInfo, fold: StoredFold) -> bytes:
        body = bytearray()
        for part in fold.part_names():
            with answered("a snapshot's part"):
                held = await self.client.hget(
                    self.keys.key("snapshot_parts"), f"{info.snapshot_id}|{part}"
                )
            if held is None:
                raise UnusableSnapshot(f"The snapshot {info.snapshot_id} has lost its part {part}.")
            body += held
        # Apart: a large state takes longer than whoever shares this loop wants to wait.
        return await asyncio.to_thread(_unpacked, info.snapshot_id, fold, bytes(body))


def _unpacked(snapshot_id: str, fold: StoredFold, body: bytes) -> bytes:
    try:
        text = zlib.decompress(body) if fold.codec == "zlib" else body
    except zlib.error as error:
        raise UnusableSnapshot(
            f"The fold {fold.name} of the snapshot {snapshot_id} is damaged: {error}."
        ) from error
    if hashlib.sha256(text).hexdigest() != fold.sha256:
        raise UnusableSnapshot(
            f"The fold {fold.name} of the snapshot {snapshot_id} is not what was stored."
        )
    return text


def _info(text: bytes) -> SnapshotInfo | None:
    try:
        held = loads(text)
        return SnapshotInfo(
            snapshot_id=held["snapshot_id"],
            pool_id=held["pool_id"],
            upto_id=held["upto_id"],
            upto_seq=int(held["upto_seq"]),
            upto_at_ms=int(held["upto_at_ms"]),
            anchor_hash=held["anchor"],
            digest=held["digest"],
            event_id=held["event_id"],
            folds=tuple(StoredFold(**fold) for fold in held["folds"]),
        )
    except (ValueError, KeyError, TypeError):
        return None
