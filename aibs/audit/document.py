"""The document `aibs audit --json` prints, and its JSON Schema.

Unknown is null, never 0 or "". Times are RFC 3339 UTC with milliseconds, `*_bytes` whole numbers,
`*_gb` decimal GB rounded to 3 places.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA: Final = "aibs.audit/1"

NodeState = Literal["ok", "unreachable", "loading", "unsupported", "invalid_response"]
Placement = Literal["gpu", "partial", "cpu", "loading", "unknown"]
OwnershipWord = Literal["own", "foreign", "unknown"]
WarmupStatus = Literal["measured", "already_resident", "not_installed", "failed", "cancelled"]

Timestamp = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        # "schema" is the contract's word and pydantic's own attribute; only the alias is printed.
        protected_namespaces=(),
    )


class Gate(_Part):
    """One condition for enabling the global scheduler."""

    name: str
    """Stable, snake_case."""
    passed: bool
    detail: str
    """What was found."""
    fix: str | None
    """What would mend it; null where it passed."""


class Information(_Part):
    """Something worth knowing that decides no gate."""

    name: str
    level: Literal["info", "warning"]
    detail: str


class Coordination(_Part):
    """The model-coordination pool."""

    backend: str
    server: str | None
    """What the server calls itself."""
    version: str | None
    namespace: str
    reachable: bool
    error: str | None
    url: str | None
    """Where the pool is, without secrets; null where it is this process's memory."""


class LogReport(_Part):
    """The log that fleet, owner and leases were read from: `aibs replay --as-of` its `last_id`
    shows the same.
    """

    last_id: str
    seq: int
    snapshot_id: str | None
    """The event that the snapshot tells up to which reading began; null: the log's beginning."""
    consistent_with_live_state: bool
    differences: list[str]
    error: str | None
    """Why it could not be read; the live state stands in."""


class ModelReport(_Part):
    """One entry of a node's list of resident models."""

    name: str
    key: str
    """host/namespace/model:tag in lower case; the name itself in lower case where it is no model
    name, as servers up to 0.14 let through."""
    ownership: OwnershipWord
    worker_ids: list[str]
    size_bytes: int | None
    size_vram_bytes: int | None
    digest: str | None
    context_length: int | None
    expires_at: Timestamp | None
    keeps_forever: bool
    placement: Placement
    charge_bytes: int | None
    """What it counts on this node; null where that cannot be said."""


class StampReport(_Part):
    """A node's stamp, as the monitor wrote it."""

    observed_at: Timestamp
    age_ms: int
    """By the server's clock; negative when the stamp lies in the future."""
    fresh: bool
    healthy: bool
    fence: int


class HostReport(_Part):
    """GPU memory as the node's telemetry agent reports it."""

    url: str
    available: bool
    error: str | None
    gpu_used_bytes: int | None
    gpu_total_bytes: int | None


class NodeReport(_Part):
    """One node as it answered now, and as the monitor last recorded it."""

    node_id: str
    base_url: str
    state: NodeState
    error: str | None
    ollama_version: str | None
    latency_ms: int | None
    vram_budget_gb: float | None
    max_parallel_requests: int | None
    foreign_resident_bytes: int | None
    own_resident_bytes: int | None
    unaccounted: bool
    warnings: list[str]
    resident_models: list[ModelReport]
    stamp: StampReport | None
    memory: Literal["unified", "discrete"]
    configured: bool
    """False for a node given with --node-url."""
    host_telemetry: HostReport | None
    """Null where no telemetry URL is configured."""
    leases: list[str] | None
    """The living leases there, as the log tells; null where no log was read."""
    leased_bytes: int | None
    slots_used: int | None
    """Slots of living leases, and of ended ones that drain."""


class Suggestion(_Part):
    """What a worker's `resident_weight_gb` should be, by what was seen resident."""

    resident_weight_gb: float
    node_id: str
    source: Literal["ps", "warmup"]
    size_bytes: int
    size_vram_bytes: int


class WorkerReport(_Part):
    """One worker of the roster against the nodes."""

    worker_id: str
    model: str
    key: str
    kind: Literal["chat", "embedding"]
    roles: list[str]
    resident_weight_gb: float | None
    active_parameter_billions: float | None
    measured: bool
    fits_on: list[str]
    loaded_on: list[str]
    suggestion: Suggestion | None
    problems: list[str]


class WarmupReport(_Part):
    """One worker's warm-up on one node."""

    worker_id: str
    node_id: str
    status: WarmupStatus
    load_ms: int | None
    size_bytes: int | None
    size_vram_bytes: int | None
    unloaded: bool | None
    """Null where nothing was loaded by this audit."""
    evicted: list[str]
    error: str | None
    context_length: int | None


class AuditDocument(_Part):
    """What `aibs audit --json` prints."""

    schema_: Literal["aibs.audit/1"] = Field(alias="schema")
    generated_at: Timestamp
    cluster_enabled: bool
    ready_to_enable_global_scheduler: bool
    """Every gate passed. Does not depend on whether the scheduler is enabled."""
    ready_for_global_scheduler: bool
    """Every gate passed and the scheduler is enabled."""
    gates: list[Gate]
    information: list[Information]
    coordination: Coordination
    log: LogReport | None
    """Null where there is no pool."""
    nodes: list[NodeReport]
    workers: list[WorkerReport]
    warmup: list[WarmupReport] | None
    """Null unless --warmup was given."""
    suggested_roster: list[dict[str, Any]]
    """The roster with the suggestions filled in, for AIBS_MODEL_ADMISSION_WORKER_ROSTER."""


def to_json(document: AuditDocument) -> dict[str, Any]:
    """The document as JSON values, fields by their names in the contract."""
    return document.model_dump(mode="json", by_alias=True)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        **AuditDocument.model_json_schema(by_alias=True, mode="serialization"),
    }
