"""Where settings come from: the environment, over `.env`. Texts only, with their provenance."""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Literal

from dotenv.parser import parse_stream

from aibs.errors import ConfigurationError, Fault
from aibs.settings.fields import PREFIX, VARIABLES
from aibs.settings.nearest import nearest
from aibs.settings.parsing import escaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from dotenv.parser import Binding

Provenance = Literal["default", "environment", ".env"]


@dataclass(frozen=True, slots=True)
class Text:
    """What a variable was set to, and where."""

    value: str
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Sources:
    """The text of each field that is set, by field, the names that no setting has, and what is
    wrong with `.env` itself.
    """

    texts: Mapping[str, Text]
    unknown: tuple[tuple[str, Provenance], ...]
    repeated: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    def warnings(self) -> tuple[str, ...]:
        """A sentence for each unknown name, with the known one that it is most like, and for each
        that `.env` sets twice.
        """
        return (
            *(_unknown(name, provenance) for name, provenance in self.unknown),
            *(f"{name} is set more than once in .env: the last counts." for name in self.repeated),
        )


@dataclass(frozen=True, slots=True)
class _File:
    values: Mapping[str, str | None]
    repeated: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


def read_sources(environ: Mapping[str, str], env_file: Path | None) -> Sources:
    """Read both. Raises ConfigurationError where `.env` cannot be read."""
    texts: dict[str, Text] = {}
    unknown: dict[str, Provenance] = {}
    file = _dotenv(env_file)
    layers: tuple[tuple[Provenance, Mapping[str, str | None]], ...] = (
        (".env", file.values),
        ("environment", environ),
    )
    for provenance, layer in layers:
        for name, value in layer.items():
            if not name.startswith(PREFIX):
                continue
            field = VARIABLES.get(name)
            if field is None:
                unknown[name] = provenance
            # An empty variable is one that is not set, as in a template that was not filled in.
            elif value is not None and value.strip():
                texts[field] = Text(value.strip(), provenance)
    return Sources(texts, tuple(sorted(unknown.items())), file.repeated, file.faults)


def _dotenv(env_file: Path | None) -> _File:
    if env_file is None or not env_file.is_file():
        return _File({})
    try:
        text = env_file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(
            f"{env_file} cannot be read: {reason}.", mend="Mend the file, or move it away."
        ) from error
    values: dict[str, str | None] = {}
    repeated: list[str] = []
    faults: list[Fault] = []
    # Values are taken as they stand: a password may hold ${ as it may any other character.
    for line in parse_stream(StringIO(text)):
        if line.error:
            faults += _unread(line)
        elif line.key is not None and line.key.startswith(PREFIX):
            if line.key in values:
                repeated.append(line.key)
            # `NAME=   # what it is for` may read as "# what it is for": no setting begins so.
            comment = line.value is not None and line.value.lstrip().startswith("#")
            values[line.key] = None if comment else line.value
    return _File(values, tuple(dict.fromkeys(repeated)), tuple(faults))


def _unread(line: Binding) -> Iterator[Fault]:
    """A line that is not NAME=value, where it seems to set one of ours: without it a default would
    be in force that nobody chose. The line is not shown: it may hold a secret.
    """
    text = line.original.string
    name = re.match(r"\s*(?:export\s+)?([A-Z0-9_]+)", text)
    if name is not None and name[1] in VARIABLES:
        number = line.original.line + text.count("\n", 0, name.start(1))
        yield Fault(
            name[1],
            f"is on line {number} of .env, which cannot be read as NAME=value",
            "Write an = after the name, and close the quotes.",
        )


def _unknown(name: str, provenance: Provenance) -> str:
    where = "in the environment" if provenance == "environment" else "in .env"
    hint = nearest(name, VARIABLES)
    tail = f"; did you mean {hint}?" if hint else "."
    return f"{escaped(name)}, set {where}, is no setting and is ignored{tail}"
