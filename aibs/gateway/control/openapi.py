"""stub"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.gateway.control.answering import json_answer, route

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from aibs.gateway.context import Meter


def openapi_route(meter: Meter) -> Route:
    """GET /openapi.json."""

    async def served(_: Request) -> Response:
        return json_answer({})

    return route("/openapi.json", {"GET": served}, meter)
