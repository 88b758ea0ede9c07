"""Random histories of the placement scripts, replayed: the past is what it was when it was live.

After the scripts ran in any order: every state that was recorded live is had again from the log,
the log of a working pool has no problem, and a file gives what the server gives.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from aibs.projections.leaks import Leaks
from aibs.replay.answers import to_json
from aibs.replay.as_of import as_of_document
from aibs.replay.diff import diff
from aibs.replay.entries import order
from aibs.replay.explain import explain
from aibs.replay.export import export
from aibs.replay.points import Bound
from aibs.replay.source import FileSource, LiveSource
from aibs.replay.states import Past, fold_to
from aibs.replay.verify import Verifier
from aibs.reports.moment import Moment
from aibs.reports.status import status_document
from aibs.settings import load
from tests.placement_scenarios import SetClock
from tests.property.placement_world import LIMITS, request
from tests.property.test_placement import LANES, Placement

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.eventstore.placement_state import LiveParts
    from aibs.replay.source import Source
    from aibs.reports.status import NodeReport, StatusDocument

EVERY = 4
STATES_OF_A_DECISION = ("cordoned", "tripped", "unhealthy", "unaccounted", "undeclared")
"""What the log tells at once; staleness it tells later, and loading not at all."""

ROOM = {"leased_bytes", "free_bytes", "slots_used", "slots_draining"}


@dataclass(frozen=True)
class Recorded:
    """A state as it was live."""

    last_id: str
    now_ms: int
    status: StatusDocument
    drains: frozenset[str]
    all_drains: frozenset[str]
    of_another_fleet: frozenset[str]
    """Nodes whose stamp is not of the fleet that is declared."""


class Replayed(Placement):
    """The placement machine, watched."""

    compared: ClassVar[int] = 0
    drained: ClassVar[int] = 0
    """How many of them were read on from a state in which slots drained."""

    @invariant()
    def a_state_is_recorded(self) -> None:
        if not hasattr(self, "world"):
            return
        self.steps = getattr(self, "steps", 0) + 1
        self.recorded: list[Recorded] = getattr(self, "recorded", [])
        if self.steps % EVERY:
            return
        self.world.check()
        now_ms = self.world.clock.now_ms
        live = replace(self.world.run(self.world.placement.read_all()), now_ms=now_ms)
        moment = Moment(live, self.world.folded, Leaks(since_ms=now_ms), now_ms)
        status = status_document(moment, self.configured())
        drains = frozenset(one.lease_id for one in live.drains if not _over(one, live))
        assert live.pool is not None
        self.recorded.append(
            Recorded(
                live.pool.last_id,
                now_ms,
                status,
                drains,
                frozenset(one.lease_id for one in live.drains),
                frozenset(
                    node_id
                    for node_id, stamp in live.stamps.items()
                    if live.fleet is not None and stamp.fingerprint != live.fleet.fingerprint
                ),
            )
        )

    @rule(number=st.integers(100, 999))
    def holders_are_gone(self, number: int) -> None:
        """One more lease where there is room; every lease comes to its deadline, and drains."""
        self.both_boxes_are_seen_empty_again()
        self.ask(request(number, LANES[0]), f"{len(self.world.events):012x}{number:04x}")
        living = self.world.run(self.world.placement.deadlines())
        self.later(max([0, *(at_ms - self.world.clock.now_ms for at_ms in living.values())]))
        self.reap()
        # The next state is recorded.
        self.steps += EVERY - 1 - self.steps % EVERY

    def configured(self) -> Any:
        return load(
            {
                "AIBS_MODEL_CLUSTER_NAMESPACE": self.world.namespace,
                "AIBS_MODEL_CLUSTER_MAX_RESIDENCY_STALENESS_MS": str(LIMITS.staleness_ms),
                "AIBS_MODEL_CLUSTER_HEARTBEAT_INTERVAL_SECONDS": "3",
                "AIBS_MODEL_CLUSTER_ACTIVE_LEASE_TTL_SECONDS": "15",
            },
            None,
        )

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.check()
            self.replay()
        finally:
            super().teardown()

    def replay(self) -> None:
        verifier = Verifier()
        for event in self.world.events:
            verifier.feed(event)
        assert verifier.all_problems() == []
        pool = self.world.run(self.world.live.pool())
        live = LiveSource(self.world.client, self.configured(), pool.pool_id)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "log.ndjson.zst"
            self.world.run(export(live, path))
            file = FileSource(path)
            again = Path(directory) / "again.ndjson.zst"
            asyncio.run(export(file, again))
            assert path.read_bytes() == again.read_bytes()
            self.same_answers(live, file)
            self.same_states(file)
            for cut in self.cuts():
                path = Path(directory) / f"from-{cut}.ndjson"
                self.world.run(export(live, path, since=Bound(id=cut)))
                self.same_states(FileSource(path), cut)

    def cuts(self) -> list[str]:
        """Events to begin with: some at random, and some before which slots drained."""
        ids = [event.id for event in self.world.events]
        chance = random.Random(len(ids))
        drained = {one.last_id for one in getattr(self, "recorded", []) if one.all_drains}
        some = [after for before, after in pairwise(ids) if before in drained]
        return sorted({*chance.sample(ids, min(2, len(ids))), *some[:1], *some[-2:]})

    def same_states(self, file: FileSource, since: str = "0-0") -> None:
        """Every state that was recorded live, out of a file that begins there."""
        ids = {event.id for event in self.world.events if order(event.id) >= order(since)}
        for one in getattr(self, "recorded", []):
            if one.last_id in ids:
                type(self).drained += same_as_live(one, file)
                type(self).compared += 1

    def same_answers(self, live: LiveSource, file: FileSource) -> None:
        """The server and the file give the same documents."""
        ids = [event.id for event in self.world.events]
        asked = sorted(
            event.data["lease"]["lease_id"]
            for event in self.world.events
            if event.type == "LeaseAcquired"
        )[:2]
        questions: list[Callable[[Source], Any]] = [
            lambda source: diff(source, Bound(id=ids[1]), Bound(id=ids[-1]), SetClock()),
            *(partial(_explained, lease_id) for lease_id in asked),
        ]
        for ask in questions:
            assert to_json(self.world.run(ask(live))) == to_json(asyncio.run(ask(file)))


async def _explained(lease_id: str, source: Source) -> Any:
    return await explain(source, lease_id, SetClock())


def _over(drain: Any, live: LiveParts) -> bool:
    """Over, and not yet looked at: slots come back when a decision looks at their node. Of a node
    that is gone, time alone tells.
    """
    stamp = live.stamps.get(drain.node_id)
    return live.now_ms >= drain.until_ms and (
        stamp is None or stamp.observed_at_ms > drain.ended_at_ms
    )


def same_as_live(recorded: Recorded, source: FileSource) -> bool:
    """The state after that event, at that time, against what was live. Whether it was read on from
    a state in which slots drained.
    """
    base = asyncio.run(source.base(None))
    folded, late = asyncio.run(fold_to(source, Bound(id=recorded.last_id)))
    assert not late
    past = Past(folded, recorded.now_ms, late)
    live = recorded.status
    found = as_of_document(past, source.timing, source.namespace, generated_ms=recorded.now_ms)
    assert found.last_id == recorded.last_id
    assert found.notes == []
    assert found.leases == live.leases
    assert found.other_leases == live.other_leases
    assert found.queue == live.queue
    assert (found.pool.pool_id, found.pool.namespace) == (live.pool.pool_id, live.pool.namespace)
    assert (found.pool.state == "open") == (live.pool.state == "open")
    assert (found.owner is None) == (live.owner is None)
    if found.owner is not None and live.owner is not None:
        assert found.owner.fence == live.owner.fence
        assert found.owner.elected_at == live.owner.elected_at
    assert (found.fleet is None) == (live.fleet is None)
    if found.fleet is not None and live.fleet is not None:
        assert found.fleet.fingerprint == live.fleet.fingerprint
    drains = {one.lease_id for one in folded.coordination.drains.draining(recorded.now_ms)}
    assert recorded.drains <= drains, "a slot was draining, and the log shows it free"
    for mine, theirs in zip(found.nodes, live.nodes, strict=True):
        assert _shown(mine) == _shown(theirs)
        if drains == recorded.all_drains:
            assert _room(mine) == _room(theirs)
        if theirs.state in STATES_OF_A_DECISION:
            assert mine.state == theirs.state
        elif theirs.state == "ready":
            assert mine.state == "ready"
        elif theirs.node_id in recorded.of_another_fleet and theirs.state == "stale":
            assert mine.state == "stale", "it was not seen since the fleet was declared"
    return base is not None and bool(base.drains.held)


def _shown(node: NodeReport) -> dict[str, Any]:
    """What does not depend on polls that the log leaves out."""
    return node.model_dump(exclude={"state", "detail", "stamp", *ROOM})


def _room(node: NodeReport) -> dict[str, Any]:
    """What slots that drain take a part in."""
    return node.model_dump(include=ROOM)


def _run(url: str, examples: int, steps: int) -> None:
    class Machine(Replayed):
        pass

    Machine.url = url
    Machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    by_hand(Machine())
    Machine.TestCase("runTest").debug()
    assert Machine.compared > examples, "hardly a state was compared"
    assert Machine.drained > examples, f"{Machine.drained} states were read on from one that drains"


def by_hand(machine: Replayed) -> None:
    """What chance may leave out: slots that drain, and states that are read on from there."""
    machine.begin()
    for number in range(100, 104):
        machine.a_state_is_recorded()
        machine.holders_are_gone(number)
        for _ in range(EVERY):
            machine.a_state_is_recorded()
            machine.later(1_000)
            machine.session(dead=False)
    machine.teardown()


def test_the_past_is_what_it_was_when_it_was_live(valkey_url: str) -> None:
    _run(valkey_url, 8, 40)
