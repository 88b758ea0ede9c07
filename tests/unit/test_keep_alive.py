"""The grammar of keep_alive and the reading of requests, as the real server has them."""

from __future__ import annotations

from typing import Any

import pytest

from aibs.ollama.keep_alive import (
    FOREVER_NS,
    InvalidDuration,
    parse_duration,
    parse_keep_alive,
)
from aibs.ollama.sim.body import Body
from aibs.ollama.sim.replies import RequestError

SECOND = 10**9


@pytest.mark.parametrize(
    ("value", "duration_ns"),
    [
        (None, None),
        (0, 0),
        ("0", 0),
        ("-0", 0),
        ("0s", 0),
        (300, 300 * SECOND),
        (1.5, 1_500_000_000),
        (-1, FOREVER_NS),
        (-0.5, FOREVER_NS),
        ("-1m", FOREVER_NS),
        ("-1ns", FOREVER_NS),
        ("5m", 300 * SECOND),
        ("+5m", 300 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("1.5h", 5400 * SECOND),
        (".5s", SECOND // 2),
        ("1.s", SECOND),
        ("500ms", SECOND // 2),
        ("3us", 3000),
        ("3µs", 3000),
        ("3μs", 3000),
        ("7ns", 7),
        (9_000_000_000, 9_000_000_000 * SECOND),
    ],
)
def test_a_keep_alive_is_read_as_the_server_reads_it(value: Any, duration_ns: int | None) -> None:
    assert parse_keep_alive(value) == duration_ns


def test_a_number_beyond_int64_unloads_at_once_as_on_amd64() -> None:
    duration_ns = parse_keep_alive(9_300_000_000)
    assert duration_ns is not None
    assert duration_ns < 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("-1", 'time: missing unit in duration "-1"'),
        ("300", 'time: missing unit in duration "300"'),
        ("5m3", 'time: missing unit in duration "5m3"'),
        ("5x", 'time: unknown unit "x" in duration "5x"'),
        ("5 m", 'time: unknown unit " m" in duration "5 m"'),
        ("5M", 'time: unknown unit "M" in duration "5M"'),
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        ("m", 'time: invalid duration "m"'),
        (".s", 'time: invalid duration ".s"'),
        ("forever", 'time: invalid duration "forever"'),
        ("9999999999s", 'time: invalid duration "9999999999s"'),
        (True, "Unsupported type: 'bool'"),
        ([5], "Unsupported type: '[]interface {}'"),
        ({}, "Unsupported type: 'map[string]interface {}'"),
    ],
)
def test_a_bad_keep_alive_gets_the_servers_own_words(value: Any, text: str) -> None:
    with pytest.raises(InvalidDuration) as caught:
        parse_keep_alive(value)
    assert str(caught.value) == text


def test_a_negative_duration_stays_negative_outside_a_keep_alive() -> None:
    assert parse_duration("-90s") == -90 * SECOND


def test_keys_match_whatever_their_case_and_the_last_one_wins() -> None:
    body = Body(b'{"model":"a","Model":"b","MODEL":"c","KEEP_ALIVE":"1m"}')
    assert body.text("model") == "c"
    assert body.keep_alive_ns() == 60 * SECOND


def test_the_last_one_wins_even_where_its_spelling_came_first_too() -> None:
    assert Body(b'{"model":"a","Model":"b","model":"c"}').text("model") == "c"


def test_null_does_not_undo_a_text() -> None:
    assert Body(b'{"model":"a","Model":null}').text("model") == "a"


@pytest.mark.parametrize(
    "raw",
    [b'{"model":"a"} and more', b'{"model":"a"}{"model":"b"}', b' \n{"model":"a"}]]'],
)
def test_what_follows_the_first_object_is_ignored(raw: bytes) -> None:
    assert Body(raw).text("model") == "a"


def test_options_are_a_map_whose_keys_match_exactly() -> None:
    assert Body(b'{"OPTIONS":{"num_ctx":1,"NUM_CTX":2}}').options() == {"num_ctx": 1, "NUM_CTX": 2}


def test_members_of_messages_match_whatever_their_case() -> None:
    assert Body(b'{"messages":[{"Content":"x"}]}').objects("messages") == [{"content": "x"}]


@pytest.mark.parametrize("raw", [b"", b"  \r\n"])
def test_an_empty_body_is_a_missing_one(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        Body(raw)
    assert (caught.value.status, caught.value.text) == (400, "missing request body")


@pytest.mark.parametrize(
    "raw",
    [b"{", b"model", b"[]", b'"a"', b"3", b"\xef\xbb\xbf{}", b"{'model':1}", b"[" * 100_000],
)
def test_what_is_no_object_is_a_400(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        Body(raw)
    assert caught.value.status == 400


def test_null_is_an_object_without_members() -> None:
    assert Body(b"null").text("model") == ""


@pytest.mark.parametrize("raw", [b'{"model":1}', b'{"model":["a"]}'])
def test_a_name_of_another_type_is_a_400(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        Body(raw).text("model")
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("raw", "streamed"),
    [(b"{}", True), (b'{"stream":null}', True), (b'{"stream":false}', False)],
)
def test_stream_is_true_where_nobody_says_otherwise(raw: bytes, streamed: bool) -> None:
    assert Body(raw).flag("stream", True) is streamed
