"""The one engine of all folds: it reads each event once, and tells whoever folds its type.

    event ─▶ Engine.apply ─▶ position moves ─▶ lifted to the newest version ─▶ checked ─▶ handlers

Decides: what is read and in which order it reaches the folds. An event is checked whole before any
fold hears of it, so that a damaged one changes nothing anywhere. Damaged events and unknown types
are counted and named by the newest one. A newer version of a type that a fold folds stops that
fold: what it would say from then on is not known, so it says no more, and why.

Never decides what an event means, reads no clock, does no I/O.

Folds that share an engine share its position, so a long log is read once for all of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import orjson

from aibs.codec import dumps
from aibs.eventstore.anchor import event_hash
from aibs.eventstore.events import EVENT_TYPES
from aibs.eventstore.events.envelope import parse_entry
from aibs.eventstore.events.registry import lift
from aibs.projections.shapes import Damaged, check_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aibs.eventstore.commands import Entry
    from aibs.eventstore.events import Event

    Handler = Callable[[Event, dict[str, Any]], None]

EVERY = "*"
"""A fold that names this type hears of every event, after those that fold its type."""


class UnusableDocument(ValueError):
    """A fold's document is of another fold or version, or is not one."""


@dataclass(slots=True)
class Position:
    """How far a log was read. `events` were read; `holes` counts gaps in `seq`.

    `unread` counts events that this release could not read, `unknown` those of them whose type it
    does not know; `last_unread` is a clause about the newest.
    """

    last_id: str = "0-0"
    seq: int = 0
    at_ms: int = 0
    events: int = 0
    holes: int = 0
    unread: int = 0
    unknown: int = 0
    last_unread: str = ""
    last_hash: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Fold:
    """What a log adds up to. A subclass says which types it folds; its state is plain values.

    `name` and `version` name its document: raise the version when an older one cannot be read.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    def __init__(self) -> None:
        self.stopped_at: str | None = None
        self.stopped_why = ""
        self._engine: Engine | None = None

    def handlers(self) -> dict[str, Handler]:
        """By event type. A handler gets data that was checked, and cannot fail. Of the event it may
        ask `id`, `at_ms` and `fence`; only who hears of every event gets whole ones, to keep.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The state as JSON, from which `restore` makes an equal one."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """Become the state that was written as this, in a fold that has heard of nothing."""
        raise NotImplementedError

    # --- reading on

    @property
    def engine(self) -> Engine:
        """The engine that it reads with: its own, until it joins another."""
        if self._engine is None:
            self._engine = Engine((self,))
        return self._engine

    def apply(self, event: Event) -> None:
        """Fold one more event."""
        self.engine.apply(event)

    @property
    def position(self) -> Position:
        """How far it read; of a stopped fold, as far as the event that stopped it."""
        return self.engine.position_of(self)

    @property
    def last_id(self) -> str:
        """The ID of the last event read, `0-0` before the first."""
        return self.position.last_id

    @property
    def seq(self) -> int:
        """The number of the last event read."""
        return self.position.seq

    @property
    def holes(self) -> int:
        """Gaps in the events' numbers."""
        return self.position.holes

    @property
    def unread(self) -> int:
        """Events that this release could not read."""
        return self.position.unread

    @property
    def last_unread(self) -> str:
        """A clause about the newest of them."""
        return self.position.last_unread

    # --- documents

    def document(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "name": self.name,
            "version": self.version,
            "position": self.position.document(),
            "stopped": None
            if self.stopped_at is None
            else {"at": self.stopped_at, "why": self.stopped_why},
            "state": self.state(),
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """The fold that wrote this. Raises UnusableDocument."""
        if not isinstance(document, dict) or document.get("name") != cls.name:
            raise UnusableDocument(f"not a document of the fold {cls.name}")
        fold = cls()
        try:
            if document.get("version") != cls.version:
                document = cls.lifted(document)
            fold.restore(document["state"])
            fold.engine.position = Position(**document["position"])
            stopped = document["stopped"]
            if stopped is not None:
                fold.stop(stopped["at"], stopped["why"])
        except UnusableDocument:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise UnusableDocument(
                f"the document of the fold {cls.name} is damaged: {error!r}"
            ) from error
        return fold

    @classmethod
    def lifted(cls, document: dict[str, Any]) -> dict[str, Any]:
        """The document of another version as this release would have written it, where an older
        one tells enough; the one given stays. Raises UnusableDocument.
        """
        raise UnusableDocument(
            f"the fold {cls.name} is of version {document.get('version')}, "
            f"this release reads {cls.version}"
        )

    def copy(self) -> Self:
        """An equal one that goes its own way."""
        return self.from_document(self.document())

    def stop(self, event_id: str, why: str) -> None:
        """Fold nothing more: the event cannot be read, and cannot be done without."""
        self.stopped_at, self.stopped_why = event_id, why
        self.engine.dismiss(self)


def digest(fold: Fold) -> str:
    """SHA-256 of the fold's canonical JSON, in hex: equal states have equal ones."""
    return hashlib.sha256(dumps(fold.document())).hexdigest()


class Engine:
    """Reads a log for several folds at once. They must all be at the same position."""

    def __init__(self, folds: Sequence[Fold], position: Position | None = None) -> None:
        self.folds = tuple(folds)
        self._position = position or Position()
        self._last: Event | Entry | None = None
        self._own: dict[int, Position] = {}
        self._halted = False
        self._table: dict[str, _Entry] = {}
        self._plain: dict[bytes, _Plain] = {}
        self._every: tuple[Handler, ...] = ()
        self._index(self.folds)

    @classmethod
    def joining(cls, folds: Sequence[Fold]) -> Self:
        """One engine for folds that were read apart. Raises ValueError unless they are level."""
        living = [fold for fold in folds if fold.stopped_at is None]
        positions = [fold.position.document() for fold in living]
        if any(one != positions[0] for one in positions[1:]):
            raise ValueError("folds that stand at different events cannot be read on as one")
        engine = cls(folds, living[0].position if living else None)
        for fold in folds:
            if fold.stopped_at is not None:
                engine._own[id(fold)] = fold.position
            fold._engine = engine
        engine._index(living)
        engine._halted = not living
        return engine

    def _index(self, folds: Iterable[Fold]) -> None:
        told: dict[str, list[Any]] = {type_: [] for type_ in EVENT_TYPES}
        every: list[Any] = []
        for fold in folds:
            for type_, handler in fold.handlers().items():
                (every if type_ == EVERY else told[type_]).append(handler)
        self._every = tuple(every)
        self._table = {
            type_: _Entry(EVENT_TYPES[type_].VERSION, check_of(type_), (*handlers, *every))
            for type_, handlers in told.items()
        }
        # Who hears of every event is told of whole ones.
        self._plain = {
            type_.encode(): _Plain(str(one.version).encode(), one.check, one.handlers)
            for type_, one in self._table.items()
            if not every
        }

    @property
    def position(self) -> Position:
        """How far the log was read."""
        last = self._last
        if last is not None:
            event = parse_entry(*last) if isinstance(last, tuple) else last
            self._position.last_hash = event_hash(event)
            self._last = None
        return self._position

    @position.setter
    def position(self, position: Position) -> None:
        self._position, self._last = position, None

    def position_of(self, fold: Fold) -> Position:
        """How far one of the folds was read."""
        return self._own.get(id(fold)) or self.position

    def dismiss(self, fold: Fold) -> None:
        """A stopped fold hears of nothing more, and stays where it is."""
        self._own[id(fold)] = replace(self.position)
        self._halted = all(one.stopped_at is not None for one in self.folds)
        self._index(one for one in self.folds if one.stopped_at is None)

    def apply(self, event: Event) -> None:
        """Fold one more event."""
        position = self._position
        seq = event.seq
        if self._halted:
            return
        if seq != position.seq + 1 and position.seq != 0:
            position.holes += 1
        position.seq = seq
        position.last_id = event.id
        position.at_ms = event.at_ms
        position.events += 1
        self._last = event
        entry = self._table.get(event.type)
        if entry is None or entry.version != event.version:
            self._unusual(event, entry)
            return
        if not entry.handlers:
            return
        data = event.data
        try:
            entry.check(data)
        except Damaged as error:
            self._unread(event, f"{event.type}: {error}")
            return
        for handler in entry.handlers:
            handler(event, data)

    def apply_all(self, events: Iterable[Event]) -> None:
        """Fold events in their order."""
        apply = self.apply
        for event in events:
            apply(event)

    def apply_entries(self, entries: Iterable[Entry]) -> None:
        """Fold the log's entries as they are stored, in their order: the same as their events.

        Nothing is read of them that no fold needs. Raises CorruptLog for an entry that is not an
        event.
        """
        position, table, moment = self._position, self._plain, cast("Any", _Moment())
        seq, at_ms, count = position.seq, position.at_ms, 0
        last: Entry | None = None
        try:
            for entry_id, fields in entries:
                plain = table.get(fields.get(b"type", b""))
                try:
                    number, moment.at_ms = int(fields[b"seq"]), int(fields[b"at_ms"])
                    fence = fields[b"fence"]
                    moment.fence = int(fence) if fence else None
                    if plain is None or fields[b"v"] != plain.version:
                        raise _NotPlainError
                    handlers = plain.handlers
                    data: Any = orjson.loads(fields[b"data"]) if handlers else None
                    if handlers:
                        plain.check(data)
                except (_NotPlainError, KeyError, ValueError):
                    # Another version, damaged, or no event at all: said as for any event.
                    self._note(seq, at_ms, count, last)
                    count, last = 0, None
                    self.apply(parse_entry(entry_id, fields))
                    position, table = self._position, self._plain
                    seq, at_ms = position.seq, position.at_ms
                    continue
                if self._halted:
                    return
                if number != seq + 1 and seq:
                    position.holes += 1
                seq, at_ms, last = number, moment.at_ms, (entry_id, fields)
                count += 1
                moment.entry_id = entry_id
                for handler in handlers:
                    handler(moment, data)
        finally:
            self._note(seq, at_ms, count, last)

    def _note(self, seq: int, at_ms: int, count: int, last: Entry | None) -> None:
        """How far entries were read."""
        if last is not None:
            position = self._position
            position.seq, position.at_ms, position.last_id = seq, at_ms, last[0].decode()
            position.events += count
            self._last = last

    def _unread(self, event: Event, why: str) -> None:
        self._position.unread += 1
        self._position.last_unread = f"{event.id}: {why}"
        for handler in self._every:
            handler(event, event.data)

    def _unusual(self, event: Event, entry: _Entry | None) -> None:
        """An unknown type, or another version than this release writes."""
        if entry is None:
            self._position.unknown += 1
            self._unread(event, f"no type {event.type} in this release")
        elif event.version > entry.version:
            why = f"{event.type} version {event.version}, this release reads up to {entry.version}"
            self._unread(event, why)
            for fold in self.folds:
                if fold.stopped_at is None and event.type in fold.handlers():
                    fold.stop(event.id, why)
        else:
            lifted = lift(event)
            if isinstance(lifted, str):
                self._unread(event, lifted)
                return
            try:
                entry.check(lifted)
            except Damaged as error:
                self._unread(event, f"{event.type}: {error}")
                return
            for handler in entry.handlers:
                handler(event, lifted)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What happens to a known type."""

    version: int
    check: Callable[[dict[str, Any]], None]
    handlers: tuple[Handler, ...]


@dataclass(frozen=True, slots=True)
class _Plain:
    """A known type as its entries have it."""

    version: bytes
    check: Callable[[dict[str, Any]], None]
    handlers: tuple[Handler, ...]


class _NotPlainError(Exception):
    """An entry that must be looked at more closely."""


class _Moment:
    """What handlers may ask of an event, of the entry that is being read. Not to be kept."""

    __slots__ = ("at_ms", "entry_id", "fence")

    at_ms: int
    entry_id: bytes
    fence: int | None

    @property
    def id(self) -> str:
        """The event's ID."""
        return self.entry_id.decode()
