"""Routes that are answered for the fleet as a whole, without a lease; those that are refused."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from aibs import logs
from aibs.codec import dumps_in_order
from aibs.gateway.asked import NotAsked, body_of
from aibs.gateway.bodies import BadBody, read_object
from aibs.gateway.denials import BROKE, answer_to
from aibs.gateway.failures import NodeFailure
from aibs.gateway.fleet_view import NothingKnown, key_of
from aibs.gateway.installed import NOT_INSTALLED, named, not_installed, places_of
from aibs.gateway.replies import error_response
from aibs.gateway.targets import NoTarget
from aibs.gateway.watch import ClientLeft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from aibs.gateway.plane import DataPlane
    from aibs.gateway.targets import Target

    Answerer = Callable[[Request], Awaitable[Response]]

SHOW_S: Final = 10.0
NODES_ASKED_MAX: Final = 3
NOTHING_KNOWN_RETRY_MS: Final = 2_000

REFUSED: Final = (
    "/api/pull",
    "/api/push",
    "/api/create",
    "/api/copy",
    "/api/delete",
    "/api/blobs/{digest:path}",
)
_LEFT_STATUS: Final = 499


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
        raise _nowhere(plane, target)

    async def show(request: Request) -> Response:
        return await _show(plane, request)

    def route(path: str, answer: Answerer, *methods: str) -> Route:
        return Route(path, _Endpoint(plane, path, answer, methods))

    get = ("GET", "HEAD")
    return [
        route("/", _running, *get),
        route("/api/tags", tags, *get),
        route("/api/ps", ps, *get),
        route("/api/version", version, *get),
        route("/api/show", show, "POST"),
        route("/v1/models", models, *get),
        route("/v1/models/{model:path}", model, *get),
        *(route(path, _refuse) for path in REFUSED),
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
    raise _nowhere(plane, target)


def _nowhere(plane: DataPlane, target: Target) -> NoTarget:
    """A model of the roster that no node lists."""
    places = places_of(plane.context.fleet, target)
    missing = [(node_id, key) for node_id, keys in places.items() for key in keys]
    return NoTarget(not_installed(named(target, missing)), 503, NOT_INSTALLED)


class _Endpoint:
    """One path: counted, with every refusal in the client's format. Without `methods` all are
    answered alike.
    """

    def __init__(
        self, plane: DataPlane, path: str, answer: Answerer, methods: tuple[str, ...]
    ) -> None:
        self._label = path.replace(":path}", "}")
        self._answer = answer
        self._methods = methods
        self._meter = plane.context.meter
        self._log = logs.get("aibs.gateway.fleet_routes", route=self._label)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began_s, status = time.monotonic(), _LEFT_STATUS
        self._meter.began(self._label)
        try:
            answer = await self._told(Request(scope, receive))
            status = answer.status_code
            await answer(scope, receive, send)
        except ClientLeft:
            # Nobody is there to be answered.
            status = _LEFT_STATUS
        finally:
            self._meter.ended(self._label, status, None, time.monotonic() - began_s)

    async def _told(self, request: Request) -> Response:
        path: str = request.scope["path"]
        try:
            self._require_method(request.method)
            return await self._answer(request)
        except NotAsked as error:
            return error_response(
                path, str(error), error.reason, error.status, headers=error.headers
            )
        except NoTarget as error:
            again_ms = answer_to(error.reason, None)[1] if error.status == 503 else None
            return error_response(path, str(error), error.reason, error.status, again_ms)
        except BadBody as error:
            return error_response(path, str(error), None, 400)
        except NothingKnown as error:
            return error_response(path, str(error), "node_unhealthy", 503, NOTHING_KNOWN_RETRY_MS)
        except Exception as error:  # noqa: BLE001 - its client is told, whatever it was
            self._log.exception("request_broke", error=repr(error))
            return error_response(path, BROKE, "failed", 500)

    def _require_method(self, method: str) -> None:
        if self._methods and method not in self._methods:
            allowed = ", ".join(self._methods)
            sentence = f"{self._label} is asked with {allowed}."
            raise NotAsked(sentence, 405, headers={"allow": allowed})


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
