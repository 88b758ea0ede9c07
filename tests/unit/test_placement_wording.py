"""Every reason code has its sentence, and the sentence says what, where, how much, and a mend."""

from __future__ import annotations

import pytest

from aibs.placement import reasons
from aibs.placement.values import NodeReason
from aibs.placement.wording import LOSSES, Circumstances, Subject, denied, gb, lost, node_clause

NEVER = (
    "unknown_model",
    "unmeasured_weight",
    "never_fits",
    "affinity",
    "request_conflict",
    "request_ended",
)
FOR_NOW = (
    "no_memory",
    "no_slot",
    "draining",
    "stale_residency",
    "no_owner",
    "unaccounted_resident",
    "node_unhealthy",
    "node_loading",
    "node_tripped",
    "node_cordoned",
    "reserved",
    "pool_recovering",
)
AROUND = (
    "queue_full",
    "wait_timeout",
    "coordination_unavailable",
    "pool_version",
    "fleet_mismatch",
    "lease_lost",
)
GB = 10**9
LLAMA = Subject("llama3:70b", None, "r-1", 43 * GB)


def test_the_codes_are_those_of_the_protocol() -> None:
    assert reasons.NEVER == NEVER
    assert reasons.FOR_NOW == FOR_NOW
    assert reasons.AROUND == AROUND


@pytest.mark.parametrize("reason", reasons.ALL)
def test_each_code_has_a_sentence_of_its_own_with_a_mend(reason: str) -> None:
    error = denied(LLAMA, reason, Circumstances())
    assert error.reason == reason
    assert error.sentence.endswith(".")
    assert error.mend.endswith(".")
    assert "aibs audit`." not in error.mend or reason == "stale_residency", "the fall-back's mend"
    assert "has the reason" not in error.sentence, "the fall-back's clause"
    assert ("llama3:70b (43 GB)" in error.sentence) != ("r-1" in error.sentence)
    assert error.sentence not in {
        denied(LLAMA, other, Circumstances()).sentence for other in reasons.ALL if other != reason
    }


@pytest.mark.parametrize("reason", FOR_NOW)
def test_each_reason_of_a_node_names_the_node(reason: str) -> None:
    clause = node_clause(NodeReason("box-c", reason))
    assert clause.startswith("box-c ")
    assert "has the reason" not in clause


def test_the_sentence_names_each_node_and_how_much_is_missing() -> None:
    nodes = (
        NodeReason("box-c", "no_memory", missing_bytes=12_300_000_000),
        NodeReason("box-e", "no_slot"),
    )
    error = denied(LLAMA, "no_memory", Circumstances(nodes=nodes))
    assert str(error) == (
        "llama3:70b (43 GB) fits on no node now: box-c lacks 12.3 GB, box-e has no free slot. "
        "Wait for a lease to end, or raise AIBS_MODEL_CLUSTER_NODE_VRAM_GB where the machine has "
        "more."
    )
    assert error.nodes == nodes


def test_what_is_missing_never_reads_as_nothing() -> None:
    assert [gb(size) for size in (1, 10**8, 10**9, 12_300_000_001)] == [
        "0.1 GB",
        "0.1 GB",
        "1 GB",
        "12.4 GB",
    ]


def test_a_thousand_nodes_are_counted_not_listed() -> None:
    nodes = tuple(NodeReason(f"n{i:02}", "no_slot") for i in range(16))
    error = denied(LLAMA, "no_slot", Circumstances(nodes=nodes, others={"no_slot": 984}))
    assert "n07 has no free slot, 992 more nodes: has no free slot" in error.sentence
    assert "n08" not in error.sentence
    assert error.others == {"no_slot": 984}


def test_why_and_how_long_stand_behind_the_node() -> None:
    cordoned = NodeReason("box-c", "node_cordoned", why="disk\x1b[31m")
    assert node_clause(cordoned) == "box-c is cordoned (disk\N{REPLACEMENT CHARACTER}[31m)"
    tripped = NodeReason("box-c", "node_tripped", wait_ms=4_000)
    assert node_clause(tripped) == "box-c is closed after failures for about 4.0 s"


def test_nodes_that_a_request_avoids_are_not_called_silent() -> None:
    avoided = NodeReason("box-c", "node_unhealthy", why="avoided")
    error = denied(LLAMA, "node_unhealthy", Circumstances(nodes=(avoided,)))
    assert "box-c failed this request before, or has not its model" in error.sentence
    assert "does not answer" not in error.sentence
    assert "two good polls" not in error.mend
    late = denied(LLAMA, "wait_timeout", Circumstances(nodes=(avoided,), waited_ms=1_000))
    assert late.mend == error.mend


def test_a_wait_that_was_too_short_is_mended_by_what_held_it_up() -> None:
    around = Circumstances(nodes=(NodeReason("box-c", "no_slot"),), waited_ms=30_000, position=2)
    error = denied(LLAMA, "wait_timeout", around)
    assert "(waited 30 s)" in error.sentence
    assert "MAX_PARALLEL_REQUESTS" in error.mend
    assert error.position == 2


def test_stale_nodes_without_an_owner_send_the_operator_to_the_monitor() -> None:
    around = Circumstances(nodes=(NodeReason("box-c", "stale_residency"),), no_owner=True)
    error = denied(LLAMA, "stale_residency", around)
    assert error.reason == "stale_residency"
    assert "aibs monitor" in error.mend
    assert "nobody observes" in error.sentence


@pytest.mark.parametrize("why", LOSSES)
def test_each_loss_says_why_and_what_would_help(why: str) -> None:
    error = lost(LLAMA, why, "l-1", "box-c")
    assert (error.why, error.lease_id, error.reason) == (why, "l-1", "lease_lost")
    assert error.sentence.startswith("The lease of llama3:70b (43 GB) on box-c is lost: ")
    assert error.mend


def test_the_losses_are_those_that_the_error_promises() -> None:
    assert set(LOSSES) == {"revoked", "expired", "unknown", "trust_over", "closed"}


def test_a_role_alone_is_named_as_such() -> None:
    error = denied(Subject(None, "chat", "r-1"), "no_slot", Circumstances())
    assert error.sentence == "The role chat fits on no node now: every node has no free slot."
