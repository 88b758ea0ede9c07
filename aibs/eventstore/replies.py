"""The scripts' answers as results or errors: the one place that knows their words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.errors import Fenced, FleetMismatch, PoolMissing, PoolVersionMismatch, UnexpectedReply

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Opened:
    """The pool as a client found it. `fence` is the highest that the server knows."""

    pool_id: str
    state: str
    seq: int
    last_id: str
    fence: int
    server_now_ms: int


@dataclass(frozen=True, slots=True)
class Elected:
    """The attempt won; `remaining_ms` is what the server gives it from `server_now_ms` on."""

    fence: int
    remaining_ms: int
    server_now_ms: int


@dataclass(frozen=True, slots=True)
class Held:
    """Another owner's term is alive."""

    owner: str
    fence: int
    remaining_ms: int
    server_now_ms: int


@dataclass(frozen=True, slots=True)
class TermEnded:
    """This very attempt had won a term, which is over since."""

    fence: int
    how: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """The term lives on for `ttl_ms` from `server_now_ms`."""

    ttl_ms: int
    server_now_ms: int
    pool_state: str
    last_id: str


@dataclass(frozen=True, slots=True)
class ClockDiffers:
    """The server's clock seems to have moved by `step_ms` against ours; nothing was changed."""

    step_ms: int
    server_now_ms: int


@dataclass(frozen=True, slots=True)
class Declared:
    """What became of a declaration: ok, unchanged or mismatch, with what is declared now."""

    word: str
    revision: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Observed:
    """One word for each poll, in the order given."""

    server_now_ms: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A placement script's word, and the texts that follow it; `words` where a list does."""

    word: str
    texts: tuple[str, ...]
    words: tuple[str, ...] = ()


PLACEMENT_WORDS: dict[str, frozenset[str]] = {
    "acquire": frozenset({"granted", "queued", "denied", "conflict", "ended"}),
    "admit": frozenset({"granted", "ask"}),
    "leave": frozenset({"ok", "ask"}),
    "heartbeat": frozenset({"ok"}),
    "release": frozenset({"ok", "duplicate", "late", "double", "unknown"}),
    "reap": frozenset({"ok"}),
    "revoke": frozenset({"ok", "renewed_recently", "already", "unknown"}),
    "cancel": frozenset({"ok"}),
    "refresh": frozenset({"ok"}),
    "cordon": frozenset({"ok", "unchanged", "undeclared"}),
    "uncordon": frozenset({"ok", "unchanged"}),
    "trip": frozenset({"ok", "unchanged", "undeclared"}),
    "forget": frozenset({"ok", "unchanged"}),
    "acknowledge": frozenset({"ok", "unchanged"}),
    "session": frozenset({"ok"}),
    "model": frozenset({"ok", "unknown"}),
    "explain": frozenset({"ok", "denied"}),
    "reindex": frozenset({"ok"}),
    "record": frozenset({"ok", "duplicate"}),
    "snapshot_part": frozenset({"ok", "duplicate", "too_large"}),
    "snapshot": frozenset({"ok", "duplicate", "missing_part", "rewound"}),
    "trim": frozenset({"ok", "unknown", "unverified"}),
}
"""Which words each script may answer with whose caller reads the texts behind them."""


def _text(item: Any) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)


def _refusal(script: str, word: str, rest: Sequence[Any]) -> Exception:
    if word == "fenced":
        current, fence = _text(rest[0]), int(rest[1])
        who = f"{current} holds fence {fence}" if current else f"nobody holds it since {fence}"
        return Fenced(f"{script} was refused: the term is over, {who}.")
    if word == "pool_missing":
        return PoolMissing(f"{script} was refused: the pool is not on the server.")
    if word == "pool_version":
        return PoolVersionMismatch(
            f"The pool has state version {_text(rest[0])}, this release writes another.",
            mend="Run one release of aibs against a pool, or use another namespace.",
        )
    if word == "fleet_mismatch":
        return FleetMismatch(
            f"{script} was refused: the declared fleet is {_text(rest[0])[:12] or 'none'}."
        )
    return UnexpectedReply(f"{script} answered {word!r}, which this release does not know.")


def parse(script: str, reply: Sequence[Any]) -> Any:
    """A reply as its result. Raises the typed error of a refusal."""
    word = _text(reply[0])
    rest = reply[1:]
    if word in PLACEMENT_WORDS.get(script, ()):
        words: tuple[str, ...] = ()
        if rest and isinstance(rest[-1], list):
            words = tuple(map(_text, rest[-1]))
            rest = rest[:-1]
        return Answer(word, tuple(map(_text, rest)), words)
    match script, word:
        case "open", "ok":
            pool_id, state, seq, last_id, fence, now = (_text(item) for item in rest)
            return Opened(pool_id, state, int(seq), last_id, int(fence), int(now))
        case "elect", "ok":
            return Elected(int(rest[0]), int(rest[1]), int(rest[2]))
        case "elect", "held":
            return Held(_text(rest[0]), int(rest[1]), int(rest[2]), int(rest[3]))
        case "elect", "ended":
            return TermEnded(int(rest[0]), _text(rest[1]))
        case "renew", "ok":
            return Renewed(int(rest[0]), int(rest[1]), _text(rest[2]), _text(rest[3]))
        case "renew", "clock":
            return ClockDiffers(int(rest[0]), int(rest[1]))
        case "declare", "ok" | "unchanged" | "mismatch":
            return Declared(word, int(rest[0]), _text(rest[1]))
        case "observe", "ok":
            return Observed(int(rest[0]), tuple(_text(item) for item in rest[1]))
        case ("resign", "ok" | "duplicate") | ("close", "ok"):
            return True
        case "close", "in_use":
            return False
    raise _refusal(script, word, rest)
