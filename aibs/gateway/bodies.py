"""Request bodies as Ollama reads them: Go's encoding/json into structs, through gin.

Keys match without regard to case, the last of several wins, what stands behind the first value is
ignored, broken UTF-8 becomes U+FFFD (ollama.md §1.9, pitfall 12). A reader of the exact key `model`
alone would place another model than the node then runs.
"""

from __future__ import annotations

import json
from typing import Any, Never

from aibs.codec import loads

_LONG_S = {0x17F: "s"}
"""The one letter that Go folds to ASCII and `str.lower` does not."""

_KEPT_ON_NULL = frozenset({"model", "name", "prompt"})
"""Strings: null leaves what an earlier spelling of the key set."""

_MERGED = frozenset({"options"})
"""Maps: Go decodes a later one into the earlier."""


_DIGITS_MAX = len(str(2**64))


class BadBody(ValueError):
    """The body is not an object that Ollama would accept; the text is a sentence."""


def read_object(raw: bytes) -> tuple[dict[str, Any], bool]:
    """The members by folded key, and whether `raw` says the same as it stands (so that it may be
    forwarded as it came). Raises BadBody.
    """
    if not raw.strip():
        raise BadBody("missing request body")
    try:
        value = loads(raw)
        exact = True
    except ValueError:
        value, exact = _leniently(raw), False
    if not isinstance(value, dict):
        raise BadBody(f"the request body is {_kind(value)}, not a JSON object")
    folded = {fold(key): member for key, member in value.items()}
    if len(folded) == len(value):
        return folded, exact and folded.keys() == value.keys()
    # One key in several spellings: only the order in the text tells which is last.
    return _last_wins(raw), False


def fold(key: str) -> str:
    """The key as Go compares it."""
    return key.lower() if key.isascii() else key.translate(_LONG_S).lower()


def _leniently(raw: bytes, hook: Any = None) -> Any:
    text = raw.decode("utf-8", "replace").lstrip(" \t\r\n")
    decoder = json.JSONDecoder(
        object_pairs_hook=hook, parse_constant=_no_constant, parse_int=_number
    )
    try:
        value, _ = decoder.raw_decode(text)
    except RecursionError as error:
        raise BadBody("the request body is nested too deeply") from error
    except ValueError as error:
        raise BadBody(f"the request body is not JSON: {error}") from error
    return _scrubbed(value)


class _Pairs(list[tuple[str, Any]]):
    """An object as its members in their order."""


def _last_wins(raw: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, pairs in _leniently(raw, _Pairs):
        name, value = fold(key), _plain(pairs)
        if value is None and name in _KEPT_ON_NULL:
            found.setdefault(name, None)
        elif name in _MERGED and isinstance(value, dict) and isinstance(found.get(name), dict):
            found[name] = {**found[name], **value}
        else:
            found[name] = value
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {key: _plain(member) for key, member in value}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    return value


def _scrubbed(value: Any) -> Any:
    """Without lone surrogates, which no UTF-8 can carry on."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, _Pairs):
        return _Pairs((_scrubbed(key), _scrubbed(member)) for key, member in value)
    if isinstance(value, list):
        return [_scrubbed(member) for member in value]
    if isinstance(value, tuple):
        return tuple(_scrubbed(member) for member in value)
    if isinstance(value, dict):
        return {_scrubbed(key): _scrubbed(member) for key, member in value.items()}
    return value


def _number(text: str) -> int | float:
    """As the strict reader has it: what 64 bits do not hold is a float."""
    if len(text) <= _DIGITS_MAX and -(2**63) <= int(text) < 2**64:
        return int(text)
    return float(text)


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case list():
            return "a list"
    return "a number"
