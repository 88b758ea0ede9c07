"""Histories as the placement scripts wrote them: a seeded walk through the placement world."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from aibs.placement.values import Granted
from tests.property.placement_world import LIMITS, ORDER, World, fleet, key_of, request, resident

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.eventstore.events import Event
    from aibs.placement.values import Lease

BOXES = ("box-c", "box-e")
SIZES = {"small:7b": 10, "medium:30b": 30, "large:70b": 80}
LANES = (*(f"m|{key_of(name)}" for name in ("small:7b", *SIZES)), "r|answer", "m|nobody:1b")


class Walk:
    """One world, and someone who does in it what holders, owners and operators do."""

    def __init__(self, url: str, seed: int) -> None:
        self.world = World(url)
        self._chance = random.Random(seed)
        self._grants: list[Lease] = []
        self._revision = 0
        self._steps: dict[Callable[[], None], int] = {
            self.acquire: 10,
            self.release: 6,
            self.wait_on: 4,
            self.heartbeat: 4,
            self.see_empty: 4,
            self.let_time_pass: 4,
            self.observe: 3,
            self.report: 3,
            self.reap: 2,
            self.cancel: 1,
            self.revoke: 1,
            self.mark_a_node: 1,
            self.declare_again: 1,
            self.take_over: 1,
            self.session: 1,
        }
        self.world.run(self.world.pool.open())
        self.world.elect()
        self.world.declare(fleet())
        self.world.observe_all()
        self.world.check()

    def take(self, steps: int) -> None:
        """So many steps. After each the fold of the log is the live state."""
        for _ in range(steps):
            self._chance.choices(list(self._steps), weights=list(self._steps.values()))[0]()
            self.world.check()

    def close(self) -> None:
        """Leave nothing on the server."""
        self.world.close()

    def acquire(self) -> None:
        pick = self._chance
        asked = request(
            pick.randrange(1000),
            pick.choice(LANES),
            priority=pick.choice(("high", "normal", "normal", "low")),
            wait_ms=pick.choice((0, 5_000, 120_000, 120_000)),
            environment=pick.choice(("env-a", "env-a", "env-b")),
            avoid=pick.choice(((), (), (), ("box-c",), ("box-e", "box-x"))),
        )
        lease_id = f"{len(self.world.events):016x}"
        found = self.world.run(self.world.backend.acquire(asked, lease_id=lease_id, call_id="c"))
        if isinstance(found, Granted):
            self._grants.append(found.lease)

    def wait_on(self) -> None:
        """A waiter asks again."""
        waiters = list(self.world.folded.queue.waiters.values())
        if not waiters:
            return
        document = self._chance.choice(waiters).document
        asked = request(
            int(str(document["request_id"])[1:]),
            str(document["lane"]),
            priority=str(document["class"]),
            wait_ms=120_000,
            environment=str(document["environment"]),
        )
        lease_id = f"{len(self.world.events):016x}"
        found = self.world.run(self.world.backend.acquire(asked, lease_id=lease_id, call_id="c"))
        if isinstance(found, Granted):
            self._grants.append(found.lease)

    def _some(self) -> list[Lease]:
        return self._grants[-8:]

    def release(self) -> None:
        if self._some():
            outcome = self._chance.choice(("completed", "completed", "cancelled", "failed"))
            call = self._chance.choice(("one", "one", "one", "two"))
            lease = self._chance.choice(self._some())
            self.world.run(self.world.backend.release(lease, outcome, call_id=call))  # type: ignore[arg-type]

    def heartbeat(self) -> None:
        if self._some():
            self.world.run(self.world.backend.heartbeat("holder-a", self._some()))

    def report(self) -> None:
        if self._some():
            lease = self._chance.choice(self._some())
            kind = self._chance.choice(("loading", "loaded", "unloaded"))
            self.world.run(
                self.world.backend.report(lease, kind, lease.key, ms=5, outcome="ok")  # type: ignore[arg-type]
            )

    def revoke(self) -> None:
        if self._some():
            self.world.call(
                "revoke",
                {
                    "by": "op",
                    "why": "stuck",
                    "lease_id": self._chance.choice(self._some()).lease_id,
                    "force": self._chance.choice(("", "1")),
                    "heartbeat_ms": LIMITS.heartbeat_ms,
                },
            )

    def cancel(self) -> None:
        waiters = list(self.world.folded.queue.waiters.values())
        number = self._chance.randrange(1000)
        if waiters:
            number = int(str(self._chance.choice(waiters).document["request_id"])[1:])
        self.world.run(self.world.backend.cancel(request(number, LANES[0])))

    def let_time_pass(self) -> None:
        ms = self._chance.choice((1, 1, 1_000, 1_000, 3_000, 10_001, 16_000))
        self.world.clock.set(self.world.clock.now_ms + ms)

    def reap(self) -> None:
        self.world.call("reap", ORDER)

    def see_empty(self) -> None:
        for _ in range(2):
            self.world.observe_all()
            self.world.clock.set(self.world.clock.now_ms + 1)

    def observe(self) -> None:
        pick = self._chance
        models = [
            resident(key_of(name), SIZES[name], expires_at_ms=pick.choice((1_000_000, 1_005_000)))
            for name in pick.sample(sorted(SIZES), pick.randrange(3))
        ]
        if pick.random() < 0.3:
            models.append(resident("other/model:x", 5, own=False))
        node = pick.choice(self.world.fleet.nodes).node_id
        good, unaccounted = pick.random() < 0.8, pick.random() < 0.1
        self.world.observe(node, tuple(models), good=good, unaccounted=unaccounted)

    def mark_a_node(self) -> None:
        box, by = self._chance.choice(BOXES), {"by": "op"}
        until_ms = self.world.clock.now_ms + 5_000
        match self._chance.randrange(5):
            case 0:
                self.world.call(
                    "cordon", {"node_id": box, "why": "work", "until_ms": until_ms, **by}
                )
            case 1:
                self.world.call("uncordon", {"node_id": box, **by})
            case 2:
                self.world.call("trip", {"node_id": box, "why": "resets", **by})
            case 3:
                self.world.call("forget", {"node_id": box, **by})
            case _:
                self.world.call("acknowledge", by, tuple(one.lease_id for one in self._some()))

    def declare_again(self) -> None:
        self._revision += 1
        boxes = self._chance.choice((None, None, (("box-e", 104, 3),), (("box-c", 60, 1),)))
        self.world.declare(fleet(self._revision, boxes=boxes))
        self.world.observe_all()

    def take_over(self) -> None:
        self.world.run(self.world.pool.resign("owner", self.world.fence))
        self.world.elect()

    def session(self) -> None:
        dead = self._chance.random() < 0.2
        self.world.call(
            "session",
            {
                "holder": "holder-b" if dead else "holder-a",
                "environment": "env-a",
                "host": "here",
                "boot_id": "b",
                "pid": 1,
                "pid_start": 1,
            },
            ("holder-a",) if dead else (),
        )


def placed_histories(url: str, seeds: range, steps: int) -> list[list[Event]]:
    """The events of one walk a seed."""
    found = []
    for seed in seeds:
        walk = Walk(url, seed)
        try:
            walk.take(steps)
            found.append(list(walk.world.events))
        finally:
            walk.close()
    return found
