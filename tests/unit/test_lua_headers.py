"""Each script's header against its code: what is declared is used, what is used is declared."""

from __future__ import annotations

import re

import pytest

from aibs.eventstore.events import EVENT_TYPES
from aibs.eventstore.scripts import build, packaged, parse_header, script_names, source

NOT_KEYS = {"request", "own", "busy"}
"""Names of requests and models, not of the server's keys."""

POLL_WORDS = re.compile(r"^-- Polls: (.*)$", re.MULTILINE)


def _code(text: str) -> str:
    """The text without comments."""
    return "\n".join(line.partition("--")[0] for line in text.splitlines())


def _whole(name: str) -> str:
    """A script's code, its includes' too."""
    return _code(packaged(name).text)


@pytest.mark.parametrize("name", script_names())
def test_declared_keys_are_used_and_used_keys_are_declared(name: str) -> None:
    header = packaged(name).header
    body = _code(source(f"{name}.lua")) + "".join(
        _code(source(f"include/{include}.lua")) for include in _includes(name)
    )
    used = set(re.findall(r"\b([a-z_]+)_key\b", body)) - NOT_KEYS
    declared = {key.rstrip("*") for key in header.keys}
    plain = {key for key in header.keys if not key.endswith("*")}
    assert plain <= used, "declared and not used"
    assert used <= declared, "used and not declared: refused by a cluster"
    assert "KEYS[" not in body.replace("KEYS[first_", ""), "keys go by their names"


def _includes(name: str) -> list[str]:
    found: list[str] = []
    todo = [*packaged(name).header.includes, "int"]
    while todo:
        include = todo.pop()
        if include not in found:
            found.append(include)
            todo += parse_header(source(f"include/{include}.lua")).includes
    return found


@pytest.mark.parametrize("name", script_names())
def test_replies_are_the_declared_words(name: str) -> None:
    own = set(re.findall(r"return \{ '([a-z_]+)'", _code(source(f"{name}.lua"))))
    header = packaged(name).header
    assert own <= set(header.replies), "answered and not declared"
    # An answer may be made in an include, or kept in a name first.
    assert set(header.replies) <= set(re.findall(r"'([a-z_]+)'", _whole(name))), "never answered"


@pytest.mark.parametrize("name", script_names())
def test_events_are_the_declared_types_and_known_to_the_readers(name: str) -> None:
    whole = _whole(name)
    appended = set(re.findall(r"append\('(\w+)'", whole))
    appended |= {"OwnerExpired"} if "end_term(" in _code(source(f"{name}.lua")) + whole else set()
    declared = set(packaged(name).header.events)
    assert declared <= set(EVENT_TYPES)
    own = set(re.findall(r"append\('(\w+)'", _code(source(f"{name}.lua"))))
    assert own <= declared, "appended and not declared"
    if "'resigned'" in _code(source(f"{name}.lua")):
        declared = declared - {"OwnerResigned"}
    assert declared <= appended, "declared and never appended"


def test_a_polls_words_are_the_declared_ones() -> None:
    text = source("observe.lua")
    match = POLL_WORDS.search(text)
    assert match is not None
    judge = text[text.index("local function judge") : text.index("local function next_stamp")]
    assert set(re.findall(r"'([a-z_]+)'", judge)) - {"base_url"} == set(match.group(1).split())


@pytest.mark.parametrize("name", script_names())
def test_time_is_read_once_and_numbers_are_printed_by_one_function(name: str) -> None:
    whole = _whole(name)
    assert whole.count("redis.call('TIME')") == 1
    # Text alone is left to it, in one place.
    assert whole.count("cjson.encode") == 1, "cjson prints 14 digits and empty lists as {}"
    assert "tostring(" not in whole, "tostring prints 14 digits"


@pytest.mark.parametrize("name", script_names())
def test_a_script_that_frees_or_keeps_alive_runs_on_a_full_server(name: str) -> None:
    takes_or_marks = {
        "declare",
        "acquire",
        "admit",
        "cordon",
        "uncordon",
        "trip",
        "forget",
        "acknowledge",
        "record",
        "snapshot_part",
        "snapshot",
    }
    flags = packaged(name).header.flags
    assert ("allow-oom" in flags or "no-writes" in flags) == (name not in takes_or_marks)


@pytest.mark.parametrize("name", script_names())
def test_no_local_hides_what_an_include_shares(name: str) -> None:
    hidden = re.findall(
        r"local [^\n=]*shared\.\w+|function[^\n(]*\([^\n)]*shared\.\w+|for [^\n]*shared\.\w+[ ,=]",
        _whole(name),
    )
    assert [line for line in hidden if " in " not in line] == []


@pytest.mark.parametrize("name", script_names())
def test_shared_names_are_assigned_one_a_line(name: str) -> None:
    exports = {
        export
        for include in _includes(name)
        for export in parse_header(source(f"include/{include}.lua")).exports
    }
    for line in _whole(name).splitlines():
        match = re.match(r"\s*(?:local )?[\w.\[\]]+(?:, *[\w.\[\]]+)+ *= *[^=]", line)
        if match and "{" not in line:
            left = line.partition("=")[0]
            bare = set(re.findall(r"(?<![.\w])([A-Za-z_]\w*)", left)) - {"local"}
            assert not exports & bare, line


def test_an_include_that_includes_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="includes itself"):
        build("open", {"pool": "-- Include: term", "term": "-- Include: pool"})


def test_a_script_is_the_same_text_every_time() -> None:
    for name in script_names():
        assert build(name).sha == packaged(name).sha


@pytest.mark.parametrize("name", script_names())
def test_a_script_carries_no_function_that_it_cannot_come_to(name: str) -> None:
    """Each call of a script creates all functions of its text."""
    code = re.sub(r"--[^\n]*|\w+ = false[,\s]", "", build(name).text)
    made = re.findall(r"^(?:local )?function (?:shared\.)?(\w+)\(", code, re.MULTILINE)
    assert [one for one in made if len(re.findall(rf"\b{one}\b", code)) < 2] == []
