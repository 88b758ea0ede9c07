"""`aibs smoke --json`: the document, and its schema."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from aibs.reports.part import Part, Timestamp

SCHEMA: Final = "aibs.smoke/1"

StepName = Literal["audit", "narrow", "broad", "concurrent_broad", "cancelled", "no_leaks"]

Outcome = Literal[
    "completed",
    "cancelled",
    "failed",
    "expired",
    "reaped",
    "active",
    "no_grant",
    "refused",
    "no_answer",
]


class SmokeRequest(Part):
    """One request as the log tells it; what the log does not know is null."""

    request_id: str | None
    """As events name it; null where the gateway did not tell it, so that it cannot be found."""
    lease_id: str | None
    node_id: str | None
    node_base_url: str | None
    queue_ms: int | None
    """How long its leases waited in the queue; null where it got none, or cannot be found."""
    duration_ms: int
    """From sending it to the end of its answer, or until it was cut."""
    outcome: Outcome
    """How its lease ended. active: not yet; no_grant: answered, and the log has no lease of it;
    refused: the gateway said no; no_answer: it said nothing, or broke off.
    """
    asked: str
    """The role or model that was asked for."""
    kind: Literal["chat", "embedding"]
    status: int | None
    """The HTTP status."""
    grants: int
    """Leases that it got: more than one where a node failed it."""


class SmokeStep(Part):
    """One step of the test."""

    name: StepName
    passed: bool
    requests: list[SmokeRequest]
    detail: str
    """What was seen; where it failed, everything that was wrong."""


class SmokeDocument(Part):
    """The whole test."""

    schema_: Literal["aibs.smoke/1"] = Field(SCHEMA, alias="schema")
    generated_at: Timestamp
    passed: bool
    url: str
    namespace: str
    fingerprint: str
    steps: list[SmokeStep]


def to_json(document: SmokeDocument) -> dict[str, Any]:
    """The document as JSON values, fields by their names in the contract."""
    return document.model_dump(mode="json", by_alias=True)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        **SmokeDocument.model_json_schema(by_alias=True, mode="serialization"),
    }
