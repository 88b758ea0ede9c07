"""What the placer's tests share: a fleet of one model, a session, a placer with short times."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from aibs.fleet import Fleet, Node, Worker
from aibs.placement import Placer, PlacerTiming
from aibs.placement.session import open_identity

if TYPE_CHECKING:
    from tests.fake_backend import FakeBackend

GB = 10**9
WORKER = Worker(
    "w1",
    "llama3:8b",
    roles=("chat",),
    resident_weight_bytes=5 * GB,
    active_parameter_billions=Decimal(8),
    num_ctx=8192,
    keep_alive="30m",
)
FLEET = Fleet(nodes=(Node("box-a", "http://box-a:11434", 90 * GB, 1),), workers=(WORKER,))
LONG = PlacerTiming(ttl_ms=60_000, heartbeat_ms=20_000, poll_ms=20, wait_ms=30_000, load_ms=20_000)


def placer_of(backend: FakeBackend, timing: PlacerTiming = LONG, fleet: Fleet = FLEET) -> Placer:
    return Placer(backend, fleet, open_identity("test", "test"), timing)
