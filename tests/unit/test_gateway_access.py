"""Who comes in: keys, loopback, names that a browser may bring, bounds, and the way out."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from structlog.testing import capture_logs

from aibs.codec import loads
from aibs.gateway import access, body_guard
from aibs.gateway.access import CALLER, HEADER_BYTES_MAX, HEADERS_MAX, Access
from aibs.gateway.context import Caller
from aibs.gateway.keys import KeyRing
from aibs.gateway.local import is_local_host, is_local_origin, is_local_peer
from tests.gateway_server import context_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


@pytest.fixture(autouse=True)
def _logs_as_they_come() -> None:
    """Whatever another test configured."""
    structlog.reset_defaults()


KEYED = {"AIBS_API_KEYS": "ci:Zqsecret:low,web:Zqother"}
LOCAL = ("127.0.0.1", 50_000)
REMOTE = ("10.4.3.9", 50_000)
SERVER = ("10.4.3.1", 11_500)


class Door:
    """Access around an application that notes what reached it and reads its body."""

    def __init__(
        self, environ: Mapping[str, str] | None = None, app: ASGIApp | None = None
    ) -> None:
        self.context = context_of(environ or {})
        self.reached: list[Scope] = []
        self.body = b""
        self.left = False
        self.access = Access(app or self._app, self.context, KeyRing.of(self.context.settings))

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached.append(scope)
        while True:
            message = await receive()
            self.body += message.get("body", b"")
            if message["type"] == "http.disconnect":
                self.left = True
                # As Starlette does: nobody is there to answer.
                raise ConnectionError("the client left")
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    def ask(
        self,
        path: str = "/api/chat",
        method: str = "GET",
        headers: Sequence[tuple[str, str]] = (("Host", "localhost:11500"),),
        *,
        client: Any = LOCAL,
        server: Any = SERVER,
        body: Sequence[bytes] = (b"",),
    ) -> Answer:
        pieces = list(body)

        async def receive() -> Message:
            if not pieces:
                return {"type": "http.disconnect"}
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        return asyncio.run(self.run(path, method, headers, client, server, receive))

    async def run(
        self,
        path: str,
        method: str,
        headers: Sequence[tuple[str, str]],
        client: Any,
        server: Any,
        receive: Receive,
    ) -> Answer:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(dict(message))

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(n.lower().encode(), v.encode("latin-1")) for n, v in headers],
            "client": client,
            "server": server,
        }
        await self.access(scope, receive, send)
        return Answer(sent)


class Answer:
    def __init__(self, sent: list[Message]) -> None:
        assert sent[0]["type"] == "http.response.start"
        assert all(message["type"] == "http.response.body" for message in sent[1:])
        assert [bool(m.get("more_body")) for m in sent[1:]][-1] is False
        self.status = sent[0]["status"]
        self.headers = dict(sent[0]["headers"])
        self.body = b"".join(message.get("body", b"") for message in sent[1:])

    @property
    def document(self) -> Any:
        return loads(self.body)


# --- with keys


@pytest.mark.parametrize(
    ("name", "value", "caller"),
    [
        ("Authorization", "Bearer Zqsecret", Caller("ci", "low")),
        ("authorization", "bearer Zqother", Caller("web", "high")),
        ("X-API-Key", "Zqsecret", Caller("ci", "low")),
        ("api-key", "Zqother", Caller("web", "high")),
    ],
)
def test_a_key_lets_in_from_anywhere_and_says_who(name: str, value: str, caller: Caller) -> None:
    door = Door(KEYED)
    headers = [("Host", "evil.example"), ("Origin", "http://evil.example"), (name, value)]
    assert door.ask(headers=headers, client=REMOTE).status == 200
    assert door.reached[0][CALLER] == caller


@pytest.mark.parametrize("path", ["/api/chat", "/v1/models", "/status", "/metrics", "/placements"])
def test_without_its_key_nobody_comes_in_not_even_from_here(path: str) -> None:
    door = Door(KEYED)
    for headers in ([], [("Authorization", "Bearer wrong")], [("X-Forwarded-For", "127.0.0.1")]):
        answer = door.ask(path, headers=headers)
        assert (answer.status, answer.headers[b"www-authenticate"]) == (401, b"Bearer")
    assert not door.reached


def test_a_missing_key_is_told_in_the_clients_own_format() -> None:
    door = Door(KEYED)
    native = door.ask("/api/chat", headers=[]).document
    assert native["reason"] == "unauthorized"
    assert native["error"].startswith("An API key is needed")
    openai = door.ask("/v1/models", headers=[("Authorization", "Bearer wrong")]).document
    assert openai["error"] == {
        "message": "The API key is not known here.",
        "type": "authentication_error",
        "param": None,
        "code": "unauthorized",
    }
    assert door.ask("/status", headers=[]).document["reason"] == "unauthorized"


def test_health_is_asked_without_a_key_and_only_asked() -> None:
    door = Door(KEYED)
    for path in ("/health", "/livez", "/readyz"):
        assert door.ask(path, headers=[], client=REMOTE).status == 200
        assert door.ask(path, "HEAD", headers=[], client=REMOTE).status == 200
        assert door.ask(path, "POST", headers=[], client=REMOTE).status == 401
    assert door.ask("/health/", headers=[], client=REMOTE).status == 401


def test_guesses_are_logged_and_do_not_flood_the_log() -> None:
    with capture_logs() as lines:
        door = Door(KEYED)
        for _ in range(50):
            door.ask(headers=[("Authorization", "Bearer Zqguess")], client=REMOTE)
    assert [line["event"] for line in lines] == ["api_key_refused"]
    assert lines[0]["client"] == "10.4.3.9"
    assert "Zq" not in str(lines)


# --- without keys


@pytest.mark.parametrize(
    ("client", "server", "peer"),
    [
        (("127.0.0.1", 1), SERVER, "loopback"),
        (("127.8.9.10", 1), SERVER, "loopback"),
        (("::1", 1, 0, 0), SERVER, "loopback"),
        (("::ffff:127.0.0.1", 1), SERVER, "loopback"),
        (("::ffff:10.0.0.1", 1), SERVER, "remote"),
        (("10.4.3.9", 1), SERVER, "remote"),
        (("fe80::1%eth0", 1), SERVER, "remote"),
        (("0.0.0.0", 1), SERVER, "remote"),
        (("localhost", 1), SERVER, "remote"),
        (("", 0), SERVER, "remote"),
        (None, ("/run/aibs.sock", None), "socket"),
        (None, None, "socket"),
        # A connection whose peer was gone before it could be asked for its address.
        (None, SERVER, "remote"),
    ],
)
def test_only_this_machine_is_this_machine(client: Any, server: Any, peer: str) -> None:
    assert is_local_peer(client, server) == peer
    door = Door()
    answer = door.ask(client=client, server=server)
    assert answer.status == (403 if peer == "remote" else 200)
    if peer == "remote":
        assert "AIBS_API_KEYS" in answer.document["error"]


def test_what_a_proxy_says_of_its_client_is_not_believed() -> None:
    door = Door()
    headers = [("Host", "localhost"), ("X-Forwarded-For", "127.0.0.1"), ("X-Real-IP", "::1")]
    assert door.ask(headers=headers, client=REMOTE).status == 403
    assert door.ask("/health", headers=headers, client=REMOTE).status == 403


LOCAL_HOSTS = (
    *("localhost", "LOCALHOST:11500", "localhost.", "a.b.localhost:1", "127.0.0.1", "127.1.2.3:80"),
    *("[::1]", "[::1]:11500", "[::ffff:127.0.0.1]:1", socket.gethostname()),
    *(f"{socket.gethostname().upper()}:11500", socket.gethostname().partition(".")[0]),
)
OTHER_HOSTS = (
    *("evil.example", "evil.example:11500", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("10.4.3.1", "0.0.0.0", "[::]", "[fe80::1]", "127.0.0.1@evil.example", "localhost:80:80"),
    *("", " ", ":", "localhost/evil", "xlocalhost", "2130706433", "0x7f.1", "127.1", "[::1"),
    *("evil.example#localhost", "localhost\x00", "l\u00f6calhost", f"{'a' * 400}.localhost"),
)


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_a_local_name_is_let_in(host: str) -> None:
    assert is_local_host(host.encode("latin-1"))
    assert Door().ask(headers=[("Host", host)]).status == 200
    assert is_local_origin(f"http://{host}".encode("latin-1"))


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_a_page_that_calls_this_machine_by_its_own_name_is_not(host: str) -> None:
    answer = Door().ask(headers=[("Host", host)])
    assert answer.status == 403
    assert "AIBS_API_KEYS" in answer.document["error"]
    assert Door().ask(headers=[("Host", "localhost"), ("Host", host)]).status == 403
    origin = [("Host", "localhost"), ("Origin", f"http://{host}")]
    assert Door().ask(headers=origin).status == 403


@pytest.mark.parametrize(
    "origin", ["null", "", "localhost", "http://", "*", "://localhost", "f" * 400]
)
def test_a_page_of_nowhere_is_not_let_in(origin: str) -> None:
    assert Door().ask(headers=[("Host", "localhost"), ("Origin", origin)]).status == 403


def test_a_socket_of_the_file_system_has_no_name_to_check() -> None:
    socket_server = ("/run/aibs.sock", None)
    headers = [("Host", "whatever")]
    assert Door().ask(headers=headers, client=None, server=socket_server).status == 200
    assert Door().ask(headers=[], client=None, server=socket_server).status == 200
    headers = [("Host", "x"), ("Origin", "http://evil.example")]
    assert Door().ask(headers=headers, client=None, server=socket_server).status == 403


def test_a_client_of_http_1_0_need_not_name_a_host() -> None:
    assert Door().ask(headers=[]).status == 200


# --- bounds


def test_headers_are_bounded_in_number_and_bytes() -> None:
    door = Door(KEYED)
    key = [("X-API-Key", "Zqother")]
    assert door.ask(headers=[*key, *[("X", "y")] * (HEADERS_MAX - 1)]).status == 200
    many = door.ask(headers=[*key, *[("X", "y")] * HEADERS_MAX])
    long = door.ask(headers=[*key, ("X", "y" * HEADER_BYTES_MAX)])
    path = door.ask("/api/" + "x" * HEADER_BYTES_MAX, headers=key)
    for answer in (many, long, path):
        assert (answer.status, answer.document["reason"]) == (431, "headers_too_large")
        assert answer.headers[b"connection"] == b"close"
    assert len(door.reached) == 1


SMALL = {"AIBS_API_MAX_BODY_BYTES": "1024"}
HOST = ("Host", "localhost")


def test_a_body_announced_too_large_is_not_read() -> None:
    door = Door(SMALL)
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        taken += 1
        return {"type": "http.disconnect"}

    headers = [HOST, ("Content-Length", "1025")]
    answer = asyncio.run(door.run("/v1/completions", "POST", headers, LOCAL, SERVER, receive))
    assert (answer.status, answer.document["error"]["code"]) == (413, "too_large")
    assert not door.reached
    assert door.ask(headers=[HOST, ("Content-Length", "9" * 5000)]).status == 413
    assert door.ask(headers=[HOST, ("Content-Length", "-1")]).status == 400
    assert door.ask(headers=[HOST, ("Content-Length", "\u00b2")]).status == 400


def test_a_body_at_the_limit_passes() -> None:
    for name, value in (("Content-Length", "1024"), ("Transfer-Encoding", "chunked")):
        door = Door(SMALL)
        answer = door.ask(
            "/api/chat", "POST", [HOST, (name, value)], body=[b"x" * 1000, b"", b"y" * 24]
        )
        assert answer.status == 200
        assert door.body == b"x" * 1000 + b"y" * 24


def test_an_unannounced_body_is_counted_and_the_reader_sees_its_client_leave() -> None:
    door = Door(SMALL)
    chunked = [HOST, ("Transfer-Encoding", "chunked")]
    answer = door.ask("/api/chat", "POST", chunked, body=[b"x" * 1000, b"y" * 25, b"z" * 1000])
    assert (answer.status, answer.document["reason"]) == (413, "too_large")
    assert answer.headers[b"connection"] == b"close"
    assert door.left
    assert len(door.body) == 1000


def test_an_announced_body_that_says_less_than_it_is_does_not_pass_either() -> None:
    door = Door(SMALL)
    headers = [HOST, ("Content-Length", "10")]
    assert door.ask("/api/chat", "POST", headers, body=[b"x" * 2000]).status == 413


@pytest.mark.parametrize("bound", ["SILENCE_S", "WHOLE_S"])
def test_a_body_that_trickles_is_given_up(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_guard, bound, 0.05)
    door = Door()

    async def silent() -> Message:
        await asyncio.sleep(3600)
        raise AssertionError

    async def trickling() -> Message:
        await asyncio.sleep(0.001)
        return {"type": "http.request", "body": b"x", "more_body": True}

    receive = silent if bound == "SILENCE_S" else trickling
    headers = [HOST, ("Content-Length", "5000")]
    answer = asyncio.run(door.run("/api/chat", "POST", headers, LOCAL, SERVER, receive))
    assert (answer.status, answer.document["reason"]) == (408, "timeout")
    assert answer.headers[b"connection"] == b"close"
    assert door.left


def test_an_answer_that_began_is_not_followed_by_a_second_one() -> None:
    sent: list[Any] = []

    async def early(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] == "http.request":
            pass
        await send({"type": "http.response.body", "body": b"end"})

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * 600, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/chat",
        "query_string": b"",
        "headers": [(b"transfer-encoding", b"chunked")],
        "client": LOCAL,
        "server": SERVER,
    }
    asyncio.run(Door(SMALL, early).access(scope, receive, send))
    assert [message["type"] for message in sent] == ["http.response.start"]


def test_an_applications_own_fault_is_not_swallowed() -> None:
    async def faulty(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        raise RuntimeError("ours")

    for headers in ([HOST], [HOST, ("Content-Length", "1")]):
        with pytest.raises(RuntimeError, match="ours"):
            Door(app=faulty).ask("/api/chat", "POST", headers, body=[b"x"])


def test_nothing_but_http_comes_in() -> None:
    sent: list[Any] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    door = Door()
    asyncio.run(door.access({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert not door.reached
    asyncio.run(door.access({"type": "lifespan"}, receive, send))
    assert [scope["type"] for scope in door.reached] == ["lifespan"]


# --- the way out


def test_a_process_on_its_way_out_takes_nothing_new() -> None:
    door = Door()
    door.context.draining.on = True
    for path, method in (("/api/chat", "POST"), ("/v1/models", "GET"), ("/placements", "POST")):
        answer = door.ask(path, method)
        assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1"), path
        assert answer.headers[b"connection"] == b"close"
    assert not door.reached


def test_a_process_on_its_way_out_is_watched_and_its_placements_kept() -> None:
    door = Door()
    door.context.draining.on = True
    for path, method in (
        ("/health", "GET"),
        ("/readyz", "GET"),
        ("/status", "GET"),
        ("/metrics", "GET"),
        ("/placements/x/heartbeat", "POST"),
        ("/placements/x", "DELETE"),
        ("/placements", "DELETE"),
    ):
        answer = door.ask(path, method)
        assert (answer.status, answer.headers[b"connection"]) == (200, b"close"), path


def test_refusals_are_counted() -> None:
    counted: list[tuple[Any, ...]] = []

    class Counting:
        def began(self, route: str) -> None:
            counted.append(("began", route))

        def ended(self, route: str, status: int, model: str | None, seconds: float) -> None:
            counted.append(("ended", route, status, model, seconds))

    door = Door()
    object.__setattr__(door.context, "meter", Counting())
    guarded = Access(door._app, door.context, KeyRing.of(door.context.settings))
    door.access = guarded
    door.ask(client=REMOTE)
    assert counted == [("began", "/api/chat"), ("ended", "/api/chat", 403, None, 0.0)]


def test_a_request_that_comes_in_costs_a_few_microseconds() -> None:
    """Not a benchmark: a factor of ten above what it takes, so that only a blunder is seen."""
    door = Door(KEYED)

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        return

    guarded = Access(nothing, door.context, KeyRing.of(door.context.settings))
    names = ("host", "user-agent", "accept", "accept-encoding", "connection", "x-a", "x-b")
    headers = [*((name.encode(), b"some value") for name in names), (b"x-api-key", b"Zqother")]
    scope: Any = {
        "type": "http",
        "method": "GET",
        "path": "/api/tags",
        "raw_path": b"/api/tags",
        "query_string": b"",
        "headers": headers,
        "client": REMOTE,
        "server": SERVER,
    }

    async def run() -> float:
        loop = asyncio.get_running_loop()
        best = 1.0
        for _ in range(20):
            began = loop.time()
            for _ in range(200):
                await guarded(scope, None, None)  # type: ignore[arg-type]
            best = min(best, (loop.time() - began) / 200)
        return best

    assert asyncio.run(run()) < 100e-6
    assert access.OPEN_PATHS <= access.KEPT_WHILE_DRAINING
