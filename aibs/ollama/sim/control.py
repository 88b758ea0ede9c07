"""The routes that no real server has: faults and counts of one node, under `/_sim/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.codec import loads
from aibs.ollama.sim.replies import Reply, json_reply, not_found

if TYPE_CHECKING:
    from aibs.ollama.sim.node import SimNode
    from aibs.ollama.sim.replies import Request

PREFIX = "/_sim/"


def control(node: SimNode, request: Request) -> Reply:
    """POST faults (a JSON object of `Faults` members), POST reset, GET stats, GET log."""
    match (request.method, request.path):
        case ("POST", "/_sim/faults"):
            return _set_faults(node, request.body)
        case ("POST", "/_sim/reset"):
            node.reset()
            return json_reply({"reset": True})
        case ("GET", "/_sim/stats"):
            return json_reply({**node.stats.document(), "resident": node.resident})
        case ("GET", "/_sim/log"):
            return json_reply({"requests": node.log})
        case _:
            return not_found()


def _set_faults(node: SimNode, body: bytes) -> Reply:
    document: Any = None
    try:
        document = loads(body)
        if not isinstance(document, dict):
            raise ValueError("faults are a JSON object")  # noqa: TRY004 - one way out for all
        node.inject(**document)
    except ValueError as error:
        return json_reply({"error": str(error)}, 400)
    return json_reply({"faults": sorted(document)})
