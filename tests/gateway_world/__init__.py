"""What the gateway's tests stand on: nodes, a pool, real `aibs serve` processes, and evidence.

Simulated and scripted nodes live in a loop of their own (`Yard`), so that tests are plain functions
which may block, also inside the official clients. Judgement comes from the pool's log and from what
the nodes saw, never from what a gateway says of itself.

    yard.py            the loop in a thread
    raw_node.py        a node that plays a script of bytes
    raw_client.py      a client that keeps every byte
    serve_process.py   `aibs serve`
    patience.py        waiting
    evidence.py        the log and the live leases
    world.py           all of it together
"""

from __future__ import annotations

from tests.gateway_world.evidence import Evidence
from tests.gateway_world.patience import until
from tests.gateway_world.raw_client import Answer, RawClient, direct, post_bytes
from tests.gateway_world.raw_node import Call, Play, RawNode, chunked, head, ndjson
from tests.gateway_world.serve_process import ServeProcess
from tests.gateway_world.world import GB, Box, World
from tests.gateway_world.yard import Yard

__all__ = [
    "GB",
    "Answer",
    "Box",
    "Call",
    "Evidence",
    "Play",
    "RawClient",
    "RawNode",
    "ServeProcess",
    "World",
    "Yard",
    "chunked",
    "direct",
    "head",
    "ndjson",
    "post_bytes",
    "until",
]
