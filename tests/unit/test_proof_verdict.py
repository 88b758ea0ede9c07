"""The takeover proof's reading of a log, and its verdict, on hand-made histories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aibs.codec import dumps_text
from aibs.eventstore.events import Event
from aibs.eventstore.state import Stamp
from aibs.proofs.document import Stderr
from aibs.proofs.evidence import Recorded, Sample, takeover_of
from aibs.proofs.stderr import classify
from aibs.proofs.text import verdict_of
from aibs.proofs.verdict import Ending, Rules, judge

KILLED_MS = 10_000
RULES = Rules(bound_ms=5_000, staleness_ms=6_000, gate="strict")
QUIET = Stderr(expected=[], churn=[], unexplained=[])
ENDING = Ending("fleet-proof-1", deleted=True, stderr=QUIET)


def event(seq: int, kind: str, at_ms: int, fence: int, data: dict[str, Any] | None = None) -> Event:
    return Event(f"{at_ms}-{seq}", seq, at_ms, kind, 1, "a:1:monitor:x", fence, None, data or {})


def elected(seq: int, owner: str, fence: int, at_ms: int) -> Event:
    return event(seq, "OwnerElected", at_ms, fence, {"owner": owner, "fence": fence})


def ended(seq: int, owner: str, fence: int, at_ms: int, how: str = "expired") -> Event:
    kind = "OwnerResigned" if how == "resigned" else "OwnerExpired"
    data = {"owner": owner, "fence": fence, "deadline_ms": at_ms - 10, "how": how}
    return event(seq, kind, at_ms, fence, data)


def sample(node_id: str, at_ms: int, fence: int, *, good: bool = True) -> Sample:
    return Sample(node_id, at_ms, 5, fence, good, good)


def stamp(begun_ms: int, fence: int) -> Stamp:
    return Stamp(begun_ms, fence, fence, 1, "f", "http://n", True, "", 0, 0, False, 0, 0)


EVENTS = (
    elected(1, "a", 1, 1_000),
    ended(2, "a", 1, 12_010),
    elected(3, "b", 2, 12_010),
)
SAMPLES = (
    sample("box-c", 9_000, 1),
    sample("box-e", 9_100, 1),
    sample("box-c", 12_100, 2),
    sample("box-e", 12_200, 2),
)
GOOD = Recorded(
    EVENTS,
    SAMPLES,
    {"box-c": stamp(12_095, 2), "box-e": stamp(12_195, 2)},
    ("box-c", "box-e"),
    KILLED_MS,
    ("fenced", "fenced"),
    "proof",
)


def test_a_good_takeover_passes_and_its_parts_add_up_to_the_handover() -> None:
    report = judge(1, GOOD, ENDING, RULES)
    assert report.passed, report.findings
    assert report.findings == []
    assert report.handover_ms == 2_200
    assert report.parts.model_dump() == {
        "lease_expiry_ms": 2_000,
        "election_ms": 10,
        "first_sample_ms": 90,
        "all_nodes_fresh_ms": 100,
    }
    assert [node.last_before for node in report.nodes] == [
        "1970-01-01T00:00:08.995Z",
        "1970-01-01T00:00:09.095Z",
    ]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (replace(GOOD, attempts=("fenced", "accepted")), "were accepted"),
        (replace(GOOD, attempts=()), "none was seen refused"),
        (
            replace(GOOD, events=(EVENTS[0], ended(2, "a", 1, 12_010, "resigned"), EVENTS[2])),
            "was resigned, not expired",
        ),
        (
            replace(GOOD, events=(*EVENTS, event(4, "ResidencyObserved", 13_000, 1))),
            "were accepted",
        ),
        (replace(GOOD, samples=(*SAMPLES, sample("box-c", 13_000, 1))), "were accepted"),
        (
            replace(GOOD, stamps={**GOOD.stamps, "box-c": stamp(12_100, 2)}),
            "stamps of box-c tell a beginning that no poll had",
        ),
        (
            replace(
                GOOD,
                events=(
                    elected(1, "a", 1, 1_000),
                    ended(2, "a", 1, 2_000),
                    elected(3, "a", 2, 2_100),
                    ended(4, "a", 2, 12_010),
                    elected(5, "b", 3, 12_010),
                ),
            ),
            "lost its term 1 times before",
        ),
        (
            replace(GOOD, events=(*EVENTS[:2], elected(3, "b", 1, 12_010))),
            "is not above the old one",
        ),
    ],
)
def test_what_is_not_correct_fails_and_says_why(broken: Recorded, words: str) -> None:
    for gate in ("strict", "report-only"):
        report = judge(1, broken, ENDING, replace(RULES, gate=gate))
        assert (report.passed, report.correctness_passed) == (False, False)
        assert any(words in finding for finding in report.findings), report.findings


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (replace(ENDING, deleted=False), "left behind"),
        (replace(ENDING, stopped_at="standby", why="in vain."), "stopped at standby"),
        (
            replace(ENDING, stderr=Stderr(expected=[], churn=[], unexplained=["Segmentation"])),
            "nothing explains",
        ),
    ],
)
def test_how_the_run_went_counts_too(ending: Ending, words: str) -> None:
    report = judge(1, GOOD, ending, RULES)
    assert not report.passed
    assert any(words in finding for finding in report.findings), report.findings


def test_a_long_handover_fails_the_strict_gate_and_is_a_finding_of_the_other() -> None:
    late = replace(
        GOOD,
        events=(EVENTS[0], ended(2, "a", 1, 15_500), elected(3, "b", 2, 15_500)),
        samples=(*SAMPLES[:2], sample("box-c", 15_600, 2), sample("box-e", 15_700, 2)),
        stamps={"box-c": stamp(15_595, 2), "box-e": stamp(15_695, 2)},
    )
    strict = judge(1, late, ENDING, RULES)
    assert (strict.passed, strict.correctness_passed, strict.availability_passed) == (
        False,
        True,
        False,
    )
    told = judge(1, late, ENDING, replace(RULES, gate="report-only"))
    assert (told.passed, told.availability_passed) == (True, False)
    words = " ".join(told.findings)
    assert "over the bound of 5000 ms" in words
    assert "box-c was without a fresh observation" in words


def test_a_node_without_a_sample_after_the_kill_is_named() -> None:
    report = judge(1, replace(GOOD, samples=SAMPLES[:3]), ENDING, RULES)
    assert not report.availability_passed
    assert report.handover_ms is None
    assert any("box-e has no good sample after" in finding for finding in report.findings)


def test_a_failed_poll_is_no_evidence() -> None:
    told = takeover_of(
        replace(GOOD, samples=(*SAMPLES[:3], sample("box-e", 12_200, 2, good=False)))
    )
    assert set(told.first_after) == {"box-c"}


def test_lines_are_sorted_by_what_they_mean() -> None:
    lines = [
        dumps_text({"event": "owner_elected", "level": "info"}),
        dumps_text({"event": "term_lost", "level": "warning"}),
        dumps_text({"event": "poll_failed", "level": "warning"}),
        "Traceback (most recent call last):",
        "",
    ]
    told = classify(lines)
    assert (len(told.expected), len(told.churn), len(told.unexplained)) == (0, 1, 2)
    paused = classify(lines, paused=True)
    assert (len(paused.expected), len(paused.churn), len(paused.unexplained)) == (2, 0, 1)


def test_the_verdict_is_one_sentence_for_each_outcome() -> None:
    from aibs.proofs.document import TakeoverDocument

    def document(*, passed: bool, correct: bool, available: bool) -> TakeoverDocument:
        return TakeoverDocument(
            schema="aibs.proof.takeover/1",
            generated_at="2026-12-01T12:00:00.000Z",
            passed=passed,
            correctness_passed=correct,
            availability_passed=available,
            handover_gate="strict",
            bound_ms=5_000,
            max_residency_staleness_ms=6_000,
            variant="kill",
            self_contained=False,
            fingerprint="f",
            runs=[judge(1, GOOD, ENDING, RULES)],
        )

    told = {
        verdict_of(document(passed=passed, correct=correct, available=available)).split(":")[0]
        for passed, correct, available in (
            (True, True, True),
            (True, True, False),
            (False, True, False),
            (False, False, False),
        )
    }
    assert told == {
        "PASSED",
        "PASSED for correctness in 1 run; availability is reported, not required",
        "FAILED",
    }
