"""GET /openapi.json: what this gateway answers, for people and for generators of clients.

The gateway's own routes are described whole, from the models that read and write their bodies. Of
the routes that are passed on to nodes the document says where they lead and how they are refused:
their bodies are Ollama's and OpenAI's.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic.json_schema import models_json_schema

from aibs.gateway.control.answering import json_answer, route
from aibs.gateway.control.answers import EXAMPLES, MODELS
from aibs.gateway.control.health import VERSION

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from aibs.gateway.context import Meter

_REF: Final = "#/components/schemas/{model}"


PROXIED: Final = (
    ("post", "/api/chat", "Chat"),
    ("post", "/api/generate", "Complete a prompt"),
    ("post", "/api/embed", "Embed texts"),
    ("post", "/api/embeddings", "Embed one text (the older form)"),
    ("get", "/api/tags", "The models of the fleet"),
    ("get", "/api/ps", "What is resident on the fleet"),
    ("post", "/api/show", "One model"),
    ("get", "/api/version", "The oldest version of Ollama in the fleet"),
    ("post", "/v1/chat/completions", "Chat"),
    ("post", "/v1/completions", "Complete a prompt"),
    ("post", "/v1/responses", "Respond"),
    ("post", "/v1/embeddings", "Embed texts"),
    ("get", "/v1/models", "The models of the fleet"),
    ("get", "/v1/models/{model}", "One model"),
)

_LEASE_ID: Final = {
    "name": "lease_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The lease's id, as POST /placements gave it.",
}

_REASONS: Final = {
    400: ("Refusal", "The request cannot be understood."),
    401: ("Refusal", "An API key is needed, or is not known."),
    403: ("Refusal", "Not from this machine, or a higher priority than the key may ask for."),
    404: ("Denial", "No worker of the roster serves that model or role."),
    409: ("Denial", "The same request_id was used with other parameters, or has ended."),
    410: ("Refusal", "The lease is over: expired, revoked, reaped, released or unknown."),
    413: ("Refusal", "The body is too large."),
    429: ("Denial", "The queue is full."),
    503: (
        "Denial",
        "No node can take it now, the coordination server is away, or this process stops: "
        "Retry-After says when to ask again.",
    ),
}


def openapi_route(meter: Meter) -> Route:
    """GET /openapi.json."""

    async def served(_: Request) -> Response:
        return json_answer(document())

    return route("/openapi.json", {"GET": served}, meter)


@cache
def document() -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
    _, schemas = models_json_schema(
        [(model, "serialization") for model in MODELS], ref_template=_REF, by_alias=True
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "aibs gateway",
            "version": VERSION,
            "description": "Ollama's and OpenAI's APIs in front of a shared fleet, every request "
            "under a lease; leases for applications that call Ollama themselves.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"key": []}, {}],
        "tags": [
            {"name": "placements", "description": "Leases for applications."},
            {"name": "operation", "description": "Health, status, metrics."},
            {"name": "ollama", "description": "Ollama's API, placed."},
            {"name": "openai", "description": "OpenAI's API, placed."},
        ],
        "paths": {**_placements(), **_operation(), **_proxied()},
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _json(model: str, about: str) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": _REF.format(model=model)}}
    if model in EXAMPLES:
        content["example"] = EXAMPLES[model]
    return {"description": about, "content": {"application/json": content}}


def _body(model: str) -> dict[str, Any]:
    found = _json(model, "")
    return {"required": True, "content": found["content"]}


def _answers(good: dict[str, Any], *statuses: int) -> dict[str, Any]:
    refusals = {str(status): _json(*_REASONS[status]) for status in (401, *statuses)}
    return {**good, **dict(sorted(refusals.items()))}


def _operation_of(name: str, tag: str, about: str, **more: Any) -> dict[str, Any]:
    return {"operationId": name, "tags": [tag], "summary": about, **more}


def _placements() -> dict[str, Any]:
    gone = {"204": {"description": "Done; the same again is the same."}}
    request_id = {
        "name": "request_id",
        "in": "query",
        "required": True,
        "schema": {"type": "string"},
        "description": "The request's own name.",
    }
    return {
        "/placements": {
            "post": _operation_of(
                "place",
                "placements",
                "A lease on a node that can run the model now, or within the time to wait",
                requestBody=_body("PlacementBody"),
                responses=_answers(
                    {"201": _json("Placement", "A lease, or the first answer's again.")},
                    *(400, 403, 404, 409, 413, 429, 503),
                ),
            ),
            "delete": _operation_of(
                "cancel",
                "placements",
                "End a request whose answer was lost, whatever became of it",
                parameters=[request_id],
                responses=_answers(gone, 400, 503),
            ),
        },
        "/placements/{lease_id}": {
            "delete": _operation_of(
                "release",
                "placements",
                "The work is over",
                parameters=[_LEASE_ID],
                requestBody=_body("ReleaseBody"),
                responses=_answers(gone, 400, 410, 503),
            )
        },
        "/placements/{lease_id}/heartbeat": {
            "post": _operation_of(
                "heartbeat",
                "placements",
                "The work goes on",
                parameters=[_LEASE_ID],
                requestBody=_body("HeartbeatBody"),
                responses=_answers({"200": _json("Renewal", "The lease lives on.")}, 400, 410, 503),
            )
        },
    }


def _operation() -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    schema = {"application/json": {"schema": {"type": "object"}}}
    return {
        **_asked_without_key("health", "Is the process alive, and what is it", "Health"),
        **_asked_without_key("livez", "Is the process alive", "Alive"),
        **_asked_without_key("readyz", "Could a request be placed here", "Readiness", "Readiness"),
        **_asked(
            "status",
            "Owner, nodes, leases and queue, as `aibs status --json` prints them",
            {
                "200": _json("StatusDocument", "The pool as it is now."),
                "503": _json("Refusal", "The pool is away."),
            },
        ),
        **_asked(
            "metrics",
            "Metrics for Prometheus",
            {"200": {"description": "In text or in OpenMetrics' format.", "content": text}},
        ),
        **_asked(
            "openapi.json",
            "This document",
            {"200": {"description": "OpenAPI 3.1.", "content": schema}},
        ),
    }


def _asked(name: str, about: str, answers: dict[str, Any]) -> dict[str, Any]:
    responses = dict(sorted({**answers, "401": _json(*_REASONS[401])}.items()))
    operation = _operation_of(name.partition(".")[0], "operation", about, responses=responses)
    return {f"/{name}": {"get": operation}}


def _asked_without_key(name: str, about: str, model: str, bad: str = "") -> dict[str, Any]:
    responses = {"200": _json(model, "It is.")}
    if bad:
        responses["503"] = _json(bad, "It is not: why.")
    operation = _operation_of(name, "operation", about, responses=responses, security=[{}])
    return {f"/{name}": {"get": operation}}


def _proxied() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for method, path, about in PROXIED:
        native = path.startswith("/api/")
        error = "OllamaError" if native else "OpenAIError"
        anything = {"application/json": {"schema": {"type": "object"}}}
        operation = _operation_of(
            f"{method}_{path.strip('/').replace('/', '_').replace('{', '').replace('}', '')}",
            "ollama" if native else "openai",
            f"{about}, as {'Ollama' if native else 'OpenAI'} answers it",
            responses={
                "200": {"description": "As the node answers.", "content": anything},
                **{
                    str(status): _json(error, about)
                    for status, about in (
                        (400, "The request cannot be understood."),
                        (401, "An API key is needed, or is not known."),
                        (404, "The roster has no such model or role."),
                        (413, "The body is too large."),
                        (429, "The queue is full."),
                        (503, "No node can take it now: Retry-After says when to ask again."),
                    )
                },
            },
        )
        if method == "post":
            operation["requestBody"] = {"required": True, "content": anything}
        if "{model}" in path:
            operation["parameters"] = [
                {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        paths.setdefault(path, {})[method] = operation
    return paths
