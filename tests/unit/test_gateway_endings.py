"""The end of an answer is found however its bytes are cut, in memory that does not grow with it."""

from __future__ import annotations

import sys
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibs.codec import dumps
from aibs.gateway.endings import (
    LINE_MAX,
    LINE_PART,
    Ending,
    LastLine,
    NdjsonEnd,
    SseEnd,
    WholeEnd,
    native_ending,
    openai_ending,
)

DONE: Final[dict[str, Any]] = {"done": True, "eval_count": 7, "prompt_eval_count": 3}
WORD: Final[dict[str, Any]] = {"response": "w\xf6rd", "done": False}

NATIVE: Final[tuple[tuple[list[bytes], Ending], ...]] = (
    ([dumps(WORD), dumps(DONE)], Ending(True, None, 3, 7)),
    ([dumps(DONE)], Ending(True, None, 3, 7)),
    ([dumps(WORD)], Ending(False)),
    ([dumps(DONE), dumps(WORD)], Ending(False)),
    ([dumps(WORD), b'{"error":"gone"}'], Ending(False, "gone")),
    ([dumps(WORD), b'{"done_reason":"stop"}'], Ending(True)),
    ([dumps(WORD), b'{"done":"true"}'], Ending(False)),
    ([dumps(WORD), b"[true]"], Ending(False)),
    ([dumps(WORD), b"nothing"], Ending(False)),
    ([], Ending(False)),
)


def fed(end: Any, data: bytes, cuts: list[int]) -> Any:
    """The end, with the data in pieces."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    for begin, stop in zip([0, *places], [*places, len(data)], strict=True):
        end.feed(data[begin:stop])
    return end


cuts = st.lists(st.integers(0, 10_000), max_size=12)


@given(
    case=st.sampled_from(NATIVE),
    cuts=cuts,
    line_end=st.sampled_from((b"\n", b"\r\n")),
    behind=st.sampled_from((b"", b"\n", b"\r\n \n\n")),
)
def test_the_last_line_of_a_stream_says_how_it_ended(
    case: tuple[list[bytes], Ending], cuts: list[int], line_end: bytes, behind: bytes
) -> None:
    lines, wanted = case
    data = line_end.join(lines)
    # With and without the last line's own end.
    assert fed(NdjsonEnd(), data, cuts).ending() == wanted
    assert fed(NdjsonEnd(), data + line_end + behind, cuts).ending() == wanted


@given(lines=st.lists(st.binary(max_size=9), max_size=6), cuts=cuts)
def test_the_last_line_with_anything_on_it_is_kept(lines: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(lines)
    wanted = next((line for line in reversed(data.split(b"\n")) if line.strip()), b"")
    kept = fed(LastLine(), data, cuts)
    assert kept.last() == (wanted, False)
    assert kept.at_line_start == (not data or data.endswith(b"\n"))


@pytest.mark.parametrize("size", [LINE_MAX // 2, LINE_MAX, 3 * LINE_MAX])
@pytest.mark.parametrize("piece", [1 << 12, 1 << 16, 1 << 22])
def test_a_long_last_line_is_judged_by_its_two_ends(size: int, piece: int) -> None:
    filler = "x" * size
    cases = (
        (dumps({"context": filler})[:-1] + b',"done": true}\n', Ending(True)),
        (dumps({"context": filler, "done": False}) + b"\n", Ending(False)),
        (b'{"error":' + dumps(filler) + b"}\n", None),
        (b'{"done":true,"x":' + dumps(filler) + b"}\n" + dumps(WORD), Ending(False)),
    )
    for data, wanted in cases:
        end = NdjsonEnd()
        for begin in range(0, len(data), piece):
            end.feed(data[begin : begin + piece])
        found = end.ending()
        if wanted is None:
            assert not found.complete
            assert found.error
        else:
            assert found.complete == wanted.complete
            assert found.error is None


def test_a_line_without_an_end_costs_bounded_memory() -> None:
    kept = LastLine()
    for _ in range(400):
        kept.feed(b"x" * (1 << 16))
        held = sum(sys.getsizeof(part) for part in kept._open)
        assert held <= LINE_MAX + LINE_PART * 4 + (1 << 17)
    line, cut = kept.last()
    assert cut
    assert len(line) <= LINE_MAX + (1 << 17)
    assert not kept.at_line_start
    end = SseEnd()
    for _ in range(100):
        end.feed(b"x" * 999)
    assert len(end._tail) < 1 << 15


CHUNK: Final = b'data: {"choices":[{"delta":{"content":"w\xc3\xb6rd"}}]}'
USAGE: Final = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}'
LAST: Final = b"data: [DONE]"
OVER: Final = (
    b"event: response.completed\n"
    b'data: {"type":"response.completed","response":'
    b'{"usage":{"input_tokens":3,"output_tokens":7}}}'
)
CUT_SHORT: Final = b'data: {"type":"response.incomplete","response":{}}'
FAILED: Final = b'data: {"type":"response.failed","response":{"error":{"message":"gone"}}}'
ERROR: Final = b'data: {"error":{"message":"gone"}}'

EVENTS: Final[tuple[tuple[list[bytes], Ending], ...]] = (
    ([CHUNK, LAST], Ending(True)),
    ([CHUNK, USAGE, LAST], Ending(True, None, 3, 7)),
    ([CHUNK, USAGE], Ending(False, None, 3, 7)),
    ([CHUNK], Ending(False)),
    ([CHUNK, ERROR], Ending(False, "gone")),
    ([CHUNK, ERROR, LAST], Ending(False, "gone")),
    ([CHUNK, OVER], Ending(True, None, 3, 7)),
    ([CHUNK, CUT_SHORT], Ending(True)),
    ([CHUNK, FAILED], Ending(False, "gone")),
    ([b": a comment", LAST, b": another"], Ending(True)),
    ([b"data:[DONE]"], Ending(True)),
    ([b'data: {"content":"data: [DONE]"}'], Ending(False)),
    ([], Ending(False)),
)


@given(case=st.sampled_from(EVENTS), cuts=cuts, line_end=st.sampled_from((b"\n", b"\r\n")))
def test_the_last_events_of_a_stream_say_how_it_ended(
    case: tuple[list[bytes], Ending], cuts: list[int], line_end: bytes
) -> None:
    events, wanted = case
    data = b"".join(event.replace(b"\n", line_end) + line_end * 2 for event in events)
    end = fed(SseEnd(), data, cuts)
    assert end.ending() == wanted
    assert end.at_line_start
    if data:
        # A part of an event is none.
        assert not fed(SseEnd(), data[:-1], cuts).at_line_start


@pytest.mark.parametrize("piece", [1, 3, 1000, 1 << 16])
def test_the_end_of_a_long_response_is_seen(piece: int) -> None:
    document = {"type": "response.completed", "response": {"output": "x" * 30_000}}
    data = CHUNK + b"\n\nevent: response.completed\ndata: " + dumps(document) + b"\n\n"
    end = SseEnd()
    for begin in range(0, len(data), piece):
        end.feed(data[begin : begin + piece])
    assert end.ending().complete


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_a_model_says_ends_no_stream(size: int) -> None:
    said = "event: response.completed\ndata: [DONE]\n\n" + "x" * size
    data = b"data: " + dumps({"choices": [{"delta": {"content": said}}]}) + b"\n\n"
    for piece in (1, 7, 1 << 16):
        end = SseEnd()
        for begin in range(0, len(data), piece):
            end.feed(data[begin : begin + piece])
        assert end.ending() == Ending(False)


@given(data=st.binary(max_size=200), cuts=cuts)
def test_no_bytes_break_a_reader(data: bytes, cuts: list[int]) -> None:
    for end in (
        NdjsonEnd(),
        SseEnd(),
        WholeEnd(native_ending),
        WholeEnd(lambda told: openai_ending(told, Ending(False))),
    ):
        fed(end, data, cuts).ending()


def test_a_whole_answer_is_complete_with_what_it_counts() -> None:
    for body, wanted in (
        (dumps(DONE), Ending(True, None, 3, 7)),
        (b'{"embeddings":[]}', Ending(True)),
        (b"", Ending(True)),
        (b"\x1f\x8b", Ending(True)),
        (b'{"error":"gone"}', Ending(False, "gone")),
        (dumps({"x": "y" * (2 * LINE_MAX), **DONE}), Ending(True)),
    ):
        end = WholeEnd(native_ending)
        for begin in range(0, len(body), 1000):
            end.feed(body[begin : begin + 1000])
        assert end.ending() == wanted
        assert not end.at_line_start


@pytest.mark.parametrize("count", ["7", -1, 1.5, None, True, [7]])
def test_a_count_that_is_none_is_not_counted(count: Any) -> None:
    assert native_ending({"done": True, "eval_count": count}) == Ending(True)
    usage = {"usage": {"completion_tokens": count}}
    assert openai_ending(usage, Ending(True)) == Ending(True)
