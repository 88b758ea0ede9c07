"""Each reason has its status, and every 503 a time to ask again; what fails around one, too."""

from __future__ import annotations

from typing import Final

import pytest

from aibs.errors import (
    AibsError,
    ConfigurationError,
    CoordinationUnavailable,
    CorruptLog,
    FleetMismatch,
    LeaseLost,
    NodeUnreachable,
    OutcomeUnknown,
    PlacementDenied,
    PoolMissing,
    PoolVersionMismatch,
)
from aibs.gateway.denials import (
    MENDED_AFTER_MS,
    NEVER,
    RETRY_AFTER_MS,
    answer_to,
    logged_of,
    sentence_of,
    told,
)
from aibs.placement.reasons import AROUND, FOR_NOW
from aibs.placement.reasons import NEVER as NEVER_PLACED

CODES: Final = {
    "unknown_model": 404,
    "request_conflict": 409,
    "request_ended": 409,
    "queue_full": 429,
}


@pytest.mark.parametrize("reason", sorted({*NEVER_PLACED, *FOR_NOW, *AROUND}))
def test_every_reason_of_the_one_list_has_a_status_and_says_whether_to_ask_again(
    reason: str,
) -> None:
    status, again_ms = answer_to(reason, None)
    assert status == CODES.get(reason, 503)
    assert (again_ms is None) == (status in (404, 409))
    # What the pool says goes before our guess, but not where no waiting helps.
    assert answer_to(reason, 700) == (status, 700 if again_ms == RETRY_AFTER_MS else again_ms)


def test_what_an_operator_has_to_mend_is_asked_for_again_in_a_minute() -> None:
    for reason in ("never_fits", "unmeasured_weight", "affinity", "pool_version", "fleet_mismatch"):
        assert answer_to(reason, None) == (503, MENDED_AFTER_MS)
        # Clients that wait by themselves honour a minute at most.
        assert MENDED_AFTER_MS <= 60_000
    assert not set(FOR_NOW) & set(NEVER)
    assert set(NEVER) <= set(NEVER_PLACED)


AWAY = "unix:///run/user/1000/aibs/valkey.sock: Connection refused"


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (CoordinationUnavailable(AWAY), 503, "coordination_unavailable"),
        (OutcomeUnknown(AWAY), 503, "coordination_unavailable"),
        (PoolMissing(AWAY), 503, "coordination_unavailable"),
        (PlacementDenied(AWAY, reason="coordination_unavailable"), 503, "coordination_unavailable"),
        (PlacementDenied("No.", reason="no_slot"), 503, "no_slot"),
        (PlacementDenied("No.", reason="unknown_model"), 404, "unknown_model"),
        (LeaseLost("Lost.", why="expired", lease_id="l"), 503, "lease_lost"),
        (NodeUnreachable("box-a.", reason="dns"), 503, "node_unhealthy"),
        (FleetMismatch("Another."), 503, "fleet_mismatch"),
        (PoolVersionMismatch("Older."), 503, "pool_version"),
        (ConfigurationError("The placer is closed."), 503, "shutting_down"),
        (CorruptLog(AWAY), 500, "failed"),
    ],
)
def test_an_error_is_told_with_its_code_and_a_503_with_a_time(
    error: AibsError, status: int, reason: str
) -> None:
    found = told(error, stopping=True)
    assert (found.status, found.reason) == (status, reason)
    assert (found.retry_after_ms is not None) == (status == 503)
    assert "/run/" not in found.sentence
    assert found.sentence.endswith(".")


def test_a_closed_placer_is_a_fault_where_nobody_closed_it() -> None:
    assert told(ConfigurationError("The placer is closed.")).status == 500


def test_a_client_is_not_told_where_the_coordination_server_is() -> None:
    denial = PlacementDenied(AWAY, reason="coordination_unavailable")
    assert "/run/" not in sentence_of(denial)
    assert sentence_of(PlacementDenied("No.", reason="no_slot", mend="Wait.")) == "No. Wait."


def test_the_log_has_the_whole_of_what_the_client_is_not_told() -> None:
    whole = f"unix:///a/long/way/{'x' * 200}/valkey.sock cannot be reached: Connection refused."
    denial = PlacementDenied(f"{whole[:120]}….", reason="coordination_unavailable")
    denial.__cause__ = CoordinationUnavailable(whole)
    assert logged_of(denial) == whole
    assert logged_of(PlacementDenied("No.", reason="no_slot", mend="Wait.")) == "No. Wait."


def test_an_unknown_reason_is_for_now() -> None:
    assert answer_to("of a later release", None) == (503, RETRY_AFTER_MS)
    assert answer_to("no_slot", 0) == (503, RETRY_AFTER_MS)
