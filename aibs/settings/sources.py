"""Where settings come from: the environment, over `.env`. Texts only, with their provenance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dotenv import dotenv_values

from aibs.errors import ConfigurationError
from aibs.settings.fields import PREFIX, VARIABLES
from aibs.settings.nearest import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Provenance = Literal["default", "environment", ".env"]


@dataclass(frozen=True, slots=True)
class Text:
    """What a variable was set to, and where."""

    value: str
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Sources:
    """The text of each field that is set, by field, and the names that no setting has."""

    texts: Mapping[str, Text]
    unknown: tuple[tuple[str, Provenance], ...]

    def warnings(self) -> tuple[str, ...]:
        """A sentence for each unknown name, with the known one that it is most like."""
        return tuple(_unknown(name, provenance) for name, provenance in self.unknown)


def read_sources(environ: Mapping[str, str], env_file: Path | None) -> Sources:
    """Read both. Raises ConfigurationError where `.env` cannot be read."""
    texts: dict[str, Text] = {}
    unknown: dict[str, Provenance] = {}
    layers: tuple[tuple[Provenance, Mapping[str, str | None]], ...] = (
        (".env", _dotenv(env_file)),
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
    return Sources(texts, tuple(sorted(unknown.items())))


def _dotenv(env_file: Path | None) -> dict[str, str | None]:
    if env_file is None or not env_file.is_file():
        return {}
    try:
        # No interpolation: a password may hold ${ as it may any other character.
        values = dotenv_values(env_file, encoding="utf-8-sig", interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(
            f"{env_file} cannot be read: {reason}.", mend="Mend the file, or move it away."
        ) from error
    # `NAME=   # what it is for` reads as the value "# what it is for": no setting begins so.
    return {
        name: None if value is not None and value.lstrip().startswith("#") else value
        for name, value in values.items()
    }


def _unknown(name: str, provenance: Provenance) -> str:
    where = "in the environment" if provenance == "environment" else "in .env"
    hint = nearest(name, VARIABLES)
    tail = f"; did you mean {hint}?" if hint else "."
    return f"{name}, set {where}, is no setting and is ignored{tail}"
