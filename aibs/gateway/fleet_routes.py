"""Routes that are answered for the fleet as a whole, without a lease; those that are refused."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from aibs.codec import dumps_in_order
from aibs.gateway.asked import NotAsked, body_of
from aibs.gateway.bodies import BadBody, read_object
from aibs.gateway.failures import NodeFailure
from aibs.gateway.fleet_view import NothingKnown, key_of
from aibs.gateway.replies import error_response
from aibs.gateway.targets import NoTarget

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from aibs.gateway.plane import DataPlane

SHOW_S: Final = 10.0
NODES_ASKED_MAX: Final = 3

REFUSED: Final = (
    "/api/pull",
    "/api/push",
    "/api/create",
    "/api/copy",
    "/api/delete",
    "/api/blobs/{digest:path}",
)
_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]


def fleet_routes(plane: DataPlane) -> list[Route]:
    """The routes of the fleet's own answers."""
    view = plane.view

    async def tags(_: Request) -> Response:
        return _json({"models": await view.tags()})

    async def ps(_: Request) -> Response:
        return _json({"models": await view.resident()})

    async def version(_: Request) -> Response:
        return _json({"version": await view.version()})

    async def models(_: Request) -> Response:
        listed = [_openai_model(entry) for entry in await view.tags()]
        return _json({"object": "list", "data": listed})

    async def model(request: Request) -> Response:
        target = plane.targets.find(request.path_params["model"], None)
        keys = {worker.key for worker in target.workers}
        for entry in await view.tags():
            # The role's own entry comes after those of models, so names are looked at first.
            if _same(entry, request.path_params["model"]) or (
                target.role is None and key_of(entry) in keys
            ):
                return _json(_openai_model(entry))
        raise NoTarget(f"model {request.path_params['model'][:200]!r} not found", 404, None)

    async def show(request: Request) -> Response:
        return await _show(plane, request)

    def told(answer: Callable[[Request], Awaitable[Response]]) -> Any:
        return _told(answer)

    return [
        Route("/", told(_running), methods=["GET"]),
        Route("/api/tags", told(tags), methods=["GET"]),
        Route("/api/ps", told(ps), methods=["GET"]),
        Route("/api/version", told(version), methods=["GET"]),
        Route("/api/show", told(show), methods=["POST"]),
        Route("/v1/models", told(models), methods=["GET"]),
        Route("/v1/models/{model:path}", told(model), methods=["GET"]),
        *(Route(path, told(_refuse), methods=_METHODS) for path in REFUSED),
    ]


async def _running(_: Request) -> Response:
    # What clients look for, to know that a server is there.
    return PlainTextResponse("Ollama is running")


async def _refuse(request: Request) -> Response:
    raise NotAsked(
        f"{request.url.path} is not served: models are managed on each node, with its own "
        "`ollama`; the scheduler owns what is loaded, not what is installed.",
        403,
    )


async def _show(plane: DataPlane, request: Request) -> Response:
    raw = await body_of(request.receive, plane.context.settings.api_max_body_bytes)
    fields, _ = read_object(raw)
    asked = fields.get("model") or fields.get("name")
    target = plane.targets.find(asked, None)
    workers = {worker.key: worker for worker in target.workers}
    nodes = {node.node_id: node for node in plane.context.fleet.nodes}
    last: NodeFailure | None = None
    for key, worker in workers.items():
        name = target.spelled or worker.model
        body = dumps_in_order({**fields, "model": name, "name": name})
        for node_id in (await plane.view.nodes_with(key))[:NODES_ASKED_MAX]:
            url = f"{nodes[node_id].base_url}/api/show"
            try:
                answer = await plane.upstream.fetch(node_id, "POST", url, body, limit_s=SHOW_S)
            except NodeFailure as failure:
                last = failure
                continue
            if answer.status == 404:
                continue
            return Response(answer.body, answer.status, media_type=answer.content_type)
    if last is not None:
        raise NothingKnown(f"No node told of {asked!r}: {last}.")
    raise NoTarget(f"model {str(asked)[:200]!r} not found", 404, "unknown_model")


def _told(answer: Callable[[Request], Awaitable[Response]]) -> Any:
    """With every refusal in the client's format."""

    async def told(request: Request) -> Response:
        path = request.url.path
        try:
            return await answer(request)
        except (NotAsked, NoTarget) as error:
            return error_response(path, str(error), error.reason, error.status)
        except BadBody as error:
            return error_response(path, str(error), None, 400)
        except NothingKnown as error:
            return error_response(path, str(error), "node_unhealthy", 503, 2_000)

    return told


def _json(document: Any) -> Response:
    return Response(dumps_in_order(document), media_type="application/json")


def _same(entry: dict[str, Any], name: str) -> bool:
    said = str(entry.get("name", ""))
    return name in (said, said.removesuffix(":latest"))


def _openai_model(entry: dict[str, Any]) -> dict[str, Any]:
    name = str(entry.get("name") or entry.get("model"))
    owner = name.rpartition("/")[0].rpartition("/")[2] or "library"
    return {"id": name, "object": "model", "created": _seconds(entry), "owned_by": owner}


def _seconds(entry: dict[str, Any]) -> int:
    try:
        return int(datetime.fromisoformat(str(entry.get("modified_at"))).timestamp())
    except (ValueError, OverflowError):
        return 0
