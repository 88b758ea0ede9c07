"""Whether a streamed answer came to its end: what a node sent last tells it, not the HTTP status.

NDJSON ends with `done: true`; an error after the first byte is a last line with `error`
(ollama.md §1.8). SSE of the completions routes ends with `data: [DONE]`; the responses route ends
with an event that says so. Holds at most one line, and of a longer one its two ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from aibs.codec import loads

if TYPE_CHECKING:
    from collections.abc import Callable

LINE_MAX: Final = 1 << 18
"""Of a longer line the beginning and the end are kept, LINE_PART bytes each."""

LINE_PART: Final = 1 << 12
SSE_TAIL: Final = 1 << 13

Format = Literal["ndjson", "sse", "whole"]

_DONE = re.compile(rb'"done"\s*:\s*true')
_ERROR = re.compile(rb'\s*\{\s*"error"\s*:')
_OVER = re.compile(rb"(?<![^\n])event: ?response\.(?:completed|incomplete)\r?\n")
_EVENT_MAX: Final = 64
_ENDS = ("response.completed", "response.incomplete")


@dataclass(frozen=True, slots=True)
class Ending:
    """`complete`: the node said that it was the end. `error`: what it said instead."""

    complete: bool
    error: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class LastLine:
    """Keeps the last line of NDJSON that has anything on it."""

    def __init__(self) -> None:
        self._done = b""
        self._open: list[bytes] = []
        self._size = 0
        self._cut = False
        self._done_cut = False

    def feed(self, chunk: bytes) -> None:
        """Take what was passed on."""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._add(chunk)
            return
        start = chunk.rfind(b"\n", 0, end)
        if start >= 0 and not chunk[start + 1 : end].strip():
            # Lines with nothing on them: the one before them is the last.
            self._lines(chunk[: len(chunk[:start].rstrip())])
        else:
            self._lines(chunk[:end])
        if end + 1 < len(chunk):
            self._add(chunk[end + 1 :])

    def _lines(self, text: bytes) -> None:
        """Whole lines, without the last one's end."""
        start = text.rfind(b"\n")
        if start < 0:
            self._add(text)
        else:
            self._open, self._size, self._cut = [text[start + 1 :]], len(text) - start - 1, False
        self._close()

    def last(self) -> tuple[bytes, bool]:
        """The line, and whether its middle is missing."""
        tail = b"".join(self._open)
        return (tail, self._cut) if tail.strip() else (self._done, self._done_cut)

    @property
    def at_line_start(self) -> bool:
        """Whether what was passed on ended with a whole line."""
        return not self._size

    def _add(self, part: bytes) -> None:
        self._open.append(part)
        self._size += len(part)
        if self._size > LINE_MAX:
            whole = b"".join(self._open)
            self._open = [whole[:LINE_PART], whole[-LINE_PART:]]
            self._cut = True
            self._size = LINE_PART * 2

    def _close(self) -> None:
        line = b"".join(self._open)
        if line.strip():
            self._done, self._done_cut = line, self._cut
        self._open, self._size, self._cut = [], 0, False


class NdjsonEnd:
    """The end of an Ollama stream."""

    def __init__(self) -> None:
        self._line = LastLine()
        self.feed = self._line.feed

    @property
    def at_line_start(self) -> bool:
        """Whether what was passed on ended with a whole line."""
        return self._line.at_line_start

    def ending(self) -> Ending:
        """What the last line says."""
        line, cut = self._line.last()
        if not cut:
            try:
                return native_ending(loads(line))
            except ValueError:
                return Ending(False)
        if _ERROR.match(line):
            return Ending(False, error="a long error")
        return Ending(_DONE.search(line) is not None)


class SseEnd:
    """The end of an OpenAI stream."""

    def __init__(self) -> None:
        self._tail = b""
        self._over = False

    def feed(self, chunk: bytes) -> None:
        """Take what was passed on."""
        before = self._tail[-_EVENT_MAX:]
        if b"response." in chunk or b"event:" in before:
            # The event that ends a response holds all of it, so that its name may be far back.
            self._over = self._over or _OVER.search(before + chunk) is not None
        self._tail = chunk if len(chunk) >= SSE_TAIL else self._tail[-SSE_TAIL:] + chunk

    @property
    def at_line_start(self) -> bool:
        """Whether what was passed on ended with a whole event."""
        return not self._tail or self._tail.endswith((b"\n\n", b"\r\n\r\n"))

    def ending(self) -> Ending:
        """What the last events say."""
        tail = self._tail[-SSE_TAIL:]
        complete, found = False, Ending(False)
        for line in tail.splitlines():
            if not line.startswith(b"data:"):
                continue
            text = line[5:].strip()
            if text == b"[DONE]":
                complete = True
                continue
            try:
                found = openai_ending(loads(text), found)
            except ValueError:
                continue
        complete = complete or self._over or found.complete
        return Ending(
            complete and found.error is None, found.error, found.input_tokens, found.output_tokens
        )


def native_ending(document: Any) -> Ending:
    """What an object of Ollama's own API says."""
    if not isinstance(document, dict):
        return Ending(False)
    error = document.get("error")
    if error:
        return Ending(False, error=str(error)[:300])
    # Some builds end with a done_reason and no `done` (ollama.md §1.8).
    complete = document.get("done") is True or bool(document.get("done_reason"))
    return Ending(
        complete,
        None,
        _count(document.get("prompt_eval_count")),
        _count(document.get("eval_count")),
    )


def openai_ending(document: Any, before: Ending) -> Ending:
    """What one object of the OpenAI API adds to what is known."""
    if not isinstance(document, dict):
        return before
    kind = document.get("type")
    response = document.get("response") if isinstance(kind, str) else None
    error = document.get("error")
    if kind == "response.failed" and isinstance(response, dict):
        error = response.get("error") or "failed"
    if isinstance(error, dict):
        error = error.get("message") or "an error"
    usage = document.get("usage")
    if isinstance(response, dict) and not isinstance(usage, dict):
        usage = response.get("usage")
    tokens = usage if isinstance(usage, dict) else {}
    given, made = (
        _count(tokens.get(first, tokens.get(second)))
        for first, second in (
            ("prompt_tokens", "input_tokens"),
            ("completion_tokens", "output_tokens"),
        )
    )
    return Ending(
        before.complete or kind in _ENDS,
        str(error)[:300] if error else before.error,
        given if given is not None else before.input_tokens,
        made if made is not None else before.output_tokens,
    )


class WholeEnd:
    """An answer in one piece: HTTP tells its end; its counts are read where it is small."""

    def __init__(self, read: Callable[[Any], Ending]) -> None:
        self._read = read
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        """Take what was passed on."""
        self._size += len(chunk)
        if self._size <= LINE_MAX:
            self._parts.append(chunk)
        else:
            self._parts.clear()

    @property
    def at_line_start(self) -> bool:
        """Nothing can be added to such an answer."""
        return False

    def ending(self) -> Ending:
        """Complete, with what it counts."""
        try:
            told = self._read(loads(b"".join(self._parts)))
        except ValueError:
            return Ending(True)
        return Ending(told.error is None, told.error, told.input_tokens, told.output_tokens)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
