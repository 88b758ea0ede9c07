"""From a variable's text to its value, or a fault that says what is wrong with it and the mend."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from aibs.eventstore.endpoint import redact

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_S = 366 * 86_400.0
SHOWN_MAX = 60

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

NAME_RULE = "Use letters, digits, '.', '_' and '-', at most 64, beginning with a letter or digit."


def is_identifier(text: str) -> bool:
    """Whether the text may become part of keys and events."""
    return _IDENTIFIER.fullmatch(text) is not None


def fault(problem: str, mend: str) -> PydanticCustomError:
    """A fault of one variable, carried through pydantic with its two parts."""
    return PydanticCustomError("fault", "{problem}", {"problem": problem, "mend": mend})


def shown(value: object) -> str:
    """A value as an error shows it: quoted, on one line, cut where it is long, without a password
    that was pasted into the wrong variable.
    """
    if isinstance(value, dict | list | tuple | set):
        # YAML's aliases can make a few lines as long as the memory when written out.
        return "an object" if isinstance(value, dict) else "a list"
    try:
        text = str(value)
    except ValueError:  # a whole number of more than 4300 digits
        return "'a huge number'"
    if "://" in text or "@" in text[1:]:
        text = redact(text)
    cut = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return f"'{escaped(cut)}'"


def escaped(text: str) -> str:
    """The text on one line: line breaks, terminal codes and stray bytes written as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def _text(value: Any) -> str:
    return str(value).strip()


def boolean(value: Any) -> bool:
    """true, false, 1, 0, yes, no, on, off, in any case."""
    if isinstance(value, bool):
        return value
    text = _text(value).lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise fault(f"is {shown(_text(value))}, neither true nor false", "Set it to true or false.")


def integer(low: int, high: int) -> BeforeValidator:
    """A whole number between two bounds."""

    def read(value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        text = _text(value)
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise fault(
                f"is {shown(text)}, not a whole number", f"Set it between {low} and {high}."
            )
        number = int(text)
        if not low <= number <= high:
            raise fault(f"is {number}, out of range", f"Set it between {low} and {high}.")
        return number

    return BeforeValidator(read)


def seconds(*, zero: bool = False) -> BeforeValidator:
    """A number of seconds, fractions allowed, above 0 (or 0 where that means at once)."""

    def read(value: Any) -> float:
        text = _text(value)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise fault(f"is {shown(text)}, not a number of seconds", "Write it like 3 or 0.5.")
        if number < 0 or (number == 0 and not zero) or number > LONGEST_S:
            least = "0 or more" if zero else "above 0"
            raise fault(
                f"is {shown(text)}, out of range",
                f"Set it to a number of seconds {least}, at most {LONGEST_S:.0f}.",
            )
        if 0 < number < 0.001:
            raise fault(f"is {shown(text)}, below a millisecond", "Set it to 0.001 or more.")
        return number

    return BeforeValidator(read)


def choice(*allowed: str, reason: str = "") -> BeforeValidator:
    """One of a few words; `reason` says why there is no other."""

    def read(value: Any) -> str:
        text = _text(value).lower()
        if text not in allowed:
            words = " or ".join(word or "empty" for word in allowed)
            raise fault(
                f"is {shown(_text(value))}, not {words}{': ' + reason if reason else ''}",
                f"Set it to {words}.",
            )
        return text

    return BeforeValidator(read)


def identifier(what: str) -> Callable[[Any], str]:
    """A name that becomes part of keys and events."""

    def read(value: Any) -> str:
        text = _text(value)
        if not is_identifier(text):
            raise fault(f"has {what} {shown(text)}, which is not a name", NAME_RULE)
        return text

    return read


def items(value: Any) -> tuple[str, ...]:
    """A comma-separated list; spaces around items do not count, empty items are faults."""
    if isinstance(value, tuple | list):
        return tuple(value)
    parts = [part.strip() for part in _text(value).split(",")]
    if any(not part for part in parts):
        raise fault("has an empty item", "Remove the comma too many, or fill the item in.")
    return tuple(parts)


def identifiers(what: str) -> BeforeValidator:
    """A list of names, all different."""
    read_one = identifier(what)

    def read(value: Any) -> tuple[str, ...]:
        names = tuple(read_one(item) for item in items(value))
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise fault(f"has {shown(repeated[0])} twice", "Give each its own name.")
        return names

    return BeforeValidator(read)


def each(read_one: Callable[[str], Any]) -> BeforeValidator:
    """A list, each item read by `read_one`."""

    def read(value: Any) -> tuple[Any, ...]:
        return tuple(read_one(item) for item in items(value))

    return BeforeValidator(read)
