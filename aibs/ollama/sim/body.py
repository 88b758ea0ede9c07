"""How a request's JSON is read: as Go's decoder does, which takes more than a strict one.

Keys match whatever their case, the last of several wins, what follows the first object is ignored.
"""

from __future__ import annotations

import json
from typing import Any

from aibs.ollama.keep_alive import InvalidDuration, parse_keep_alive
from aibs.ollama.sim.replies import RequestError

_SPACE = " \t\r\n"
_GO_KINDS = {
    bool: "bool",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def _in_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict whose order is that of each key's last appearance."""
    document: dict[str, Any] = {}
    for key, value in pairs:
        document.pop(key, None)
        document[key] = value
    return document


def _no_constant(name: str) -> Any:
    raise ValueError(f"invalid character {name[0]!r} looking for beginning of value")


_DECODER = json.JSONDecoder(object_pairs_hook=_in_order, parse_constant=_no_constant)


def fields(document: dict[str, Any]) -> dict[str, Any]:
    """An object's members by lower-case key, the last one winning; null does not undo a text."""
    folded: dict[str, Any] = {}
    for key, value in document.items():
        name = key.lower()
        if value is None and isinstance(folded.get(name), str):
            continue
        folded[name] = value
    return folded


class Body:
    """A request's members, typed as the server types them. Every fault is a RequestError 400."""

    def __init__(self, raw: bytes) -> None:
        text = raw.decode("utf-8", "replace").lstrip(_SPACE)
        if not text:
            raise RequestError(400, "missing request body")
        try:
            document, _ = _DECODER.raw_decode(text)
        except RecursionError as error:
            raise RequestError(400, "exceeded max depth") from error
        except ValueError as error:
            raise RequestError(400, f"invalid request body: {error}") from error
        if document is not None and not isinstance(document, dict):
            kind = _GO_KINDS[type(document)]
            raise RequestError(400, f"json: cannot unmarshal {kind} into Go value of type request")
        self._fields = fields(document or {})

    def __contains__(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def raw(self, name: str) -> Any:
        """A member as it is; None where it is absent or null."""
        return self._fields.get(name)

    def text(self, name: str) -> str:
        """A text, empty where it is absent."""
        return str(self._typed(name, str, "string", ""))

    def flag(self, name: str, default: bool) -> bool:
        """A truth value; null is as if absent."""
        return bool(self._typed(name, bool, "bool", default))

    def objects(self, name: str) -> list[dict[str, Any]]:
        """A list of objects with their keys folded."""
        items: list[Any] = self._typed(name, list, "array", [])
        for item in items:
            if not isinstance(item, dict):
                kind = _GO_KINDS.get(type(item), "null")
                raise RequestError(
                    400, f"json: cannot unmarshal {kind} into Go struct field {name}"
                )
        return [fields(item) for item in items]

    def options(self) -> dict[str, Any]:
        """`options`: a map, whose keys match exactly."""
        options: dict[str, Any] = self._typed("options", dict, "map[string]interface {}", {})
        return options

    def keep_alive_ns(self) -> int | None:
        """`keep_alive` in nanoseconds; None where the request does not say."""
        try:
            return parse_keep_alive(self._fields.get("keep_alive"))
        except InvalidDuration as error:
            raise RequestError(400, str(error)) from error

    def _typed(self, name: str, kind: type, go_name: str, default: Any) -> Any:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            found = _GO_KINDS[type(value)]
            raise RequestError(
                400,
                f"json: cannot unmarshal {found} into Go struct field .{name} of type {go_name}",
            )
        return value
