"""The smoke test's reading of a log, and its verdict, on hand-made histories."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from aibs.audit.document import AuditDocument, Coordination, Gate
from aibs.eventstore.events import Event
from aibs.fleet import Fleet, Worker
from aibs.proofs.smoke.asks import Ask, broad, narrow, to_be_cut
from aibs.proofs.smoke.document import SCHEMA, SmokeDocument, json_schema, to_json
from aibs.proofs.smoke.evidence import Evidence, base_of, with_ids
from aibs.proofs.smoke.process import key_of, read_key
from aibs.proofs.smoke.text import render
from aibs.proofs.smoke.verdict import (
    Ground,
    Sent,
    judge_audit,
    judge_cut,
    judge_leaks,
    judge_served,
    not_run,
)

if TYPE_CHECKING:
    from pathlib import Path

    from aibs.proofs.smoke.document import SmokeStep

CHAT = Ask("answer", "llama3:8b", "chat")
EMBED = Ask("embed", "nomic-embed-text", "embedding")
URL = "http://box-c:11434"
GROUND = Ground("fleet", {"box-c": URL, "box-e": "http://box-e:11434"})
SENT = Sent(CHAT, 900, 200, None, "r1", "l1", "box-c")
BOUND_MS = 5_000


def event(kind: str, at_ms: int, data: dict[str, Any]) -> Event:
    return Event(f"{at_ms}-0", at_ms, at_ms, kind, 1, "a:1:gateway:x", None, None, data)


def granted(
    request_id: str = "r1", lease_id: str = "l1", node: str = "box-c", url: str = URL
) -> Event:
    lease = {
        "lease_id": lease_id,
        "request_id": request_id,
        "node_id": node,
        "base_url": url,
        "model": "llama3:8b",
        "role": "answer",
        "acquired_at_ms": 1_000,
        "queue_ms": 120,
    }
    return event("LeaseAcquired", 1_000, {"lease": lease})


def released(lease_id: str = "l1", outcome: str = "completed", at_ms: int = 2_000) -> Event:
    return event(
        "LeaseReleased", at_ms, {"lease_id": lease_id, "outcome": outcome, "held_ms": at_ms - 1_000}
    )


def expired(lease_id: str = "l1") -> Event:
    return event("LeaseExpired", 3_000, {"lease_id": lease_id, "held_ms": 2_000})


def evidence(*events: Event, ids: tuple[str, ...] = ("r1",)) -> Evidence:
    found = Evidence(with_ids(ids))
    for one in events:
        found.take(one)
    return found


GOOD = (granted(), released())


def served(*events: Event, sent: Sent = SENT) -> SmokeStep:
    return judge_served("narrow", [sent], evidence(*events), GROUND)


# --- a served request


def test_a_request_that_was_placed_answered_and_given_back_passes_with_the_logs_own_words() -> None:
    step = served(*GOOD)
    assert step.passed, step.detail
    (request,) = step.requests
    assert request.model_dump(exclude={"asked", "kind", "status", "grants"}) == {
        "request_id": "r1",
        "lease_id": "l1",
        "node_id": "box-c",
        "node_base_url": URL,
        "queue_ms": 120,
        "duration_ms": 900,
        "outcome": "completed",
    }


@pytest.mark.parametrize(
    ("events", "words", "outcome"),
    [
        ((), "the pool fleet has no grant of it", "no_grant"),
        ((granted(),), "has not ended", "active"),
        ((granted(), expired()), "was not given back: it was expired", "expired"),
        ((granted(), released(outcome="failed")), "its lease ended as failed", "failed"),
        ((granted(), released(outcome="cancelled")), "its lease ended as cancelled", "cancelled"),
        ((*GOOD, released()), "ended 2 times: completed, completed", "completed"),
        ((*GOOD, expired()), "ended 2 times: completed, expired", "completed"),
        (
            (*GOOD, event("DoubleRelease", 2_500, {"lease_id": "l1"})),
            "was given back twice",
            "completed",
        ),
        (
            (
                granted(),
                expired(),
                event("LateRelease", 4_000, {"lease_id": "l1", "ended_by": "expired"}),
            ),
            "was given back after it had expired",
            "expired",
        ),
        ((granted(node="box-x"), released()), "placed on box-x", "completed"),
        ((granted(url="http://elsewhere"), released()), "which is no node here", "completed"),
        ((granted(url=""), released()), "does not tell its node and URL", "completed"),
        ((granted(lease_id="l9"), released("l9")), "the gateway named lease l1", "completed"),
    ],
)
def test_a_request_fails_where_the_log_tells_otherwise_than_it_must(
    events: tuple[Event, ...], words: str, outcome: str
) -> None:
    step = served(*events)
    assert not step.passed
    assert words in step.detail
    assert step.requests[0].outcome == outcome


@pytest.mark.parametrize(
    ("sent", "outcome"),
    [
        (replace(SENT, status=503, error="answered 503 no_slot: full", request_id=None), "refused"),
        (
            replace(SENT, status=None, error="no whole answer within 3 s", request_id=None),
            "no_answer",
        ),
    ],
)
def test_a_request_that_got_no_answer_fails_though_nothing_in_the_log_speaks_against_it(
    sent: Sent, outcome: str
) -> None:
    step = served(sent=sent)
    assert not step.passed
    assert sent.error is not None
    assert sent.error in step.detail
    request = step.requests[0]
    assert (request.outcome, request.request_id, request.queue_ms) == (outcome, None, None)


def test_an_answer_that_broke_off_fails_though_its_lease_was_given_back() -> None:
    step = served(*GOOD, sent=replace(SENT, error="its answer broke off before its end"))
    assert not step.passed


def test_a_request_that_went_on_to_another_node_passes_and_is_told() -> None:
    events = (
        granted(),
        released(outcome="failed"),
        granted("r1-2", "l2", "box-e", "http://box-e:11434"),
        released("l2"),
    )
    step = served(*events, sent=replace(SENT, request_id="r1-2", lease_id="l2", node_id="box-e"))
    assert step.passed, step.detail
    assert "1 went on to another node" in step.detail
    assert (step.requests[0].grants, step.requests[0].queue_ms) == (2, 240)


def test_the_first_lease_of_a_request_that_went_on_is_not_forgotten() -> None:
    events = (granted(), granted("r1-2", "l2"), released("l2"))
    step = served(*events, sent=replace(SENT, request_id="r1-2", lease_id="l2"))
    assert not step.passed
    assert "lease l1 on box-c has not ended" in step.detail


def test_other_requests_of_the_fleet_are_left_out_of_account() -> None:
    others = (granted("r2", "l2"), expired("l2"), granted("r10", "l3"))
    assert served(*others, *GOOD).passed
    assert [one.lease_id for one in evidence(*others, *GOOD).grants] == ["l1"]


@pytest.mark.parametrize(("request_id", "base"), [("ab", "ab"), ("ab-2", "ab"), ("a-b", "a-b")])
def test_further_attempts_belong_to_their_request(request_id: str, base: str) -> None:
    assert base_of(request_id) == base


# --- the request that was left


def cut(*events: Event, sent: Sent = SENT, cut_at_ms: int | None = 1_900) -> SmokeStep:
    return judge_cut([sent], evidence(*events), cut_at_ms=cut_at_ms, bound_ms=BOUND_MS)


def test_a_request_that_was_left_passes_when_its_lease_ended_as_cancelled_in_time() -> None:
    step = cut(granted(), released(outcome="cancelled"))
    assert step.passed, step.detail
    assert "100 ms after its client had left" in step.detail
    assert step.requests[0].outcome == "cancelled"


@pytest.mark.parametrize(
    ("events", "cut_at_ms", "words"),
    [
        ((granted(),), 1_900, "was not given back within 5 s"),
        (GOOD, 1_900, "ended as completed, not as cancelled"),
        ((granted(), released(outcome="failed")), 1_900, "ended as failed, not as cancelled"),
        ((granted(), released(outcome="cancelled", at_ms=9_000)), 1_900, "only after 7100 ms"),
        (GOOD, None, "no cancellation was seen"),
        ((), 1_900, "no cancellation was seen"),
    ],
)
def test_a_request_that_was_left_fails_where_no_timely_cancellation_is_in_the_log(
    events: tuple[Event, ...], cut_at_ms: int | None, words: str
) -> None:
    step = cut(*events, cut_at_ms=cut_at_ms)
    assert not step.passed
    assert words in step.detail


def test_a_request_that_was_refused_before_it_could_be_left_fails_with_the_refusal() -> None:
    step = cut(sent=replace(SENT, error="answered 503 no_slot: full", request_id=None))
    assert not step.passed
    assert "no_slot" in step.detail


# --- what is left


def test_nothing_is_left_where_each_grant_has_one_end() -> None:
    step = judge_leaks([SENT], evidence(*GOOD), living=(), waiting=())
    assert step.passed, step.detail


@pytest.mark.parametrize(
    ("events", "living", "waiting", "words"),
    [
        ((granted(),), (), (), "has not ended"),
        (GOOD, ("l1",), (), "lease l1 is still held in the pool"),
        (GOOD, (), ("r1",), "request r1 still waits"),
        ((*GOOD, expired()), (), (), "ended 2 times"),
        ((), (), (), "no grant of any request"),
    ],
)
def test_something_left_fails_the_last_step(
    events: tuple[Event, ...], living: tuple[str, ...], waiting: tuple[str, ...], words: str
) -> None:
    step = judge_leaks([SENT], evidence(*events), living=living, waiting=waiting)
    assert not step.passed
    assert words in step.detail


def test_requests_without_an_id_fail_the_last_step_because_nothing_can_be_known_of_them() -> None:
    unnamed = replace(SENT, request_id=None)
    step = judge_leaks([SENT, unnamed], evidence(*GOOD), living=(), waiting=())
    assert not step.passed
    assert "1 requests have no id" in step.detail


# --- the audit


def audited(
    *, enabled: bool = True, gates: tuple[Gate, ...] = (), ready: bool | None = None
) -> AuditDocument:
    may = all(gate.passed for gate in gates) if ready is None else ready
    return AuditDocument(
        schema="aibs.audit/1",
        generated_at="2026-12-01T12:03:04.567Z",
        cluster_enabled=enabled,
        ready_to_enable_global_scheduler=may,
        ready_for_global_scheduler=may and enabled,
        gates=list(gates),
        information=[],
        coordination=Coordination(
            backend="valkey",
            server="valkey",
            version="9.0.0",
            namespace="fleet",
            reachable=True,
            error=None,
            url="redis://x",
        ),
        log=None,
        nodes=[],
        workers=[],
        warmup=None,
        suggested_roster=[],
    )


FRESH = Gate(name="monitor_fresh", passed=True, detail="all nodes", fix=None)
STALE = Gate(name="monitor_fresh", passed=False, detail="box-c is stale", fix="Start it.")


def test_an_enabled_and_ready_fleet_passes_the_audit() -> None:
    assert judge_audit(audited(gates=(FRESH,))).passed


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (audited(enabled=False, gates=(FRESH,)), "cluster_enabled is false"),
        (audited(gates=(FRESH, STALE)), "monitor_fresh: box-c is stale"),
        (audited(gates=(FRESH,), ready=False), "does not say ready"),
    ],
)
def test_an_audit_that_says_no_fails_and_tells_why(document: AuditDocument, words: str) -> None:
    step = judge_audit(document)
    assert not step.passed
    assert words in step.detail


def test_a_gateway_that_admits_by_itself_fails_the_audit_though_the_settings_are_right() -> None:
    step = judge_audit(audited(gates=(FRESH,)), local_at="http://127.0.0.1:11500")
    assert not step.passed
    assert "without the shared pool: restart it" in step.detail


# --- what is asked


def worker(name: str, model: str, roles: tuple[str, ...], kind: Any = "chat") -> Worker:
    return Worker(name, model, roles, kind, 10**9, Decimal(1))


def test_a_broad_query_asks_every_role_once_and_each_kind_of_a_role_by_its_own_route() -> None:
    fleet = Fleet(
        workers=(
            worker("a", "llama3:8b", ("answer", "judge")),
            worker("b", "llama3:70b", ("answer",)),
            worker("c", "nomic", ("embed", "answer"), "embedding"),
            worker("d", "phi4", ()),
        )
    )
    asks = broad(fleet)
    assert [(ask.asked, ask.path, ask.streamed) for ask in asks] == [
        ("aibs/answer", "/api/chat", True),
        ("aibs/judge", "/api/chat", True),
        ("aibs/embed", "/api/embed", False),
        ("aibs/answer", "/api/embed", False),
        ("phi4", "/api/chat", True),
    ]
    assert narrow(fleet).body["stream"] is False
    assert to_be_cut(fleet, 256).body["options"] == {"num_predict": 256}


def test_a_roster_of_embedding_workers_alone_is_asked_for_embeddings() -> None:
    fleet = Fleet(workers=(worker("c", "nomic", ("embed",), "embedding"),))
    assert narrow(fleet).path == to_be_cut(fleet, 256).path == "/api/embed"


def test_no_request_carries_an_option_that_would_reload_a_model() -> None:
    assert set(CHAT.body["options"]) == {"num_predict"}
    assert "keep_alive" not in CHAT.body
    assert set(EMBED.body) == {"model", "input"}


# --- keys


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", None),
        ("@keys.txt", None),
        ("app:s3cret", "s3cret"),
        ("ci:sha256:" + "0" * 64 + ",app:s3cret:low", "s3cret"),
        ("ci:sha256:" + "0" * 64, None),
    ],
)
def test_the_key_is_the_first_that_is_written_out(text: str, key: str | None) -> None:
    assert key_of(text) == key


def test_a_key_file_without_a_key_is_a_fault_of_the_call(tmp_path: Path) -> None:
    from aibs.errors import ConfigurationError

    file = tmp_path / "key"
    for text in ("", "\n", "two words"):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match="no API key"):
            read_key(file)
    file.write_text("s3cret\n")
    assert read_key(file) == "s3cret"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_key(tmp_path / "none")


# --- the document


def document_of(*steps: SmokeStep) -> SmokeDocument:
    return SmokeDocument(
        schema=SCHEMA,
        generated_at="2026-12-01T12:03:04.567Z",
        passed=all(step.passed for step in steps),
        url="http://127.0.0.1:11500",
        namespace="fleet",
        fingerprint="f",
        steps=list(steps),
    )


def test_the_document_has_the_contracts_fields_and_a_schema() -> None:
    document = to_json(document_of(judge_audit(audited(gates=(FRESH,))), served(*GOOD)))
    assert document["schema"] == SCHEMA
    assert {"passed", "generated_at", "steps"} <= set(document)
    step = document["steps"][1]
    assert set(step) == {"name", "passed", "requests", "detail"}
    assert {
        *("request_id", "lease_id", "node_id", "node_base_url"),
        *("queue_ms", "duration_ms", "outcome"),
    } <= set(step["requests"][0])
    assert json_schema()["$id"] == SCHEMA


def test_a_person_reads_which_step_failed_and_what_was_wrong_and_no_escape_sequence() -> None:
    bad = served(granted(node="box\x1b[31m-x"), released())
    out = StringIO()
    steps = (judge_audit(audited(gates=(FRESH,))), bad, not_run("broad", "the audit says no"))
    render(document_of(*steps), Console(file=out, width=160, markup=False))
    shown = out.getvalue()
    assert "FAILED at narrow: do not send users there" in shown
    assert "not run: the audit says no" in shown
    assert "\x1b" not in shown
