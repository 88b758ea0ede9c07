"""Each reason has its status, and a time to ask again only where asking again can help."""

from __future__ import annotations

from typing import Final

import pytest

from aibs.gateway.denials import NEVER, RETRY_AFTER_MS, answer_to
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
    assert again_ms == (None if reason in NEVER else RETRY_AFTER_MS)
    # What the pool says goes before our guess, but never where no waiting helps.
    assert answer_to(reason, 700) == (status, None if reason in NEVER else 700)


def test_what_is_never_placed_is_never_asked_again() -> None:
    assert set(NEVER_PLACED) <= set(NEVER)
    assert not set(FOR_NOW) & set(NEVER)


def test_an_unknown_reason_is_for_now() -> None:
    assert answer_to("of a later release", None) == (503, RETRY_AFTER_MS)
    assert answer_to("no_slot", 0) == (503, RETRY_AFTER_MS)
