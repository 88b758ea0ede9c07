"""What the gateway's own routes answer: models with an example each, for the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from aibs.gateway.control.placement_bodies import (
    Body,
    Denial,
    HeartbeatBody,
    Placement,
    PlacementBody,
    Refusal,
    ReleaseBody,
    Renewal,
)
from aibs.reports.status import StatusDocument

if TYPE_CHECKING:
    from pydantic import BaseModel


class Health(Body):
    """The process lives."""

    status: Literal["ok", "draining"]
    version: str
    mode: Literal["cluster", "local"]
    uptime_seconds: float


class Alive(Body):
    """The loop turns."""

    status: Literal["ok"]


class ReadinessReason(Body):
    """One thing that keeps every request from being placed."""

    reason: str
    detail: str


class Readiness(Body):
    """Whether a request could be placed here."""

    status: Literal["ready", "unready"]
    reasons: list[ReadinessReason]


class OllamaError(Body):
    """A refusal in Ollama's own format, with a reason beside it."""

    error: str
    reason: str
    retry_after_ms: int | None


class OpenAIErrorBody(Body):
    """What went wrong."""

    message: str
    type: str
    param: None
    code: str


class OpenAIError(Body):
    """A refusal in OpenAI's own format; `code` is the reason."""

    error: OpenAIErrorBody


MODELS: Final[tuple[type[BaseModel], ...]] = (
    PlacementBody,
    HeartbeatBody,
    ReleaseBody,
    Placement,
    Denial,
    Renewal,
    Refusal,
    Health,
    Alive,
    Readiness,
    StatusDocument,
    OllamaError,
    OpenAIError,
)

EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "PlacementBody": {
        "request_id": "report-2026-12-01",
        "model": "llama3:8b",
        "priority": "normal",
        "wait_seconds": 30,
    },
    "Placement": {
        "lease_id": "5bc526623b914578.report-2026-12-01",
        "token": "1041",
        "node_id": "box-c",
        "node_base_url": "http://10.4.3.16:11434",
        "model": "llama3:8b",
        "worker_id": "answer",
        "warm": True,
        "unload_first": [],
        "expires_in_ms": 900000,
        "deadline": "2026-12-01T12:18:04.567Z",
        "queue_ms": 0,
        "role": None,
        "heartbeat_every_ms": 30000,
    },
    "Denial": {
        "reason": "no_slot",
        "detail": "llama3:8b (7 GB) fits on no node now: box-c has no free slot.",
        "nodes": [{"node_id": "box-c", "reason": "no_slot", "detail": "box-c has no free slot."}],
        "retry_after_ms": 2000,
        "position": None,
    },
    "HeartbeatBody": {"token": "1041"},
    "ReleaseBody": {"token": "1041", "call_id": "done-1", "outcome": "completed"},
    "Renewal": {"expires_in_ms": 900000},
    "Refusal": {"reason": "expired", "detail": "The lease's deadline passed."},
    "OllamaError": {
        "error": "llama3:8b (7 GB) fits on no node now: box-c has no free slot.",
        "reason": "no_slot",
        "retry_after_ms": 2000,
    },
    "OpenAIError": {
        "error": {
            "message": "llama3:8b (7 GB) fits on no node now: box-c has no free slot.",
            "type": "api_error",
            "param": None,
            "code": "no_slot",
        }
    },
}
