"""The election and observation scripts on a real server against the model, in any order.

After every step: the same answer as the model's, fences that only grow and never interleave, a log
without holes, and a fold of the log that equals the live state.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from redis import Redis

from aibs.codec import dumps
from aibs.errors import Fenced, FleetMismatch
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log, after
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.eventstore.replies import Elected, Held
from aibs.eventstore.state import LiveState
from aibs.projections.coordination import Coordination, fold
from tests.monitor_process import assert_safe
from tests.property.pool_model import PoolModel
from tests.server_clock import ServerClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aibs.eventstore.events import Event

OWNERS = ("alice", "bob")
TTL_MS = 8_000
EPOCH_MS = 1_800_000_000_000
FLEETS = {
    "one": {"box-c": "http://c:1"},
    "two": {"box-c": "http://c:1", "box-e": "http://e:1"},
    "moved": {"box-c": "http://c:2", "box-e": "http://e:1"},
}
LIMITS = ObserveLimits(2, 20_000, 30_000, 100, 60_000)

# Mostly the one who holds, or last held, the term: what a stranger does is refused at once.
actors = st.sampled_from(("holder", "holder", "holder", *OWNERS))
# Mostly the newest term that it knows of; sometimes one before, as after a pause.
lags = st.sampled_from((0, 0, 0, 0, 1))
nodes = st.sampled_from(("box-c", "box-c", "box-c", "box-e", "box-x"))


def _model_json(size: int) -> bytes:
    return dumps(
        [
            {
                "name": "llama3:8b",
                "key": "registry.ollama.ai/library/llama3:8b",
                "digest": None,
                "size_bytes": size,
                "size_vram_bytes": size,
                "context_length": 4096,
                "placement": "gpu",
                "ownership": "own",
                "worker_ids": ["answer"],
                "keeps_forever": False,
                "expires_at_ms": None,
                "charge_bytes": size,
            }
        ]
    )


def _document(urls: dict[str, str]) -> bytes:
    listed = [
        {
            "node_id": node_id,
            "base_url": url,
            "vram_budget_bytes": 90 * 10**9,
            "max_parallel_requests": 1,
            "memory": "unified",
        }
        for node_id, url in urls.items()
    ]
    return dumps({"nodes": listed, "workers": [], "affinity": {}})


class Scripts(RuleBasedStateMachine):
    """Three processes that stand for election, act on what they believe, and repeat calls."""

    url: ClassVar[str] = ""

    @initialize()
    def begin(self) -> None:
        self.namespace = f"test-{secrets.token_hex(6)}"
        self.loop = asyncio.new_event_loop()
        self.plain = Redis.from_url(self.url)
        self.clock = ServerClock(self.plain, self.namespace, EPOCH_MS)
        self.true_ms = 0
        client = commands(self.run(open_client(self.url, data_dir=Path(), purpose="write")))
        self.client = client
        keys = Keys(self.namespace)
        self.pools = {
            owner: CoordinationPool(
                client, keys, owner, recovery_ms=1000, overrides=self.clock.overrides
            )
            for owner in OWNERS
        }
        self.log, self.live = Log(client, keys), LiveState(client, keys)
        self.model = PoolModel()
        self.attempts = dict.fromkeys(OWNERS, "")
        self.terms: dict[str, list[int]] = {owner: [0, 0] for owner in OWNERS}
        self.seqs = dict.fromkeys(("box-c", "box-e", "box-x"), 0)
        self.events: list[Event] = []
        self.folded = Coordination()
        self.run(self.pools["alice"].open())

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        self.run(self.client.aclose())
        self.loop.close()
        with contextlib.closing(self.plain) as plain:
            for key in plain.scan_iter(match=Keys(self.namespace).pattern, count=1000):
                plain.unlink(key)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(call)

    def acting(self, actor: str, lag: int) -> tuple[str, int]:
        """A process and the fence that it believes in."""
        owner = actor
        if actor == "holder":
            owner = self.model.owner or self.model.last_owner or OWNERS[0]
        return owner, self.terms[owner][-1 - lag]

    def answer(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The word of a call's outcome, or its result."""
        try:
            return self.run(call())
        except Fenced:
            return "fenced"
        except FleetMismatch:
            return "fleet_mismatch"

    # --- the world

    @rule(ms=st.sampled_from((1, 500, 500, 2_600, 2_600, 7_999, 8_000, 9_000, 61_000)))
    def time_passes(self, ms: int) -> None:
        self.true_ms += ms
        self.clock.set(self.clock.now_ms + ms)

    @rule(ms=st.sampled_from((-100_000, -3_000, -1_500, 1_500, 3_000, 100_000)))
    def the_servers_clock_steps(self, ms: int) -> None:
        self.clock.set(self.clock.now_ms + ms)

    # --- the processes

    @rule(actor=actors, again=st.booleans())
    def elect(self, actor: str, again: bool) -> None:
        owner, _ = self.acting(actor, 0)
        if not again or not self.attempts[owner]:
            self.attempts[owner] = secrets.token_hex(4)
        attempt = self.attempts[owner]
        for _ in range(2):  # the second time as after a lost reply
            wanted = self.model.elect(attempt, owner, TTL_MS, self.true_ms, self.clock.now_ms)
            found = self.answer(
                lambda: self.pools[owner].elect(attempt, owner, ttl_ms=TTL_MS, mono_ms=self.true_ms)
            )
            word = (
                "ok"
                if isinstance(found, Elected)
                else "held"
                if isinstance(found, Held)
                else "ended"
            )
            assert (word, found.fence) == wanted
        if word == "ok":
            self.terms[owner].append(found.fence)

    @rule(actor=actors, lag=lags, confirm=st.booleans())
    def renew(self, actor: str, lag: int, confirm: bool) -> None:
        owner, fence = self.acting(actor, lag)
        confirmed = 0
        for _ in range(2):
            now = self.clock.now_ms
            wanted = self.model.renew(owner, fence, TTL_MS, self.true_ms, confirmed, now)
            found = self.answer(
                lambda fence=fence, confirmed=confirmed: self.pools[owner].renew(  # type: ignore[misc]
                    owner,
                    fence,
                    ttl_ms=TTL_MS,
                    mono_ms=self.true_ms,
                    confirmed_step_ms=confirmed,
                )
            )
            step = getattr(found, "step_ms", None)
            assert ("clock" if step is not None else "fenced" if found == "fenced" else "ok") == (
                wanted
            )
            if step is not None and confirm:
                confirmed = step

    @rule(ms=st.sampled_from((-100_000, -3_000, 3_000, 100_000)))
    def the_holder_notices_a_step_at_its_renewal(self, ms: int) -> None:
        self.the_servers_clock_steps(ms)
        self.renew("holder", 0, True)

    @rule(actor=actors, lag=lags)
    def resign(self, actor: str, lag: int) -> None:
        owner, fence = self.acting(actor, lag)
        for _ in range(2):
            wanted = self.model.resign(owner, fence, self.clock.now_ms)
            found = self.answer(lambda: self.pools[owner].resign(owner, fence))
            assert ("fenced" if found == "fenced" else "ok") == wanted

    @rule(
        actor=actors,
        lag=lags,
        fleet=st.sampled_from(sorted(FLEETS)),
        revision=st.integers(0, 4),
    )
    def declare(self, actor: str, lag: int, fleet: str, revision: int) -> None:
        owner, fence = self.acting(actor, lag)
        urls = FLEETS[fleet]
        for _ in range(2):
            wanted = self.model.declare(owner, fence, revision, fleet, urls, self.clock.now_ms)
            found = self.answer(
                lambda: self.pools[owner].declare(
                    owner,
                    fence,
                    revision=revision,
                    fingerprint=fleet,
                    document=_document(urls),
                    changes=b"[]",
                )
            )
            assert (found if isinstance(found, str) else found.word) == wanted

    @precondition(lambda self: self.model.revision is not None)
    @rule(
        actor=actors,
        lag=lags,
        node_id=nodes,
        good=st.booleans(),
        back=st.sampled_from((0, 0, 0, 0, 1, 2)),
        elapsed_ms=st.sampled_from((0, 0, 100, 100, 20_000, 20_001)),
        other=st.sampled_from(("", "", "", "", "", "", "fence", "fleet", "url")),
        size=st.sampled_from((7 * 10**9, 7 * 10**9 + 1, 9 * 10**9)),
        twice=st.booleans(),
    )
    def observe(
        self,
        actor: str,
        lag: int,
        node_id: str,
        good: bool,
        back: int,
        elapsed_ms: int,
        other: str,
        size: int,
        twice: bool,
    ) -> None:
        owner, fence = self.acting(actor, lag)
        self._observe(owner, fence, node_id, good, back, elapsed_ms, other, size, twice)

    @precondition(lambda self: self.model.revision is not None)
    @rule(results=st.lists(st.booleans(), min_size=2, max_size=5))
    def the_holder_polls_on(self, results: list[bool]) -> None:
        owner, fence = self.acting("holder", 0)
        for good in results:
            self._observe(owner, fence, "box-c", good, 0, 100, "", 7 * 10**9, False)

    def _observe(
        self,
        owner: str,
        fence: int,
        node_id: str,
        good: bool,
        back: int,
        elapsed_ms: int,
        other: str,
        size: int,
        twice: bool,
    ) -> None:
        model = self.model
        seq = max(1, self.seqs[node_id] + 1 - back)
        self.seqs[node_id] = max(seq, self.seqs[node_id])
        begun = max(0, fence - 1) if other == "fence" else fence
        fingerprint = "another" if other == "fleet" else model.fingerprint
        url = "http://elsewhere:1" if other == "url" else model.urls.get(node_id, "http://x:1")
        poll = PollRecord(
            node_id,
            begun,
            seq,
            url,
            elapsed_ms,
            good,
            "" if good else "timeout",
            3,
            False,
            _model_json(size) if good else b"[]",
            b'{"seen":true}' if good else b"",
        )
        for _ in range(1 + twice):
            wanted = model.observe(
                owner,
                fence,
                fingerprint,
                node_id,
                url,
                begun,
                seq,
                elapsed_ms,
                good,
                self.clock.now_ms,
            )
            found = self.answer(
                lambda: self.pools[owner].observe(owner, fence, fingerprint, [poll], LIMITS)
            )
            assert (found if isinstance(found, str) else found.words[0]) == wanted

    # --- what must always hold

    @invariant()
    def the_log_is_whole_its_fences_never_interleave_and_its_fold_is_the_live_state(self) -> None:
        if hasattr(self, "log"):
            self.run(self._catch_up())
            assert_safe(self.events)
            self.run(self._compare())

    async def _catch_up(self) -> None:
        new = [event async for event in self.log.read(after(self.folded.last_id))]
        self.events += new
        self.folded = fold(new, self.folded)
        assert self.folded.unread == 0
        assert self.folded.ownership.interleaved == 0

    async def _compare(self) -> None:
        pool, term, fleet = await self.live.pool(), await self.live.term(), await self.live.fleet()
        assert pool is not None
        assert (pool.seq, pool.last_id) == (self.folded.seq, self.folded.last_id)
        for name, value in self.folded.identity.live_part().items():
            assert getattr(pool, name) == value, name
        if term is not None:
            for name, value in self.folded.ownership.live_part().items():
                assert getattr(term, name) == value, name
        if fleet is not None:
            for name, value in self.folded.declared.live_part().items():
                assert getattr(fleet, name) == value, name
        assert await self.live.nodes() == self.folded.residency.live_part()
        stamps = await self.live.stamps()
        assert stamps.keys() == self.model.stamps.keys()
        for node_id, wanted in self.model.stamps.items():
            found = stamps[node_id]
            assert (found.observed_at_ms, found.seq, found.healthy) == (
                wanted.observed_at_ms,
                wanted.seq,
                wanted.healthy,
            )


def _run(url: str, examples: int, steps: int) -> None:
    class Machine(Scripts):
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


def test_scripts_decide_as_the_model_and_fold_to_the_live_state(valkey_url: str) -> None:
    _run(valkey_url, 50, 50)


@pytest.mark.soak
def test_scripts_decide_as_the_model_over_many_thousand_steps(valkey_url: str) -> None:
    _run(valkey_url, 400, 100)
