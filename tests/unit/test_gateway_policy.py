"""How a model is loaded and stays is the roster's to say: else each client reloads it for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibs.gateway.policy import RUNNER_OPTIONS, is_unload, option_fault, shaped
from tests.placing import WORKER

FREE: Final = replace(WORKER, num_ctx=None, keep_alive=None)
BOUND: Final = replace(WORKER, num_ctx=8192, keep_alive="30m")

SAMPLING: Final = ("temperature", "seed", "num_predict", "stop")
options = st.dictionaries(
    st.sampled_from((*sorted(RUNNER_OPTIONS), *SAMPLING)), st.integers(0, 9), max_size=6
)
bodies = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "options": options | st.none() | st.just("odd"),
        "keep_alive": st.sampled_from((None, 0, -1, "30m", "0s", True)),
        "shift": st.booleans(),
        "prompt": st.just("x"),
        "format": st.just({"z": 1, "a": 2}),
    },
)


@given(fields=bodies, bound=st.booleans())
def test_two_clients_never_differ_in_what_decides_a_load(
    fields: dict[str, Any], bound: bool
) -> None:
    worker = BOUND if bound else FREE
    sent = shaped(fields, worker) or fields
    given_options = sent.get("options")
    found = given_options if isinstance(given_options, dict) else {}
    told = {name: value for name, value in found.items() if name in RUNNER_OPTIONS}
    assert told == ({"num_ctx": 8192} if bound else {})
    assert sent.get("keep_alive") == worker.keep_alive
    assert "shift" not in sent


@given(fields=bodies, bound=st.booleans())
def test_all_else_is_the_client_s(fields: dict[str, Any], bound: bool) -> None:
    before = {**fields}
    sent = shaped(fields, BOUND if bound else FREE)
    assert fields == before
    if sent is None:
        return
    asked = fields.get("options")
    wanted = asked if isinstance(asked, dict) else {}
    said = sent.get("options") or {}
    for name in SAMPLING:
        assert said.get(name) == wanted.get(name)
    ours = ("options", "keep_alive", "shift")
    assert [name for name in sent if name not in ours] == [
        name for name in fields if name not in ours
    ]


def test_what_needs_no_change_is_not_changed() -> None:
    for fields in (
        {"model": "m"},
        {"model": "m", "options": {}},
        {"model": "m", "options": {"seed": 1}, "keep_alive": None},
    ):
        assert shaped(fields, FREE) is None
    same = {"model": "m", "options": {"num_ctx": 8192}, "keep_alive": "30m"}
    assert shaped(same, BOUND) is None


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (None, None),
        ({}, None),
        ({"temperature": 0.5, "seed": 1, "stop": ["x"], "penalize_newline": True}, None),
        ({"temperature": None, "stop": None, "use_mmap": None}, None),
        ({"nobody": "knows"}, None),
        ({"use_mmap": False, "num_ctx": 1}, None),
        ([], "options"),
        ("x", "options"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": True}, "seed"),
        ({"num_ctx": "8192"}, "num_ctx"),
        ({"use_mmap": 1}, "use_mmap"),
        ({"penalize_newline": "yes"}, "penalize_newline"),
        ({"stop": "x"}, "stop"),
        ({"stop": [1]}, "stop"),
    ],
)
def test_an_option_of_a_wrong_type_is_told_before_a_node_fails_by_it(
    said: Any, fault: str | None
) -> None:
    told = option_fault({"options": said})
    assert (told is None) == (fault is None)
    assert told is None or str(fault) in told


@pytest.mark.parametrize("kept", [0, 0.0, "0", "0s", "0m", "-0", "0h0m", "0.0s", "00ms"])
def test_an_unload_is_known_in_every_spelling(kept: Any) -> None:
    assert is_unload({"keep_alive": kept})
    assert is_unload({"keep_alive": kept, "prompt": "", "messages": []})
    answered: tuple[dict[str, Any], ...] = (
        {"prompt": "x"},
        {"messages": [{}]},
        {"images": ["x"]},
    )
    for member in answered:
        assert not is_unload({"keep_alive": kept, **member})


@pytest.mark.parametrize("kept", [None, 1, -1, "5m", "-1m", "", "0x", False, True, [], {}, "300"])
def test_what_keeps_a_model_or_means_nothing_is_no_unload(kept: Any) -> None:
    assert not is_unload({"keep_alive": kept})
    assert not is_unload({})
