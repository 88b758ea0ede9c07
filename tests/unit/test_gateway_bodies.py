"""Bodies are read as Go's encoding/json reads them into structs, or a node runs another model."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibs.codec import loads
from aibs.gateway.bodies import BadBody, fold, read_object

SPELLINGS: Final = {
    "model": ("model", "Model", "MODEL", "mOdEl"),
    "prompt": ("prompt", "Prompt", "PROMPT"),
    "stream": ("stream", "STREAM", "\u017ftream"),
    "options": ("options", "Options", "option\u017f"),
    "keep_alive": ("keep_alive", "KEEP_ALIVE", "\u212aeep_alive"),
    "messages": ("messages", "me\u017fsage\u017f"),
}
STRINGS: Final = ("model", "prompt")

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.text(max_size=5), st.just(1.5)
)
maps = st.dictionaries(st.sampled_from(("num_ctx", "seed", "NUM_CTX")), scalars, max_size=3)


@st.composite
def members(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """An object's members in their order, some of them the same key in other spellings."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from(sorted(SPELLINGS)))
        key = draw(st.sampled_from(SPELLINGS[name]))
        value = draw(maps | st.none() if name == "options" else scalars)
        found.append((key, value))
    # What the same spelling means twice is asked below.
    return list(dict(found).items())


def name_of(key: str) -> str:
    return next(name for name, keys in SPELLINGS.items() if key in keys)


def as_go_reads(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A struct field is set anew each time; null leaves a string, empties a map; a map that is
    there takes what is new.
    """
    struct: dict[str, Any] = {}
    for key, value in pairs:
        name = name_of(key)
        if value is None and name in STRINGS:
            struct.setdefault(name, None)
        elif isinstance(value, dict) and isinstance(struct.get(name), dict):
            struct[name] = {**struct[name], **value}
        else:
            struct[name] = value
    return struct


def text_of(pairs: list[tuple[str, Any]], *, ascii_only: bool) -> bytes:
    parts = [
        f"{json.dumps(key, ensure_ascii=ascii_only)}:{json.dumps(value, ensure_ascii=ascii_only)}"
        for key, value in pairs
    ]
    return ("{" + ",".join(parts) + "}").encode()


@given(pairs=members(), ascii_only=st.booleans(), behind=st.sampled_from((b"", b" ", b"}x")))
def test_every_spelling_is_read_as_go_reads_it(
    pairs: list[tuple[str, Any]], ascii_only: bool, behind: bytes
) -> None:
    raw = text_of(pairs, ascii_only=ascii_only) + behind
    fields, exact = read_object(raw)
    assert fields == as_go_reads(pairs)
    # What may go on as it came says to an exact reader what it says to us.
    if exact:
        assert loads(raw) == fields


@given(pairs=members())
def test_the_order_of_the_members_stays(pairs: list[tuple[str, Any]]) -> None:
    fields, _ = read_object(text_of(pairs, ascii_only=False))
    first = dict.fromkeys(name_of(key) for key, _ in pairs)
    assert list(fields) == list(first)


@given(st.text(max_size=20))
def test_folding_is_go_s(key: str) -> None:
    table = {"\u017f": "s", "\u212a": "k"}
    for name in SPELLINGS:
        folded = "".join(table.get(letter, letter.lower()) for letter in key)
        assert (fold(key) == name) == (folded == name)


def test_of_one_spelling_the_last_wins() -> None:
    assert read_object(b'{"model":"a","model":"b"}') == ({"model": "b"}, True)


def test_nothing_but_an_object_is_a_request() -> None:
    for raw, word in (
        (b"", "missing"),
        (b"\n ", "missing"),
        (b"null", "null"),
        (b"[]", "a list"),
        (b"7", "a number"),
        (b"true", "a boolean"),
        (b'"x"', "a string"),
        (b"{", "not JSON"),
        (b'\xef\xbb\xbf{"model":"a"}', "not JSON"),
        (b'{"x":NaN}', "not JSON"),
        (b'{"x":"\n"}', "not JSON"),
        (b"[" * 100_000, "deep"),
    ):
        with pytest.raises(BadBody, match=word):
            read_object(raw)


def test_what_no_utf8_can_carry_on_is_replaced_as_go_replaces_it() -> None:
    for raw in (b'{"x":"\xff"}', b'{"x":"\\ud800"}', b'{"X":"\\udc00"} '):
        assert read_object(raw)[0] == {"x": "\ufffd"}
    assert read_object(b'{"x":"\\ud83d\\ude42"}')[0] == {"x": "\U0001f642"}


def test_numbers_keep_their_64_bits_and_larger_ones_become_what_the_strict_reader_makes_them() -> (
    None
):
    for number in (2**63 - 1, -(2**63), 2**64 - 1, 2**64, 10**30, -(10**30), 0):
        raw = b'{"x":%d}' % number
        strict, lenient = read_object(raw)[0]["x"], read_object(raw + b" behind")[0]["x"]
        assert strict == lenient
        assert type(strict) is type(lenient)
        if -(2**63) <= number < 2**64:
            assert lenient == number
