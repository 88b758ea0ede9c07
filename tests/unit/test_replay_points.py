"""How an operator names a moment and an event, and what is said where it cannot be meant."""

from __future__ import annotations

import pytest

from aibs.errors import ConfigurationError
from aibs.replay.entries import Damaged
from aibs.replay.filters import Filter, wanted
from aibs.replay.points import Bound, Point, bound_of, read_point
from aibs.replay.request import Options, understood
from aibs.replay.streaming import read_speed
from tests.incident_log import items


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-12-01T12:03:04Z", 1_796_126_584_000),
        ("2026-12-01T12:03:04.567Z", 1_796_126_584_567),
        ("2026-12-01 13:03:04.567+01:00", 1_796_126_584_567),
    ],
)
def test_a_time_with_a_zone_is_that_millisecond(text: str, at_ms: int) -> None:
    assert read_point(text, "--as-of") == Point("time", at_ms=at_ms)


def test_so_long_ago_counts_from_the_logs_now() -> None:
    assert bound_of(read_point("-15m", "--since"), lambda: 1_000_000) == Bound(at_ms=100_000)
    assert bound_of(read_point("now", "--since"), lambda: 1_000_000) == Bound(at_ms=1_000_000)


def test_an_event_id_is_taken_as_it_is() -> None:
    assert read_point("1796207899672-0", "--since") == Point("id", id="1796207899672-0")


def test_a_time_without_a_zone_is_refused_and_says_how_to_name_one() -> None:
    with pytest.raises(ConfigurationError, match=r"--since is .* without a zone\. Add Z"):
        read_point("2026-12-01T12:03:04", "--since")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "12:03",
        "-",
        "-15",
        "-0m",
        "2026-13-01T00:00:00Z",
        "176-",
        "-15 parsecs",
        "9" * 30 + "-0",
        "2026-12-01T25:00:00Z",
        "٣-٣",
        "20261201T000000Z",
    ],
)
def test_what_is_no_moment_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_point(text, "--as-of")
    assert "--as-of is" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "speed"), [("10x", 10), ("0.5x", 0.5), ("3", 3), ("1X", 1)])
def test_a_speed_is_read_with_and_without_its_x(text: str, speed: float) -> None:
    assert read_speed(text) == speed


@pytest.mark.parametrize("text", ["0", "0x", "-1x", "fast", "", "1e9x", "nan", "inf"])
def test_what_is_no_speed_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--speed"):
        read_speed(text)


def test_an_unknown_type_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean LeaseDenied"):
        wanted(types=["LeaseDenid"])
    with pytest.raises(ConfigurationError, match=r"docs/events\.md"):
        wanted(types=["zzzz"])


def test_a_type_is_known_in_any_case() -> None:
    assert wanted(types=["leasedenied"]).types == {"LeaseDenied"}


def test_a_model_that_is_no_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--model"):
        wanted(models=["a b:c:d"])


@pytest.mark.parametrize(
    "options",
    [
        Options(verify=True, follow=True),
        Options(as_of="now", diff=("now", "now")),
        Options(verify=True, nodes=["box-c"]),
        Options(as_of="now", since="-1m"),
        Options(follow=True, until="now"),
        Options(verify=True, speed="10x"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_anything_is_read(
    options: Options,
) -> None:
    with pytest.raises(ConfigurationError):
        understood(options)


def taken(**asked: list[str]) -> list[int]:
    chosen = Filter(wanted(**asked))
    return [item.seq for item in items() if chosen.takes(item)]


def test_a_request_is_followed_through_events_that_name_only_its_lease_or_its_key() -> None:
    assert taken(requests=["urgent-1"]) == [21, 27, 28, 29, 30, 31]
    assert taken(requests=["nightly-42"]) == [13, 14, 15, 17, 19, 26]


def test_a_lease_is_followed_through_its_heartbeats_to_its_end() -> None:
    lease = next(item for item in items() if item.seq == 13).data["lease"]["lease_id"]
    assert taken(leases=[lease]) == [13, 14, 15, 17, 19, 26]


def test_kinds_of_filter_must_all_match_and_one_of_each_kind() -> None:
    assert taken(requests=["urgent-1", "chat-7"], types=["LeaseDenied", "LeaseQueued"]) == [20, 21]
    assert taken(nodes=["box-e"], models=["lab/vision:32b"]) == []
    assert taken(nodes=["box-c"], models=["lab/vision:32b"]) == [18, 25]


def test_a_holder_is_followed_through_its_sessions_and_leases() -> None:
    holder = next(item for item in items() if item.seq == 12).data["holder"]
    assert taken(holders=[holder]) == [12, 13, 14, 15, 17, 19, 26]


def test_a_damaged_entry_is_shown_where_nothing_is_filtered() -> None:
    damaged = Damaged("1-1", "has no field seq")
    assert Filter(wanted()).takes(damaged)
    assert not Filter(wanted(nodes=["box-c"])).takes(damaged)
