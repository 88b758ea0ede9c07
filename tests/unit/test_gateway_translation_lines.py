"""The lines of a node's stream: where they are cut, where they end, what is none."""

from __future__ import annotations

import pytest

from aibs.gateway.translation import Unreadable
from aibs.gateway.translation.stream import LINE_MAX
from tests.native_answers import (
    CHAT,
    END,
    chunks,
    events,
    line,
    stream_of,
)


def test_lines_are_read_wherever_they_are_cut() -> None:
    text = line("ä" * 500) + b"\r\n" + line("b") + END
    for step in (1, 7, 64, len(text)):
        stream = stream_of()
        told = [stream.feed(text[at : at + step]) for at in range(0, len(text), step)]
        said = [one.choices[0].delta.content for one in chunks(b"".join(told))]
        assert said == ["ä" * 500, "b", ""]


def test_a_line_is_told_as_soon_as_it_is_whole() -> None:
    stream = stream_of()
    assert stream.feed(line("a")[:-1]) == b""
    assert len(events(stream.feed(b"\n"))) == 1


def test_done_is_said_when_the_node_has_ended_since_clients_leave_when_they_read_it() -> None:
    stream = stream_of()
    assert b"[DONE]" not in stream.feed(line("a") + END)
    assert stream.close() == b"data: [DONE]\n\n"


def test_one_object_without_a_line_s_end_is_a_stream_too() -> None:
    stream = stream_of()
    assert stream.feed(line(done=True, done_reason="load")[:-1]) == b""
    assert events(stream.close())[-1] == "[DONE]"
    assert stream.ending.complete


def test_an_error_line_is_told_and_nothing_after_it() -> None:
    for path in (CHAT, "/v1/completions", "/v1/responses"):
        stream = stream_of(path)
        text = stream.feed(line("a") + b'{"error":"the runner stopped"}\n' + END) + stream.close()
        assert b"[DONE]" not in text
        assert b"response.completed" not in text
        last = events(text)[-1]
        assert last["error"]["message"] == "the runner stopped"
        assert last["error"]["type"] == "api_error"
        assert (stream.ending.complete, stream.ending.error) == (False, "the runner stopped")


def test_an_end_that_is_missing_is_told_and_is_no_end() -> None:
    stream = stream_of()
    text = stream.feed(line("a")) + stream.close()
    assert events(text)[-1]["error"]["code"] == "node_unhealthy"
    assert b"[DONE]" not in text
    assert (stream.ending.complete, stream.ending.error) == (False, None)
    assert stream.begun


def test_a_node_that_only_failed_began_nothing() -> None:
    stream = stream_of()
    stream.feed(b'{"error":"no"}\n')
    assert not stream.begun


@pytest.mark.parametrize("bad", [b"<html>\n", b"[1]\n", b'{"a":\n'])
def test_what_is_no_object_is_unreadable_after_what_came_before(bad: bytes) -> None:
    with pytest.raises(Unreadable):
        stream_of().feed(bad)
    stream = stream_of()
    assert len(events(stream.feed(line("a") + bad))) == 1
    with pytest.raises(Unreadable):
        stream.feed(END)
    with pytest.raises(Unreadable):
        stream.close()


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    stream = stream_of()
    part = b"x" * (1 << 20)
    for _ in range(LINE_MAX // len(part)):
        stream.feed(part)
    with pytest.raises(Unreadable, match="bytes"):
        stream.feed(b"x")
