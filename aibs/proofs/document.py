"""`aibs prove-takeover --json`: the document, and its schema."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from aibs.reports.part import Part, Timestamp

SCHEMA: Final = "aibs.proof.takeover/1"

Variant = Literal["kill", "pause"]
HandoverGate = Literal["strict", "report-only"]


class Parts(Part):
    """What the handover was made of, in milliseconds of the server's time; null: never came."""

    lease_expiry_ms: int | None
    """From the kill until the owner's term was over."""
    election_ms: int | None
    """From there until the standby was elected."""
    first_sample_ms: int | None
    """From there until the first healthy sample under its fence."""
    all_nodes_fresh_ms: int | None
    """From there until every node had one."""


class NodeEvidence(Part):
    """When polls of a node began: the last good one before the kill, the first good one after."""

    node_id: str
    last_before: Timestamp | None
    first_after: Timestamp | None


class Stderr(Part):
    """What the monitors wrote beside their ordinary log lines."""

    expected: list[str]
    churn: list[str]
    """Signs that an owner lost or missed its term."""
    unexplained: list[str]


class RunReport(Part):
    """One run of the proof."""

    run: int
    passed: bool
    correctness_passed: bool
    availability_passed: bool
    stopped_at: str | None
    """The step that did not come about; null where all did."""
    owner_a: str | None
    fence_a: int | None
    owner_b: str | None
    fence_b: int | None
    killed_at: Timestamp | None
    """When the owner was killed or paused."""
    handover_ms: int | None
    """From then until every node was observed again."""
    parts: Parts
    nodes: list[NodeEvidence]
    fenced_writes_rejected: int
    fenced_writes_accepted: int
    pre_kill_owner_losses: int
    stderr: Stderr
    namespace: str
    namespace_deleted: bool
    findings: list[str]


class TakeoverDocument(Part):
    """The whole proof."""

    schema_: Literal["aibs.proof.takeover/1"] = Field(SCHEMA, alias="schema")
    generated_at: Timestamp
    passed: bool
    correctness_passed: bool
    availability_passed: bool
    handover_gate: HandoverGate
    bound_ms: int
    max_residency_staleness_ms: int
    variant: Variant
    self_contained: bool
    fingerprint: str
    runs: list[RunReport]


def to_json(document: TakeoverDocument) -> dict[str, Any]:
    """The document as JSON values, fields by their names in the contract."""
    return document.model_dump(mode="json", by_alias=True)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        **TakeoverDocument.model_json_schema(by_alias=True, mode="serialization"),
    }
