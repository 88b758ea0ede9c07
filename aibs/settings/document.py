"""The document of `aibs config check --json`, and its JSON Schema. Holds no secret."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from aibs.codec import BYTES_PER_GB, dumps_text, rfc3339
from aibs.eventstore.endpoint import redact
from aibs.settings import examine
from aibs.settings.fields import FIELDS, Variables, traits, variable
from aibs.settings.parsing import escaped
from aibs.settings.rules import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aibs.settings import Settings
    from aibs.settings.sources import Provenance

SCHEMA: Final = "aibs.config_check/1"


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=()
    )


class FaultReport(_Part):
    """One thing wrong with one variable."""

    variable: str
    problem: str
    mend: str


class SettingReport(_Part):
    """One variable as this process would use it."""

    variable: str
    group: str
    description: str
    value: str
    """As an operator would write it; secrets masked."""
    default: str
    provenance: Literal["default", "environment", ".env"]
    faulty: bool
    """True where a fault names it. `value` is the default where the text could not be read."""


class ConfigDocument(_Part):
    """What `aibs config check --json` prints."""

    schema_: Literal["aibs.config_check/1"] = Field(alias="schema")
    generated_at: str
    ok: bool
    """No fault; with --strict, no warning either."""
    strict: bool
    faults: list[FaultReport]
    warnings: list[str]
    settings: list[SettingReport]
    takeover_bound_ms: int
    fleet_fingerprint: str | None
    """Null where there is a fault."""
    node_count: int
    worker_count: int


def config_document(
    environ: Mapping[str, str] | None, env_file: Path | None, *, strict: bool, now_ms: int
) -> ConfigDocument:
    """Examine the settings. Raises ConfigurationError only where `.env` cannot be read."""
    settings, faults = examine(environ, env_file)
    faulty = {fault.variable for fault in faults}
    fleet = settings.fleet()
    return ConfigDocument(
        schema=SCHEMA,
        generated_at=rfc3339(now_ms),
        ok=not faults and not (strict and settings.warnings),
        strict=strict,
        faults=[FaultReport(variable=f.variable, problem=f.problem, mend=f.mend) for f in faults],
        warnings=list(settings.warnings),
        settings=[_report(settings, field, variable(field) in faulty) for field in FIELDS],
        takeover_bound_ms=settings.takeover_bound_ms,
        fleet_fingerprint=None if faults else fleet.fingerprint,
        node_count=len(fleet.nodes),
        worker_count=len(fleet.workers),
    )


def _report(settings: Settings, field: str, faulty: bool) -> SettingReport:
    info = Variables.model_fields[field]
    group, _ = traits(field)
    provenance: Provenance = settings.provenance(field)
    return SettingReport(
        variable=variable(field),
        group=group,
        description=info.description or "",
        # A stray byte of the environment has no place in a JSON document.
        value=escaped(shown_value(field, getattr(settings, field))),
        default=shown_value(field, info.default),
        provenance=provenance,
        faulty=faulty,
    )


def shown_value(field: str, value: Any) -> str:
    """A value as it would be written into `.env`, without its secrets."""
    if field == "api_keys":
        return value if not value or value.startswith("@") else _keys_masked(value)
    if traits(field)[1]:
        return redact(value)
    if field == "model_cluster_node_vram_gb":
        return ",".join(f"{(Decimal(size) / BYTES_PER_GB).normalize():f}" for size in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return plain(value)
    if isinstance(value, dict):
        return dumps_text(value)
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def _keys_masked(value: str) -> str:
    return ",".join(f"{item.strip().partition(':')[0]}:***" for item in value.split(","))


def to_json(document: ConfigDocument) -> dict[str, Any]:
    """The document as JSON values."""
    return document.model_dump(mode="json", by_alias=True)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        **ConfigDocument.model_json_schema(by_alias=True, mode="serialization"),
    }
