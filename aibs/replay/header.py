"""The first line of an exported log: which pool, which part of its log, and what it began with."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aibs.codec import loads
from aibs.errors import ConfigurationError
from aibs.reports.part import schema_of

SCHEMA: Final = "aibs.log/1"


class _Line(BaseModel):
    """A later release may say more; what it says is read over."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        json_schema_serialization_defaults_required=True,
    )


class Timing(_Line):
    """The settings that the pool was run with and that a state's wording depends on."""

    staleness_ms: int
    heartbeat_ms: int
    swap_max_ms: int


class DeclaredFleet(_Line):
    """The fleet at the end of the range."""

    revision: int
    fingerprint: str
    document: dict[str, Any]


class Snapshot(_Line):
    """The state before the first event, where that is not the log's beginning."""

    id: str
    state: dict[str, Any]
    """The document of the fold `coordination` after the event `id`."""


class LogHeader(_Line):
    """What stands before the events. `count`, `first_id` and `last_id` tell a file that was cut
    from a whole one.
    """

    schema_: Literal["aibs.log/1"] = Field(SCHEMA, alias="schema")
    pool_id: str | None
    namespace: str
    timing: Timing
    snapshot: Snapshot | None
    fleet: DeclaredFleet | None
    count: int
    first_id: str | None
    last_id: str | None


def read_header(line: bytes, name: str) -> LogHeader:
    """The header. Raises ConfigurationError where the file is not an exported log."""
    try:
        document = loads(line)
    except ValueError:
        document = None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        if isinstance(schema, str) and schema.startswith("aibs.log/"):
            raise ConfigurationError(
                f"{name} was exported by a later release ({schema[:40]}).",
                mend="Read it with that release.",
            )
        raise ConfigurationError(
            f"{name} is not an exported log: its first line is no header.",
            mend="Write one with `aibs replay --export FILE`.",
        )
    try:
        return LogHeader.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(
            f"The header of {name} cannot be read: {where}: {first['msg']}.",
            mend="Export the log again.",
        ) from error


def json_schema() -> dict[str, Any]:
    """Its JSON Schema."""
    return schema_of(LogHeader, SCHEMA)
