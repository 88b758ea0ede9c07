"""The placement scripts on a real server, in any order, against what must always hold.

After every step: the log is whole, its fold equals the live state, the indexes equal a scan, every
grant's evidence adds up from the events before it, and no request has two leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aibs.placement.values import Denied, Granted, Lease, Queued
from tests.property.grant_audit import GrantAudit
from tests.property.placement_oracle import Oracle, told
from tests.property.placement_world import LIMITS, ORDER, World, fleet, key_of, request, resident

if TYPE_CHECKING:
    from aibs.fleet import Fleet
    from aibs.placement.values import Request

LANES = (
    f"m|{key_of('small:7b')}",
    f"m|{key_of('medium:30b')}",
    f"m|{key_of('large:70b')}",
    f"m|{key_of('huge:400b')}",
    f"m|{key_of('nobody:1b')}",
    f"mr|{key_of('medium:30b')}|deep",
    "r|answer",
    "r|raw",
)
BOXES = ("box-c", "box-e")
FLEETS = {
    "smaller": (("box-c", 60, 1), ("box-e", 104, 3)),
    "larger": (("box-c", 110, 4), ("box-e", 104, 3)),
    "one": (("box-e", 104, 3),),
}
lanes = st.sampled_from((*LANES[:3], *LANES[:3], *LANES))
numbers = st.integers(0, 7)
boxes = st.sampled_from(BOXES)
avoided = st.sampled_from(((), (), (), (), ("box-c",), ("box-e",), BOXES, ("box-x",)))
priorities = st.sampled_from(("high", "normal", "normal", "low"))


class Placement(RuleBasedStateMachine):
    """Holders that ask, wait, renew, give back and disappear; an owner that polls."""

    url: ClassVar[str] = ""

    @initialize()
    def begin(self) -> None:
        self.world = World(self.url)
        self.oracle = Oracle(LIMITS)
        self.audit = GrantAudit()
        self.audited = 0
        self.grants: list[Granted] = []
        self.revision = 0
        self.last: dict[str, Any] = {}
        self.world.run(self.world.pool.open())
        self.world.elect()
        self.declare(fleet())
        self.see_all_empty()

    def declare(self, declared: Fleet) -> None:
        self.world.declare(declared)
        self.oracle.declare(declared)

    def see_all_empty(self) -> None:
        for node in self.world.fleet.nodes:
            self.see(node.node_id, ())

    def see(
        self,
        box: str,
        models: tuple[dict[str, Any], ...],
        *,
        good: bool = True,
        unaccounted: bool = False,
    ) -> None:
        """A poll, and what the model is told of it: the stamp, and whether the log has it."""
        self.world.check()
        before = len(self.world.events)
        word = self.world.observe(box, models, good=good, unaccounted=unaccounted)
        assert word == "ok"
        self.world.check()
        stamp = self.world.run(self.world.live.stamps())[box]
        new = [event.type for event in self.world.events[before:]]
        self.oracle.observe(
            box,
            models,
            good=good,
            unaccounted=unaccounted,
            healthy=stamp.healthy,
            loading=stamp.loading,
            logged="ResidencyObserved" in new,
            begun_ms=self.world.clock.now_ms - 5,
            now=self.world.clock.now_ms,
        )

    def ask(self, asked: Request, lease_id: str) -> Any:
        """The same of both; and never a node that the request avoids, or avoided when it queued."""
        waiter = self.world.folded.queue.waiters.get(asked.request_key)
        avoid = asked.avoid if waiter is None else waiter.document["avoid"]
        found = self.world.run(self.world.backend.acquire(asked, lease_id=lease_id, call_id="c"))
        wanted = self.oracle.acquire(asked, lease_id, self.world.clock.now_ms)
        assert told(found) == told(wanted)
        if isinstance(found, Granted) and found.lease.lease_id == lease_id:
            assert found.lease.node_id not in avoid
        return found

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()

    def later(self, ms: int) -> None:
        self.world.clock.set(self.world.clock.now_ms + ms)

    # --- requests

    @rule(
        number=numbers,
        lane=lanes,
        priority=priorities,
        wait_ms=st.sampled_from((0, 0, 5_000, 120_000, 120_000, 120_000)),
        twice=st.booleans(),
        environment=st.sampled_from(("env-a", "env-a", "env-b")),
        avoid=avoided,
    )
    def acquire(
        self,
        number: int,
        lane: str,
        priority: str,
        wait_ms: int,
        twice: bool,
        environment: str,
        avoid: tuple[str, ...],
    ) -> None:
        asked = request(
            number,
            lane,
            priority=priority,
            wait_ms=wait_ms,
            environment=environment,
            hashed=f"{lane}-{priority}-{wait_ms}".replace("|", "-"),
            avoid=avoid,
        )
        answers = []
        for attempt in range(1 + twice):
            lease_id = f"{len(self.world.events):012x}{number:02x}{attempt:02x}"
            answers.append(self.ask(asked, lease_id))
        found = answers[0]
        if twice:
            self._same_again(found, answers[1])
        if isinstance(found, Granted):
            self.grants.append(found)
        elif isinstance(found, Denied):
            assert found.reason
            self._denied_rightly(lane, found)

    def _same_again(self, first: Any, second: Any) -> None:
        if isinstance(first, Granted):
            assert isinstance(second, Granted)
            assert second.lease.lease_id == first.lease.lease_id
        elif isinstance(first, Queued):
            assert isinstance(second, Queued | Granted)
        elif first.reason in ("request_conflict", "request_ended"):
            assert second.reason == first.reason

    def _denied_rightly(self, lane: str, found: Denied) -> None:
        if lane.startswith("m|") and "nobody" in lane:
            assert found.reason in ("unknown_model", "request_ended", "request_conflict")
        if lane == "r|raw":
            assert found.reason in ("unmeasured_weight", "request_ended", "request_conflict")
        if "huge" in lane:
            assert found.reason in ("never_fits", "request_ended", "request_conflict")

    @rule(which=st.integers(0, 7), back=st.booleans(), avoid=avoided)
    def a_waiter_asks_again(self, which: int, back: bool, avoid: tuple[str, ...]) -> None:
        waiters = list(self.world.folded.queue.waiters.values())
        if not waiters:
            return
        document = waiters[which % len(waiters)].document
        asked = request(
            int(str(document["request_id"])[1:]),
            str(document["lane"]),
            priority=str(document["class"]),
            wait_ms=120_000,
            environment=str(document["environment"]),
            hashed=str(document["request_hash"]),
            avoid=avoid,
        )
        if back:
            places = self.world.run(self.world.backend.refresh("holder-a", (asked.request_key,)))
            assert places == self.oracle.refresh((asked.request_key,), self.world.clock.now_ms)
            return
        found = self.ask(asked, f"{len(self.world.events):016x}")
        if isinstance(found, Granted):
            self.grants.append(found)

    @rule(number=numbers, lane=lanes)
    def cancel(self, number: int, lane: str) -> None:
        asked = request(number, lane, hashed="any")
        was = self.world.run(self.world.backend.cancel(asked))
        now = self.world.clock.now_ms
        assert was == self.oracle.model.cancel(asked.request_key, asked.request_hash, now)
        found = self.ask(asked, "f" * 16)
        assert isinstance(found, Denied), "a cancelled request took a lease"

    # --- leases

    def _some(self, which: int) -> Lease | None:
        return self.grants[which % len(self.grants)].lease if self.grants else None

    @rule(
        which=st.integers(0, 20),
        outcome=st.sampled_from(("completed", "completed", "cancelled", "failed")),
        call=st.sampled_from(("one", "one", "two")),
        twice=st.booleans(),
    )
    def release(self, which: int, outcome: str, call: str, twice: bool) -> None:
        lease = self._some(which)
        if lease is None:
            return
        words = []
        for _ in range(1 + twice):
            found = self.world.run(
                self.world.backend.release(lease, outcome, call_id=call)  # type: ignore[arg-type]
            )
            now = self.world.clock.now_ms
            wanted = self.oracle.release(lease, outcome, call, now)  # type: ignore[arg-type]
            assert found.word == wanted
            words.append(found.word)
        if twice and words[0] == "ok":
            assert words[1] == "duplicate"
        elif twice:
            assert words[1] in (words[0], "double", "duplicate")

    @rule(which=st.lists(st.integers(0, 20), max_size=4))
    def heartbeat(self, which: list[int]) -> None:
        chosen = {lease.lease_id: lease for lease in map(self._some, which) if lease}
        if not chosen:
            return
        now = self.world.clock.now_ms
        living = self.world.folded.leases.living
        beats = self.world.run(self.world.backend.heartbeat("holder-a", list(chosen.values())))
        assert beats == self.oracle.heartbeat("holder-a", list(chosen.values()), now)
        for beat in beats:
            held = living.get(beat.lease_id)
            if held is None:
                assert beat.word == "unknown"
            elif held.revocation is not None:
                assert beat.word == "revoked"
            else:
                assert beat.word == ("ok" if held.deadline_ms > now else "expired")

    @rule(which=st.integers(0, 20), force=st.booleans())
    def revoke(self, which: int, force: bool) -> None:
        lease = self._some(which)
        if lease is not None:
            wanted = self.oracle.model.revoke(
                lease.lease_id,
                "stuck",
                force=force,
                heartbeat_ms=LIMITS.heartbeat_ms,
                now=self.world.clock.now_ms,
            )
            found = self.world.call(
                "revoke",
                {
                    "by": "op",
                    "why": "stuck",
                    "lease_id": lease.lease_id,
                    "force": "1" if force else "",
                    "heartbeat_ms": LIMITS.heartbeat_ms,
                },
            )
            assert found.word == wanted

    @rule(which=st.integers(0, 20), kind=st.sampled_from(("loading", "loaded", "unloaded")))
    def report(self, which: int, kind: str) -> None:
        lease = self._some(which)
        if lease is not None:
            self.world.run(
                self.world.backend.report(
                    lease,
                    kind,  # type: ignore[arg-type]
                    lease.key,
                    ms=5,
                    outcome="ok",
                )
            )
            self.oracle.model.report(
                lease.lease_id, kind, lease.key, ok=True, now=self.world.clock.now_ms
            )

    # --- time, nodes, operators

    @rule(ms=st.sampled_from((1, 1_000, 3_000, 10_000, 10_001, 15_000, 16_000, 61_000)))
    def time_passes(self, ms: int) -> None:
        self.later(ms)

    @rule()
    def reap(self) -> None:
        self.world.call("reap", ORDER)
        self.oracle.model.reap(self.world.clock.now_ms)

    @rule(
        box=boxes,
        held=st.lists(st.sampled_from(("small:7b", "medium:30b", "large:70b")), unique=True),
        foreign=st.sampled_from((0, 0, 0, 5, 60)),
        grown=st.sampled_from((0, 0, 3)),
        moved=st.sampled_from((0, 0, 5_000)),
        good=st.sampled_from((True, True, True, True, False)),
        unaccounted=st.sampled_from((False,) * 9 + (True,)),
    )
    def observe(
        self,
        box: str,
        held: list[str],
        foreign: int,
        grown: int,
        moved: int,
        good: bool,
        unaccounted: bool,
    ) -> None:
        if self.world.fleet.node(box) is None:
            return
        sizes = {"small:7b": 10, "medium:30b": 30, "large:70b": 80}
        models = [
            resident(key_of(name), sizes[name] + grown, expires_at_ms=1_000_000 + moved)
            for name in held
        ]
        if foreign:
            models.append(resident("other/model:x", foreign, own=False))
        self.see(box, tuple(models), good=good, unaccounted=unaccounted)

    @rule()
    def both_boxes_are_seen_empty_again(self) -> None:
        for _ in range(2):
            self.see_all_empty()
            self.later(1)

    @rule(box=boxes, closed=st.booleans(), until=st.sampled_from((0, 0, 30_000)))
    def cordon(self, box: str, closed: bool, until: int) -> None:
        if closed:
            at = self.world.clock.now_ms + until if until else 0
            self.oracle.model.cordon(box, until_ms=at, now=self.world.clock.now_ms)
            self.world.call("cordon", {"node_id": box, "why": "work", "by": "op", "until_ms": at})
        else:
            self.world.call("uncordon", {"node_id": box, "by": "op"})
            self.oracle.model.uncordon(box, self.world.clock.now_ms)

    @rule(box=boxes)
    def trip(self, box: str) -> None:
        self.world.call("trip", {"node_id": box, "why": "resets", "by": "gateway"})
        self.oracle.model.trip(box, self.world.clock.now_ms)

    @rule(box=boxes)
    def forget(self, box: str) -> None:
        self.world.call("forget", {"node_id": box, "by": "op"})
        self.oracle.model.forget_weights(box, self.world.clock.now_ms)

    @rule(name=st.sampled_from(sorted(FLEETS)))
    def the_fleet_changes(self, name: str) -> None:
        self.revision += 1
        self.declare(fleet(self.revision, boxes=FLEETS[name]))

    @rule()
    def the_fleet_is_whole_again(self) -> None:
        self.revision += 1
        self.declare(fleet(self.revision))
        self.see_all_empty()

    @rule()
    def another_owner_takes_over(self) -> None:
        self.world.run(self.world.pool.resign("owner", self.world.fence))
        self.world.elect()

    @rule(dead=st.booleans())
    def session(self, dead: bool) -> None:
        holder = "holder-b" if dead else "holder-a"
        known = "holder-a" in self.world.folded.marks.sessions
        self.world.call(
            "session",
            {
                "holder": holder,
                "environment": "env-a",
                "host": "here",
                "boot_id": "b",
                "pid": 1,
                "pid_start": 1,
            },
            ("holder-a",) if dead else (),
        )
        if dead and known:
            self.oracle.model.end_session("holder-a", self.world.clock.now_ms)

    # --- what must always hold

    @invariant()
    def the_log_explains_the_state_and_every_grant_adds_up(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.check()
        for event in self.world.events[self.audited :]:
            self.audit.feed(event)
        self.audited = len(self.world.events)
        holders = [one.document.request_key for one in self.world.folded.leases.living.values()]
        assert len(holders) == len(set(holders)), "a request has two leases"
        model = self.oracle.model
        fresh = {one.request_key for one in model.waiters.values() if one.tried == model.frees}
        assert self.world.run(self.world.refused_since_room_came()) == fresh


def _run(url: str, examples: int, steps: int) -> None:
    class Machine(Placement):
        pass

    Machine.url = url
    Machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    Machine.TestCase("runTest").debug()


def test_no_order_of_calls_overcommits_or_parts_the_log_from_the_state(valkey_url: str) -> None:
    _run(valkey_url, 12, 40)


@pytest.mark.soak
def test_thousands_of_steps_overcommit_nothing(valkey_url: str) -> None:
    _run(valkey_url, 300, 100)
