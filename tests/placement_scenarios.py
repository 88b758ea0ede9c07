"""What every back end does: one list of scenarios, run over each, with one clock that tests set.

A scenario asserts what it is about, and writes down all answers: two back ends must give the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from aibs.placement.memory import MemoryBackend
from aibs.placement.values import Denied, Granted, Lease, Queued, Session
from tests.property.placement_oracle import told
from tests.property.placement_world import (
    EPOCH_MS,
    GB,
    LIMITS,
    TTL_MS,
    World,
    fleet,
    key_of,
    request,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from aibs.placement import Backend
    from aibs.placement.values import Outcome, Request

    Scenario = Callable[["Book"], None]

SMALL = f"m|{key_of('small:7b')}"
LARGE = f"m|{key_of('large:70b')}"
SLOTS = 5
"""Of both boxes together."""

HINTS = ("warm", "unload")
"""What rests on a monitor's sight of the nodes, which memory has not."""


class Bench(Protocol):
    """A back end, its clock, and a loop for its calls."""

    backend: Backend

    def run(self, call: Coroutine[Any, Any, Any]) -> Any: ...
    def later(self, ms: int) -> None: ...
    def close(self) -> None: ...


class SetClock:
    """A process's clock that the test moves."""

    def __init__(self) -> None:
        self.now_ms = EPOCH_MS

    def boottime_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class MemoryBench:
    """One process's memory."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.loop = asyncio.new_event_loop()
        self.backend: Backend = MemoryBackend(fleet(), LIMITS, self.clock)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(call)

    def later(self, ms: int) -> None:
        self.clock.now_ms += ms

    def close(self) -> None:
        self.loop.close()


class ValkeyBench:
    """The scripts on a real server; every node is polled whenever time has passed."""

    def __init__(self, url: str) -> None:
        self.world = World(url)
        self.backend: Backend = self.world.backend
        self.world.run(self.world.pool.open())
        self.world.elect()
        self.world.declare(fleet())
        self.world.observe_all()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.world.run(call)

    def later(self, ms: int) -> None:
        self.world.clock.set(self.world.clock.now_ms + ms)
        self.world.observe_all()

    def close(self) -> None:
        try:
            self.world.check()
        finally:
            self.world.close()


class Book:
    """Asks a bench, and keeps what it answered."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.answers: list[Any] = []
        self.tokens: list[int] = []

    def ask(self, asked: Request, lease_id: str = "") -> Granted | Queued | Denied:
        """One acquire."""
        offered = lease_id or f"lease-{asked.environment}-{asked.request_id}"
        call = self.bench.backend.acquire(asked, lease_id=offered, call_id="call")
        answer: Granted | Queued | Denied = self.bench.run(call)
        kept = told(answer)
        for hint in HINTS:
            kept.pop(hint, None)
        self.answers.append(kept)
        if isinstance(answer, Granted):
            self.tokens.append(int(answer.lease.token))
        return answer

    def lease(self, asked: Request) -> Lease:
        """One that must be granted."""
        answer = self.ask(asked)
        assert isinstance(answer, Granted), answer
        return answer.lease

    def refused(self, asked: Request) -> Denied:
        """One that must be denied."""
        answer = self.ask(asked)
        assert isinstance(answer, Denied), answer
        return answer

    def waits(self, asked: Request) -> Queued:
        """One that must be queued."""
        answer = self.ask(asked)
        assert isinstance(answer, Queued), answer
        return answer

    def fill(self) -> list[Lease]:
        """Leases on every slot."""
        return [self.lease(request(100 + number, SMALL)) for number in range(SLOTS)]

    def beat(self, *leases: Lease, holder: str = "holder-a") -> list[str]:
        """One heartbeat: the words."""
        words = [one.word for one in self.bench.run(self.bench.backend.heartbeat(holder, leases))]
        self.answers.append(words)
        return words

    def release(
        self, lease: Lease, call_id: str = "one", outcome: Outcome = "completed"
    ) -> tuple[str, str | None]:
        """One release: the word, and what had ended the lease."""
        call = self.bench.backend.release(lease, outcome, call_id=call_id)
        answer = self.bench.run(call)
        self.answers.append((answer.word, answer.ended_by, answer.held_ms))
        return answer.word, answer.ended_by

    def cancel(self, asked: Request) -> str:
        """One cancel: what became of the request."""
        word: str = self.bench.run(self.bench.backend.cancel(asked))
        self.answers.append(word)
        return word

    def refresh(self, *asked: Request) -> list[tuple[str, int | None, str | None]]:
        """One refresh: word, place and how it ended, of each."""
        keys = [one.request_key for one in asked]
        places = self.bench.run(self.bench.backend.refresh("holder-a", keys))
        assert [place.request_key for place in places] == keys
        found = [(place.word, place.position, place.how) for place in places]
        self.answers.append(found)
        return found

    def later(self, ms: int) -> None:
        """Time passes, and the nodes are seen again."""
        self.bench.later(ms)


def a_grant_says_where_and_for_how_long(book: Book) -> None:
    answer = book.ask(request(1, SMALL))
    assert isinstance(answer, Granted)
    assert answer.lease.base_url == f"http://{answer.lease.node_id}:11434"
    assert (answer.lease.model, answer.lease.worker_id) == ("small:7b", "small")
    assert answer.remaining_ms == answer.lease.ttl_ms == TTL_MS
    assert answer.lease.lease_id == "lease-env-a-r1"


def tokens_grow_from_grant_to_grant(book: Book) -> None:
    for number in range(12):
        book.release(book.lease(request(number, SMALL)))
    assert book.tokens == sorted(set(book.tokens))


def the_same_request_again_is_told_its_first_grant(book: Book) -> None:
    first = book.lease(request(1, SMALL))
    again = book.ask(request(1, SMALL), lease_id="another")
    assert isinstance(again, Granted)
    assert (again.lease.lease_id, again.lease.token) == (first.lease_id, first.token)


def another_request_under_its_name_is_a_conflict_while_it_lives_and_after(book: Book) -> None:
    lease = book.lease(request(1, SMALL))
    assert book.refused(request(1, LARGE, hashed="other")).reason == "request_conflict"
    book.release(lease)
    assert book.refused(request(1, LARGE, hashed="other")).reason == "request_conflict"
    book.fill()
    book.waits(request(2, SMALL, wait_ms=60_000))
    assert book.refused(request(2, LARGE, hashed="other")).reason == "request_conflict"


def another_environment_s_request_of_that_name_is_another(book: Book) -> None:
    first = book.lease(request(1, SMALL))
    second = book.lease(request(1, SMALL, environment="env-b", hashed="other"))
    assert first.lease_id != second.lease_id


def no_node_gets_more_than_its_slots(book: Book) -> None:
    nodes = [lease.node_id for lease in book.fill()]
    assert sorted(nodes) == ["box-c"] * 2 + ["box-e"] * 3
    denied = book.refused(request(1, SMALL))
    assert denied.reason == "no_slot"
    assert {node.node_id: node.reason for node in denied.nodes} == {
        "box-c": "no_slot",
        "box-e": "no_slot",
    }


def no_node_gets_more_than_its_budget(book: Book) -> None:
    charged: dict[str, dict[str, int]] = {"box-c": {}, "box-e": {}}
    denials = []
    for number, model in enumerate(("large:70b", *("medium:30b",) * 4)):
        answer = book.ask(request(number, f"m|{key_of(model)}"))
        if isinstance(answer, Granted):
            charged[answer.lease.node_id][answer.lease.key] = answer.lease.weight_bytes
        elif isinstance(answer, Denied):
            denials.append(answer)
    for node in fleet().nodes:
        assert sum(charged[node.node_id].values()) <= (node.vram_budget_bytes or 0)
    # Each box has one of the two; the large one's has a slot, and lacks memory for the other.
    missing = {(one.node_id, one.missing_bytes) for answer in denials for one in answer.nodes}
    assert missing & {("box-e", 6 * GB), ("box-c", 20 * GB)}


def what_can_never_be_placed_says_why(book: Book) -> None:
    reasons = {
        "nobody:1b": "unknown_model",
        "raw:1b": "unmeasured_weight",
        "huge:400b": "never_fits",
    }
    for number, (model, reason) in enumerate(reasons.items()):
        asked = request(number, f"m|{key_of(model)}", wait_ms=60_000)
        assert book.refused(asked).reason == reason


def waiters_are_served_by_class_and_then_by_arrival(book: Book) -> None:
    held = book.fill()
    asked = [
        request(1, SMALL, priority="low", wait_ms=60_000),
        request(2, SMALL, priority="normal", wait_ms=60_000),
        request(3, SMALL, priority="normal", wait_ms=60_000),
        request(4, SMALL, priority="high", wait_ms=60_000),
    ]
    for one in asked:
        book.waits(one)
    places = {one.request_id: book.refresh(one)[0][1] for one in asked}
    assert places == {"r4": 1, "r2": 2, "r3": 3, "r1": 4}
    for one in (asked[3], asked[1], asked[2], asked[0]):
        book.release(held.pop())
        for other in asked:
            if other is not one:
                assert not isinstance(book.ask(other), Granted)
        book.lease(one)
        asked = [other for other in asked if other is not one]


def a_wait_ends_at_its_deadline_and_stays_ended(book: Book) -> None:
    book.fill()
    asked = request(1, SMALL, wait_ms=5_000)
    book.waits(asked)
    book.later(4_900)
    book.refresh(asked)
    book.waits(asked)
    book.later(200)
    assert book.refused(asked).reason == "wait_timeout"
    assert book.refused(asked).reason == "wait_timeout"
    assert book.refresh(asked) == [("ended", None, "timed_out")]


def a_place_lives_as_long_as_its_process_asks(book: Book) -> None:
    book.fill()
    kept, left = request(1, SMALL, wait_ms=60_000), request(2, SMALL, wait_ms=60_000)
    held = [book.waits(one) for one in (kept, left)]
    assert [one.position for one in held] == [1, 2]
    for _ in range(3):
        book.later(LIMITS.grace_ms // 2)
        assert book.refresh(kept) == [("queued", 1, None)]
    assert book.refresh(left) == [("ended", None, "forgotten")]


def an_environment_fills_a_quarter_of_the_queue(book: Book) -> None:
    book.fill()
    for number in range(LIMITS.queue_max // 4):
        book.waits(request(number, SMALL, wait_ms=60_000))
    assert book.refused(request(50, SMALL, wait_ms=60_000)).reason == "queue_full"
    book.waits(request(50, SMALL, wait_ms=60_000, environment="env-b"))


def a_cancel_ends_whatever_became_of_a_request(book: Book) -> None:
    leased, queued, unseen = (request(number, SMALL, wait_ms=60_000) for number in range(3))
    book.lease(leased)
    assert book.cancel(leased) == "leased"
    assert book.cancel(leased) == "ended"
    book.fill()
    book.waits(queued)
    assert book.cancel(queued) == "queued"
    assert book.cancel(unseen) == "unseen"
    for one in (leased, queued, unseen):
        denied = book.refused(one)
        assert (denied.reason, denied.detail) == ("request_ended", "cancelled")


def a_cancelled_lease_frees_its_slot_at_once(book: Book) -> None:
    held = book.fill()
    asked = request(1, SMALL)
    assert book.refused(asked).reason == "no_slot"
    assert book.cancel(request(100, SMALL)) == "leased"
    assert book.lease(request(2, SMALL)).node_id == held[0].node_id


def a_release_is_told_apart_from_its_repetition_and_from_a_second_one(book: Book) -> None:
    lease = book.lease(request(1, SMALL))
    book.later(1_000)
    assert book.release(lease, "one") == ("ok", None)
    assert book.release(lease, "one") == ("duplicate", None)
    assert book.release(lease, "two") == ("double", None)
    denied = book.refused(request(1, SMALL))
    assert (denied.reason, denied.detail) == ("request_ended", "completed")


def heartbeats_keep_a_lease_and_tell_what_is_not_the_holders(book: Book) -> None:
    lease, other = book.lease(request(1, SMALL)), book.lease(request(2, SMALL))
    for _ in range(4):
        book.later(TTL_MS - 1_000)
        assert book.beat(lease, other) == ["ok", "ok"]
    assert book.beat(lease, holder="holder-b") == ["unknown"]
    book.release(other)
    assert book.beat(lease, other) == ["ok", "unknown"]


def a_lease_without_heartbeats_ends_and_its_slot_drains(book: Book) -> None:
    held = book.fill()
    # All but the first are kept.
    book.later(TTL_MS - 1_000)
    book.beat(*held[1:])
    book.later(1_001)
    assert book.beat(held[0]) == ["expired"]
    denied = book.refused(request(1, SMALL))
    assert denied.reason == "draining"
    assert denied.nodes[0].node_id == held[0].node_id
    book.later(LIMITS.drain_ms // 2)
    assert book.refused(request(2, SMALL)).reason == "draining"
    book.later(LIMITS.drain_ms // 2 + 10)
    assert book.lease(request(3, SMALL)).node_id == held[0].node_id
    denied = book.refused(request(100, SMALL))
    assert (denied.reason, denied.detail) == ("request_ended", "expired")


def a_release_after_the_end_is_late_and_stays_late(book: Book) -> None:
    lease = book.lease(request(1, SMALL))
    book.later(TTL_MS + 1)
    assert book.release(lease, "one") == ("late", "expired")
    assert book.release(lease, "one") in {("late", "expired"), ("duplicate", None)}
    assert book.release(lease, "two") == ("late", "expired")
    assert book.beat(lease) == ["unknown"]


def places_tell_what_became_of_each_request(book: Book) -> None:
    leased, ended, unseen = (request(number, SMALL) for number in range(3))
    book.lease(leased)
    book.release(book.lease(ended), outcome="failed")
    assert book.refresh(leased, ended, unseen) == [
        ("leased", None, None),
        ("ended", None, "failed"),
        ("unknown", None, None),
    ]


def sessions_and_reports_change_no_grant(book: Book) -> None:
    run, backend = book.bench.run, book.bench.backend
    lease = book.lease(request(1, SMALL))
    run(backend.open_session(Session("holder-a", "env-a", "here", "boot", 1, 1)))
    run(backend.report(lease, "loading", lease.key, ms=0, outcome="ok"))
    run(backend.report(lease, "loaded", lease.key, ms=5, outcome="ok"))
    assert book.beat(lease) == ["ok"]


def what_is_freed_wakes_the_waiter_by_name(book: Book) -> None:
    backend, key = book.bench.backend, ""

    async def first() -> frozenset[str]:
        wakes: AsyncIterator[frozenset[str]] = backend.wakes()
        async for names in wakes:
            return names
        raise AssertionError("wakes end never")

    async def until_heard() -> frozenset[str]:
        """A reader hears from when it began to read on: slots are freed until it has."""
        hearing = asyncio.ensure_future(first())
        number = 0
        while not hearing.done():
            number += 1
            one = request(number, SMALL, wait_ms=60_000)
            keys.add(one.request_key)
            queued = await backend.acquire(one, lease_id=f"l{number}", call_id="c")
            assert isinstance(queued, Queued)
            await backend.release(held.pop(0), "completed", call_id="c")
            granted = await backend.acquire(one, lease_id=f"l{number}", call_id="c")
            assert isinstance(granted, Granted)
            held.append(granted.lease)
            await asyncio.sleep(0.001)
        return hearing.result()

    held, keys = book.fill(), {key}
    heard: frozenset[str] = book.bench.run(until_heard())
    assert heard
    assert heard <= keys
    book.answers.clear()


SCENARIOS: tuple[Scenario, ...] = (
    a_grant_says_where_and_for_how_long,
    tokens_grow_from_grant_to_grant,
    the_same_request_again_is_told_its_first_grant,
    another_request_under_its_name_is_a_conflict_while_it_lives_and_after,
    another_environment_s_request_of_that_name_is_another,
    no_node_gets_more_than_its_slots,
    no_node_gets_more_than_its_budget,
    what_can_never_be_placed_says_why,
    waiters_are_served_by_class_and_then_by_arrival,
    a_wait_ends_at_its_deadline_and_stays_ended,
    a_place_lives_as_long_as_its_process_asks,
    an_environment_fills_a_quarter_of_the_queue,
    a_cancel_ends_whatever_became_of_a_request,
    a_cancelled_lease_frees_its_slot_at_once,
    a_release_is_told_apart_from_its_repetition_and_from_a_second_one,
    heartbeats_keep_a_lease_and_tell_what_is_not_the_holders,
    a_lease_without_heartbeats_ends_and_its_slot_drains,
    a_release_after_the_end_is_late_and_stays_late,
    places_tell_what_became_of_each_request,
    sessions_and_reports_change_no_grant,
    what_is_freed_wakes_the_waiter_by_name,
)


def play(scenario: Scenario, bench: Bench) -> list[Any]:
    """Run one on a bench, closed afterwards: all that it was answered."""
    book = Book(bench)
    try:
        scenario(book)
    finally:
        bench.close()
    return book.answers
