"""The document of `aibs replay --explain`: one request or lease from its first word to its last."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from aibs.reports.part import Part, Timestamp, schema_of

SCHEMA: Final = "aibs.replay.explain/1"

Outcome = Literal[
    "denied",
    "waiting",
    "wait_ended",
    "held",
    "revoked",
    "completed",
    "cancelled",
    "failed",
    "expired",
    "reaped",
]


class Subject(Part):
    """Who asked for what. `lease_id` is that of the last grant."""

    request_id: str
    request_key: str
    lease_id: str | None
    environment: str
    holder: str
    asked_for: str
    """The model's comparison key, the role, or both."""
    priority: str | None


class NodeWhy(Part):
    """Why a node did not take it. `told`: by the decision itself, or made out from the log."""

    node_id: str
    reason: str
    detail: str
    told: Literal["by_the_decision", "from_the_log"]


class Denial(Part):
    """A refusal. `others` counts nodes beyond those listed, by reason."""

    event_id: str
    at: Timestamp
    reason: str
    nodes: list[NodeWhy]
    others: dict[str, int]


class Ahead(Part):
    """A waiter that stood before it."""

    request_id: str
    request_key: str
    model: str
    priority: str
    waiting_ms: int
    why: str


class Meanwhile(Part):
    """A grant to another while it waited. `passed`: it stood behind and was let by."""

    event_id: str
    at: Timestamp
    lease_id: str
    request_id: str
    model: str
    node_id: str
    passed: bool


class Reserved(Part):
    """A node that was kept for it."""

    event_id: str
    at: Timestamp
    node_id: str
    why: str
    ended: str | None
    ended_at: Timestamp | None


class Wait(Part):
    """Its time in the queue."""

    event_id: str
    at: Timestamp
    position: int
    behind: list[Ahead]
    reason: str
    nodes: list[NodeWhy]
    others: dict[str, int]
    meanwhile: list[Meanwhile]
    reserved: list[Reserved]
    ended: str | None
    """granted, cancelled, forgotten, timed_out, refused; null while it waits."""
    ended_at: Timestamp | None
    waited_ms: int | None


class Load(Part):
    """What its holder did with models on the node."""

    event_id: str
    at: Timestamp
    what: Literal["loading", "loaded", "unloaded"]
    model: str
    ms: int
    outcome: str


class Silence(Part):
    """A time without a heartbeat, longer than the interval: so many were missed."""

    since: Timestamp
    until: Timestamp
    missed: int


class Heartbeats(Part):
    """Renewals. `last_at` null: none was heard."""

    count: int
    interval_ms: int
    last_at: Timestamp | None
    missed: int
    silences: list[Silence]


class Ending(Part):
    """How a lease ended."""

    event_id: str
    at: Timestamp
    how: str
    held_ms: int
    why: str | None
    by: str | None


class Grant(Part):
    """A lease. `evidence` is null where the log no longer reaches back to the grant."""

    lease_id: str
    token: str
    event_id: str | None
    at: Timestamp
    node_id: str
    node_base_url: str
    model: str
    worker_id: str
    weight_bytes: int
    warm: bool
    unload_first: list[str]
    probe: bool
    queue_ms: int
    evidence: dict[str, Any] | None
    nodes: list[NodeWhy]
    """Each other node at the moment of the decision."""
    loads: list[Load]
    heartbeats: Heartbeats
    revoked: Ending | None
    ended: Ending | None
    deadline: Timestamp


class Step(Part):
    """One line of the story."""

    event_id: str
    at: Timestamp
    seq: int
    text: str


class ExplainDocument(Part):
    """The whole answer."""

    schema_: Literal["aibs.replay.explain/1"] = Field(SCHEMA, alias="schema")
    generated_at: Timestamp
    subject: Subject
    outcome: Outcome
    summary: str
    denials: list[Denial]
    waits: list[Wait]
    grants: list[Grant]
    story: list[Step]
    notes: list[str]


def json_schema() -> dict[str, Any]:
    """Its JSON Schema."""
    return schema_of(ExplainDocument, SCHEMA)
