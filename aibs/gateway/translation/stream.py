"""An answer of a node, line by line, in the events of another API. Holds one line at most."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from aibs.codec import dumps_in_order, loads
from aibs.gateway.endings import Ending, native_ending
from aibs.gateway.replies import error_document

LINE_MAX: Final = 1 << 24
"""Bytes of one line, and of what an answer must keep until its end."""

DONE: Final = b"data: [DONE]\n\n"
EARLY: Final = "The answer of the node ended without its end."


class Unreadable(Exception):
    """A node's answer is none of its own API; the text says why."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all documents of one answer have in common. `token` makes its ids, `created_s` is the
    second it began, `model` the name that the node was asked with.
    """

    model: str
    token: str
    created_s: int


class Answer(Protocol):
    """The translation of one answer. `end` stands behind a stream that is whole."""

    end: bytes

    def whole(self, document: dict[str, Any]) -> dict[str, Any]:
        """The answer in one piece."""

    def events(self, document: dict[str, Any], ended: bool) -> bytes:
        """The events of one native object; with `ended` those of the end, too."""

    def failed(self, sentence: str, reason: str | None) -> bytes:
        """The event of a failure in the middle."""


class NativeStream:
    """Reads what a node streams. `begun`: it said something of an answer."""

    def __init__(self, answer: Answer) -> None:
        self.ending = Ending(False)
        self.begun = False
        self._answer = answer
        self._parts: list[bytes] = []
        self._size = 0
        self._over = False
        self._broken: Unreadable | None = None

    def feed(self, chunk: bytes) -> bytes:
        """The events of all lines that are whole now. Raises Unreadable, after what came before."""
        if self._broken is not None:
            raise self._broken
        *lines, rest = chunk.split(b"\n")
        found = []
        try:
            for line in lines:
                self._parts.append(line)
                found.append(self._line())
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > LINE_MAX:
                raise Unreadable(f"a line has more than {LINE_MAX} bytes")
        except Unreadable as error:
            self._broken = error
            if not any(found):
                raise
        return b"".join(found)

    def close(self) -> bytes:
        """The events of what is left, and of an end that is missing. Raises Unreadable."""
        if self._broken is not None:
            raise self._broken
        # One object needs no line's end (a load, for one).
        found = self._line()
        if self.ending.complete:
            # Not before: a client leaves when it has read this, and has not left in the middle.
            return found + self._answer.end
        if not self._over:
            self._over = True
            found += self._answer.failed(EARLY, "node_unhealthy")
        return found

    def _line(self) -> bytes:
        line = b"".join(self._parts)
        self._parts, self._size = [], 0
        if self._over or not line.strip():
            return b""
        document = native_object(line)
        ending = native_ending(document)
        if ending.error is not None:
            self._over, self.ending = True, ending
            return self._answer.failed(ending.error, None)
        if ending.complete:
            self._over, self.ending = True, ending
        self.begun = True
        return self._answer.events(document, ending.complete)


def native_object(text: bytes) -> dict[str, Any]:
    """One object of a node. Raises Unreadable."""
    try:
        document = loads(text)
    except ValueError as error:
        raise Unreadable("the answer is not JSON") from error
    if not isinstance(document, dict):
        raise Unreadable("the answer is not an object")
    return document


def event(document: dict[str, Any]) -> bytes:
    """One event without a name."""
    return b"data: " + dumps_in_order(document) + b"\n\n"


def error_event(sentence: str, reason: str | None) -> bytes:
    """A failure in the middle of a stream."""
    return event(error_document("/v1/", sentence, reason, 500))


def usage_of(document: dict[str, Any]) -> dict[str, int]:
    """The counts of an answer's end."""
    given, made = count(document, "prompt_eval_count"), count(document, "eval_count")
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def count(document: dict[str, Any], name: str) -> int:
    """A count; Ollama leaves out those that are zero."""
    value = document.get(name)
    return value if type(value) is int and value >= 0 else 0


def reason_of(document: dict[str, Any], ended: bool) -> str | None:
    """Why it ended, if it did; releases before 0.1.35 do not say."""
    reason = document.get("done_reason")
    if isinstance(reason, str) and reason:
        return reason
    return "stop" if ended else None


def created_of(document: dict[str, Any], envelope: Envelope) -> int:
    """The second in which the node made a whole answer."""
    moment = document.get("created_at")
    try:
        return int(datetime.fromisoformat(str(moment)).timestamp())
    except (ValueError, OverflowError):
        return envelope.created_s


def said(document: dict[str, Any], name: str) -> str:
    """A text that may be missing."""
    value = document.get(name)
    return value if isinstance(value, str) else ""
