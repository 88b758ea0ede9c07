"""Faults of a node, switched on by a test in the same process or over HTTP."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from aibs.ollama.sim.replies import JSON, TEXT, Answer, Headers, Raw, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

Spoiled = Literal[
    "normal",
    "hang",
    "error_500",
    "html",
    "garbage",
    "truncated",
    "empty",
    "not_found",
    "huge",
    "stalled",
    "cut",
    "reset",
]
"""How requests are answered: hang never; stalled and cut send half a body and then wait or close;
reset drops the connection; error_500 and empty have no body."""

HUGE_BYTES = 9 * 2**20
_ENTRY = b'{"models":[{"name":"alpha:8b","model":"alpha:8b","size":6654289920,"dig'
_HTML = b"<!doctype html><html><head><title>Sign in</title></head><body>Sign in</body></html>"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@dataclass(slots=True)
class Faults:
    """All off by default. `answer` goes for `paths` only, all of them where there is none.

    ps_body, ps_status, ps_headers   what `/api/ps` sends, byte for byte
    ps_delay_s                       how long `/api/ps` takes
    ps_blocks_while_loading          `/api/ps` waits for loads, whatever the version
    refuse_after                     so many more requests are served, all later ones are dropped
    die                              the server is gone: the process ends, or all of it is closed
    load_error                       loads fail with this text
    stream_error_after               generations fail after so many tokens; 0: before the first
    deadlock                         nothing is loaded any more, and every other route stays green
    """

    answer: Spoiled = "normal"
    paths: tuple[str, ...] = ()
    ps_body: bytes | None = None
    ps_status: int = 200
    ps_headers: Headers = ()
    ps_delay_s: float = 0.0
    ps_blocks_while_loading: bool = False
    refuse_after: int | None = None
    die: bool = False
    load_error: str = ""
    stream_error_after: int | None = None
    deadlock: bool = False

    def clear(self) -> None:
        """Switch everything off."""
        self.update(Faults())

    def update(self, other: Faults) -> None:
        """Take over all of another's values; the object stays the one that tests hold."""
        for field in fields(self):
            setattr(self, field.name, getattr(other, field.name))

    def spoil(self, path: str) -> Answer | None:
        """What a request for `path` gets instead of its answer, None where it gets that.

        Counts the request against `refuse_after`.
        """
        if self.refuse_after is not None:
            if self.refuse_after <= 0:
                return Raw(b"", "reset")
            self.refuse_after -= 1
        if self.answer != "normal" and (not self.paths or path in self.paths):
            return _SPOILED[self.answer]()
        return self.ps_reply() if path == "/api/ps" and not self.ps_delay_s else None

    def ps_reply(self) -> Reply | None:
        """The body given for `/api/ps`, where there is one."""
        if self.ps_body is None:
            return None
        return Reply(self.ps_status, self.ps_body, JSON, self.ps_headers)


def merged(faults: Faults, document: dict[str, Any]) -> Faults:
    """These faults with the members of a JSON object set. Raises ValueError with a sentence.

    `ps_body` is text; bytes that are no text go in `ps_body_base64`.
    """
    values = {field.name: getattr(faults, field.name) for field in fields(faults)}
    for name, value in document.items():
        target = "ps_body" if name == "ps_body_base64" else name
        if target not in values:
            raise ValueError(f"{name} is not a fault: there are {', '.join(values)}")
        values[target] = _read(name, value)
    return Faults(**values)


def _read(name: str, value: Any) -> Any:
    wrong = ValueError(f"{name} cannot be {value!r}")
    match name:
        case "answer":
            accepted = value in get_args(Spoiled)
        case "paths":
            accepted = isinstance(value, list | tuple) and all(isinstance(p, str) for p in value)
            value = tuple(value) if accepted else value
        case "ps_headers":
            accepted = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
            value = tuple(value.items()) if accepted else value
        case "ps_body":
            accepted = value is None or isinstance(value, str | bytes)
            value = value.encode() if isinstance(value, str) else value
        case "ps_body_base64":
            accepted = isinstance(value, str)
            try:
                value = base64.b64decode(value, validate=True) if accepted else value
            except binascii.Error as error:
                raise wrong from error
        case "load_error":
            accepted = isinstance(value, str)
        case "ps_blocks_while_loading" | "die" | "deadlock":
            accepted = isinstance(value, bool)
        case "ps_delay_s":
            accepted = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        case "ps_status":
            accepted = isinstance(value, int) and 200 <= value <= 599
        case _:
            accepted = value is None or (type(value) is int and value >= 0)
    if not accepted:
        raise wrong
    return value


_SPOILED: dict[Spoiled, Callable[[], Answer]] = {
    "hang": lambda: Raw(b"", "hold"),
    "error_500": lambda: Reply(500, b"", TEXT),
    "html": lambda: Reply(200, _HTML, "text/html"),
    "garbage": lambda: Reply(200, b"\x00\xff\xfe not json {]", JSON),
    "truncated": lambda: Reply(200, _ENTRY, JSON),
    "empty": lambda: Reply(200, b"", JSON),
    "not_found": lambda: Reply(404, b"404 page not found", TEXT),
    "huge": lambda: Reply(200, b'{"models":[],"padding":"' + b"x" * HUGE_BYTES + b'"}', JSON),
    "stalled": lambda: Raw(_HEAD + b"content-length: 4096\r\n\r\n" + _ENTRY, "hold"),
    "cut": lambda: Raw(
        _HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s" % (4096, _ENTRY), "close"
    ),
    "reset": lambda: Raw(b"", "reset"),
}
