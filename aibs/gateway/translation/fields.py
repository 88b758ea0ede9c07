"""Members of an OpenAI body as Go's decoder takes them: null is absent, a wrong type an error.

Keys match without regard to case at every depth that is a struct (ollama.md §1.9).
"""

from __future__ import annotations

from typing import Any

from aibs.gateway.bodies import BadBody, fold


def text(fields: dict[str, Any], name: str, at: str = "") -> str | None:
    """A string. Raises BadBody."""
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise BadBody(f"{at}{name} must be a string")
    return value


def integer(fields: dict[str, Any], name: str) -> int | None:
    """A whole number. Raises BadBody."""
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise BadBody(f"{name} must be a whole number")
    return value


def number(fields: dict[str, Any], name: str) -> float | None:
    """A number, as it is written. Raises BadBody."""
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise BadBody(f"{name} must be a number")
    return value


def flag(fields: dict[str, Any], name: str) -> bool:
    """True or false; false where it is not said. Raises BadBody."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadBody(f"{name} must be true or false")
    return bool(value)


def record(fields: dict[str, Any], name: str, at: str = "") -> dict[str, Any] | None:
    """An object with its keys folded. Raises BadBody."""
    value = fields.get(name)
    return None if value is None else folded(value, f"{at}{name}")


def items(fields: dict[str, Any], name: str, at: str = "") -> list[Any] | None:
    """A list. Raises BadBody."""
    value = fields.get(name)
    if value is not None and not isinstance(value, list):
        raise BadBody(f"{at}{name} must be a list")
    return value


def folded(value: Any, at: str) -> dict[str, Any]:
    """An object with its keys folded. Raises BadBody."""
    if not isinstance(value, dict):
        raise BadBody(f"{at} must be an object")
    return {fold(key): member for key, member in value.items()}
