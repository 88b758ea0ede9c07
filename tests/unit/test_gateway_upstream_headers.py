"""Which headers pass, both ways: a node hears nothing of the client's keys, origin or hosts."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibs import __version__
from aibs.gateway.upstream import NOT_PASSED_BACK, PASSED_ON, forwarded, passed_back

SECRET: Final = (
    b"authorization",
    b"cookie",
    b"host",
    b"origin",
    b"referer",
    b"proxy-authorization",
    b"x-aibs-priority",
    b"x-forwarded-for",
    b"connection",
    b"content-length",
    b"content-encoding",
    b"transfer-encoding",
    b"expect",
    b"upgrade",
)

names = st.sampled_from((*SECRET, *sorted(PASSED_ON))) | st.binary(min_size=1, max_size=8)


@given(st.lists(st.tuples(names, st.binary(max_size=9)), max_size=9))
def test_a_node_gets_what_is_on_the_list_and_nothing_else(
    headers: list[tuple[bytes, bytes]],
) -> None:
    found = forwarded(headers)
    allowed = {name.decode("latin-1") for name in PASSED_ON}
    assert set(found) <= allowed | {"accept-encoding"}
    # The HTTP client adds its own name and tastes where these are missing.
    assert {"accept", "user-agent", "content-type"} <= set(found)
    assert found["accept-encoding"] == "identity"
    said = dict(headers)
    for name in allowed & set(found):
        if name.encode() in said:
            assert found[name].encode("latin-1") == said[name.encode()]
        else:
            assert found[name] == {
                "content-type": "application/json",
                "accept": "*/*",
                "user-agent": f"aibs/{__version__}",
            }.get(name)


def test_what_a_node_may_hear_is_a_short_list() -> None:
    said = {b"content-type", b"accept", b"user-agent", b"traceparent", b"tracestate"}
    assert set(PASSED_ON) == said


@given(
    st.lists(
        st.tuples(
            st.sampled_from((*sorted(NOT_PASSED_BACK), b"x-own", b"content-length", b"X-Own")),
            st.just(b"1"),
        ),
        max_size=9,
    )
)
def test_a_client_gets_what_is_not_of_one_connection(headers: list[tuple[bytes, bytes]]) -> None:
    wanted = [(k.lower(), v) for k, v in headers if k.lower() not in NOT_PASSED_BACK]
    assert passed_back(headers) == wanted


@pytest.mark.parametrize("named", [b"close, X-Hop", b"x-hop", b" X-HOP ,keep-alive", b"X-Hop,,"])
def test_what_a_connection_names_is_its_own(named: bytes) -> None:
    headers = [(b"X-Hop", b"1"), (b"X-Kept", b"2"), (b"Connection", named), (b"X-AIBS-Node", b"n")]
    assert passed_back(headers) == [(b"x-kept", b"2")]


def test_the_framing_and_the_coding_of_a_body_stay() -> None:
    headers = [
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"7"),
        (b"Content-Encoding", b"gzip"),
        (b"Transfer-Encoding", b"chunked"),
    ]
    assert [name for name, _ in passed_back(headers)] == [
        b"content-type",
        b"content-length",
        b"content-encoding",
    ]
