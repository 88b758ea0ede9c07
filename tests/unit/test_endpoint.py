"""Every form of a coordination URL, what is refused, and what may be seen of it."""

from __future__ import annotations

import traceback
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from aibs.errors import ConfigurationError
from aibs.eventstore.endpoint import Endpoint, parse_url, redact


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", Endpoint("direct", "redis://h", (("h", 6379),))),
        ("REDIS://h:1/2", Endpoint("direct", "REDIS://h:1/2", (("h", 1),), db=2)),
        ("valkey://h/", Endpoint("direct", "valkey://h/", (("h", 6379),))),
        ("valkey://h?db=4", Endpoint("direct", "valkey://h?db=4", (("h", 6379),), db=4)),
        ("rediss://h:1", Endpoint("direct", "rediss://h:1", (("h", 1),), tls=True)),
        ("valkeys://h:1", Endpoint("direct", "valkeys://h:1", (("h", 1),), tls=True)),
        ("redis://[::1]:7000/0", Endpoint("direct", "redis://[::1]:7000/0", (("::1", 7000),))),
        ("redis://[fe80::1]", Endpoint("direct", "redis://[fe80::1]", (("fe80::1", 6379),))),
        ("unix:///run/v.sock", Endpoint("unix", "unix:///run/v.sock", path="/run/v.sock")),
        (
            "unix:///run/my dir/v@1.sock?db=3",
            Endpoint("unix", "unix:///run/my dir/v@1.sock?db=3", path="/run/my dir/v@1.sock", db=3),
        ),
        (
            "redis+sentinel://a:1,b/service/3",
            Endpoint(
                "sentinel",
                "redis+sentinel://a:1,b/service/3",
                (("a", 1), ("b", 26379)),
                service="service",
                db=3,
            ),
        ),
        (
            "valkeys+sentinel://a/s",
            Endpoint("sentinel", "valkeys+sentinel://a/s", (("a", 26379),), tls=True, service="s"),
        ),
        (
            "valkey+cluster://a:1, b:2/0",
            Endpoint("cluster", "valkey+cluster://a:1, b:2/0", (("a", 1), ("b", 2))),
        ),
        ("rediss+cluster://a", Endpoint("cluster", "rediss+cluster://a", (("a", 6379),), tls=True)),
        ("embedded", Endpoint("embedded", "embedded")),
        ("  embedded\n", Endpoint("embedded", "embedded")),
        (
            "rediss://h?ssl_cert_reqs=none&ssl_ca_certs=/etc/ca.pem",
            Endpoint(
                "direct",
                "rediss://h?ssl_cert_reqs=none&ssl_ca_certs=/etc/ca.pem",
                (("h", 6379),),
                tls=True,
                tls_options=(("ssl_ca_certs", "/etc/ca.pem"), ("ssl_cert_reqs", "none")),
            ),
        ),
    ],
)
def test_each_form_of_a_url_is_read(url: str, expected: Endpoint) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    ("url", "user", "password"),
    [
        ("redis://h", None, None),
        ("redis://:p@h", None, "p"),
        ("redis://u@h", "u", None),
        ("redis://u:p%40%2F%3A%20%C3%A4@h", "u", "p@/: ä"),
        ("redis://u:a:b@h", "u", "a:b"),
        ("redis://u:a@b@h", "u", "a@b"),
        ("unix://u:p@/run/s", "u", "p"),
        ("redis+cluster://u:p@a,b", "u", "p"),
    ],
)
def test_user_and_password_are_read_with_their_escapes(
    url: str, user: str | None, password: str | None
) -> None:
    endpoint = parse_url(url)
    assert (endpoint.username, endpoint.password) == (user, password)


def test_sentinels_have_their_own_user_and_password() -> None:
    endpoint = parse_url(
        "redis+sentinel://u:Zq1@a/s?sentinel_username=Zq2&sentinel_password=Zq%2640"
    )
    assert (endpoint.username, endpoint.password) == ("u", "Zq1")
    assert (endpoint.sentinel_username, endpoint.sentinel_password) == ("Zq2", "Zq&40")
    assert "Zq" not in endpoint.display + repr(endpoint)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "scheme is missing"),
        ("x", "scheme is missing"),
        ("localhost:6379", "scheme is missing"),
        ("Embedded", "scheme is missing"),
        ("http://h:6379", "scheme is http"),
        ("redis:/h", "scheme is missing"),
        ("redis://", "names no host"),
        ("redis://:6379", "names no host"),
        ("redis://a b", "names no host"),
        ("redis://a,", "several hosts|names no host"),
        ("redis://a,b", "several hosts"),
        ("redis://h:0", "port 0 does not exist"),
        ("redis://h:65536", "port 65536 does not exist"),
        ("redis://h:999999", "host:port"),
        ("redis://[::1", "cannot be read"),
        ("redis://h/x", "database is not a number"),
        ("redis://h/-1", "database is not a number"),
        ("redis://h/1/2", "not a database number"),
        ("redis://h/٣", "database is not a number"),
        ("redis://h?db=x", "database is not a number"),
        ("redis://h?timeout=1", "parameter other than"),
        ("redis://h#x", "has a #"),
        ("redis://h#", "has a #"),
        ("redis://ho\nst", "control character"),
        ("redis://h\x1b[31m", "control character"),
        ("unix://", "names no socket"),
        ("unix:///", "names no socket"),
        ("unix://run/v.sock", "does not begin with /"),
        ("redis+sentinel://a", "names no sentinel service"),
        ("redis+sentinel://a/s/x", "database is not a number"),
        ("redis+cluster://a/1", "not a database number"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason_in_one_line(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as raised:
        parse_url(url)
    assert "\n" not in str(raised.value)
    assert str(raised.value).isprintable()
    assert raised.value.mend.startswith("Write redis://")


def test_a_refusal_shows_where_the_url_points_and_not_who_logs_in() -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_url("redis://user:Zqsecret@db.internal:6379/x")
    assert "redis://***@db.internal:6379/x is not" in str(raised.value)


# The password begins and ends with a mark, so that a part of it is found as well as the whole.
SECRETS = st.text(
    st.one_of(
        st.characters(min_codepoint=32, max_codepoint=126), st.sampled_from("/?#@:&=%[]$ \\")
    ),
    max_size=16,
).map(lambda text: f"Zq{text}Zq")
FORMS = (
    "redis://user:{}@host:6379/0",
    "redis://{}:pw@host",
    "redis://{}@host",
    "rediss://:{}@host",
    "valkey://u:{}@[::1]:1/2",
    "valkeys://:{}@host",
    "unix://u:{}@/tmp/s?db=0",
    "redis+cluster://:{}@a:1,b:2",
    "redis+sentinel://u:{}@a:1/service/0",
    "redis+sentinel://a:1/service?sentinel_password={}",
    "redis+sentinel://a:1/service?sentinel_username={}&sentinel_password=x",
    "valkeys+sentinel://u:p@a/s/0?db=1&sentinel_password={}&sentinel_username=x",
    # Mistyped.
    "redis:/u:{}@host",
    "redis:u:{}@host",
    "nonsense:{}@host",
    "nonsense://u:{}@host",
    "redis://u:{}",
    "redis://:{}",
    "u:{}@host",
    "u:{}",
    "redis://u:{}@host:port",
    "redis://u:{}@ho st",
    "redis://u:{}@host?password=Zq",
    "redis://host?password={}",
    "redis://host?sentinel%5Fpassword={}",
    "redis://host?sentinel_p%61ssword={}",
    "redis://u:{}@host\x1b[31m",
)


def _said(url: str) -> str:
    try:
        endpoint = parse_url(url)
    except ConfigurationError as error:
        # A traceback prints the causes too.
        return "".join(traceback.format_exception(error)).replace(repr(url), "")
    return f"{endpoint.display}\n{endpoint!r}\n{endpoint}"


@given(secret=SECRETS, form=st.sampled_from(FORMS))
@example(secret="Zq1?xZq", form="redis://user:{}@host:6379/0")
@example(secret="Zq#xZq", form="redis://user:{}@host:6379/0")
@example(secret="Zq/xZq", form="redis://user:{}@host:6379/0")
@example(secret="Zq@Zq", form="redis+sentinel://a:1/service?sentinel_password={}")
@example(secret="Zq@&?=Zq", form="redis+sentinel://a:1/service?sentinel_password={}")
@example(secret="Zq[Zq", form="redis://user:{}@host:6379/0")
def test_no_part_of_a_password_as_typed_is_ever_seen(secret: str, form: str) -> None:
    # Where the host was forgotten, what stands after an @ is one, for all that anybody can tell.
    assume("@" not in secret or not form.endswith("u:{}"))
    assume("@" not in secret or not form.endswith("://:{}"))
    url = form.format(secret)
    assert "Zq" not in redact(url)
    assert "Zq" not in _said(url)


@given(secret=SECRETS, form=st.sampled_from(FORMS[:12]))
def test_a_password_that_is_escaped_is_read_as_it_is_and_never_seen(secret: str, form: str) -> None:
    url = form.format(quote(secret, safe=""))
    endpoint = parse_url(url)
    assert secret in (
        endpoint.username,
        endpoint.password,
        endpoint.sentinel_username,
        endpoint.sentinel_password,
    )
    assert "Zq" not in redact(url) + endpoint.display + repr(endpoint)


@given(number=st.integers(0, 99_999), tail=st.sampled_from(("/", "?", "#")))
def test_a_password_cut_by_an_unescaped_character_is_refused_not_taken_for_a_port(
    number: int, tail: str
) -> None:
    # redis://user:12/3@host would else be host `user`, port 12.
    with pytest.raises(ConfigurationError, match="%2F") as raised:
        parse_url(f"redis://user:{number}{tail}3@host")
    assert f":{number}" not in str(raised.value)


@given(st.text(max_size=60))
def test_any_text_is_an_endpoint_or_a_refusal_in_one_line(text: str) -> None:
    for url in (text, f"redis://{text}", f"unix://{text}", f"redis+sentinel://{text}"):
        try:
            shown = parse_url(url).display
        except ConfigurationError as error:
            shown = str(error)
        assert shown.isprintable()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", ""),
        ("embedded", "embedded"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("http://10.4.3.16:11434", "http://10.4.3.16:11434"),
        ("localhost:6379", "localhost:6379"),
        ("redis://u:p@h:1/2?db=3", "redis://***@h:1/2?db=3"),
        ("unix:///tmp/a@b?db=1", "unix:///tmp/a@b?db=1"),
        ("redis://h?password=x&db=1", "redis://h?password=***"),
        ("redis://u:pass", "redis://***"),
        ("user:pass", "***"),
    ],
)
def test_what_is_no_secret_stays_to_be_seen(url: str, shown: str) -> None:
    assert redact(url) == shown
