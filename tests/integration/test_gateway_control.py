"""Health, readiness and status of a gateway, and its door, on real sockets and a real pool."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import structlog
from starlette.routing import Router

from aibs import logs
from aibs.codec import loads
from aibs.errors import CoordinationUnavailable
from aibs.eventstore.placement_state import PlacementState
from aibs.gateway import body_guard
from aibs.gateway.control import control_routes
from aibs.gateway.control.answers import Alive, Health, Readiness
from aibs.gateway.control.link import PoolLink
from aibs.reports.status import StatusDocument
from tests.control_plane import environ_of, instance
from tests.gateway_server import context_of, serving
from tests.integration.in_loop import in_loop
from tests.placement_desk import MODEL, desk
from tests.placement_scene import until_true
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.control_plane import Instance
    from tests.placement_desk import Desk
    from tests.valkey_server import ValkeyServer


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Lines of a test's own gateways are no news."""
    logs.configure("error", "json")
    yield
    structlog.reset_defaults()


async def readiness(one: Instance) -> tuple[int, list[str]]:
    answer = await one.client.get("/readyz")
    document = answer.json()
    assert (document["status"] == "ready") == (answer.status_code == 200)
    assert ("retry-after" in answer.headers) == (answer.status_code == 503)
    assert all(reason["detail"].endswith(".") for reason in document["reasons"])
    return answer.status_code, [reason["reason"] for reason in document["reasons"]]


async def until_ready(one: Instance, *reasons: str) -> None:
    async def so() -> bool:
        return await readiness(one) == (503 if reasons else 200, list(reasons))

    await until_true(so, f"readiness {reasons or 'good'}; it is {await readiness(one)}")


@asynccontextmanager
async def behind_proxy(
    server: ValkeyServer, directory: Path
) -> AsyncIterator[tuple[Desk, TcpProxy, Instance]]:
    async with (
        TcpProxy(server.port) as proxy,
        desk(server.url, "control", directory) as table,
        instance(environ_of(table, proxy.url)) as one,
    ):
        yield table, proxy, one


# --- health and readiness


@in_loop
async def test_a_gateway_that_could_place_is_ready_from_its_first_answer_on(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        assert await readiness(one) == (200, [])
        for path in ("/health", "/livez", "/readyz"):
            answer = await one.client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["cache-control"] == "no-store"
            assert (await one.client.head(path)).content == b""
        health = Health.model_validate((await one.client.get("/health")).json())
        assert (health.status, health.mode) == ("ok", "cluster")
        assert health.version
        Alive.model_validate((await one.client.get("/livez")).json())
        Readiness.model_validate((await one.client.get("/readyz")).json())
        assert (await one.client.get("/openapi.json")).json()["openapi"] == "3.1.0"


@in_loop
async def test_a_pool_without_a_fleet_is_not_ready(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    environ = {
        "AIBS_VALKEY_URL": valkey_url,
        "AIBS_MODEL_CLUSTER_NAMESPACE": namespace,
        "AIBS_MODEL_CLUSTER_ENABLED": "true",
        "AIBS_DATA_DIR": str(tmp_path),
    }
    async with instance(environ) as one:
        assert await readiness(one) == (503, ["stale_residency"])
        status = (await one.client.get("/status")).json()
        assert (status["fleet"], status["nodes"]) == (None, [])


@in_loop
async def test_nodes_that_take_nothing_make_it_unready_and_say_why(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        pool = (await table.backend(holder="operator"))._pool
        mark: dict[str, Any] = {"node_id": "box-c", "why": "work", "by": "op"}
        await pool.call("cordon", {**mark, "until_ms": 0})
        await until_ready(one, "node_cordoned")
        await pool.call("uncordon", {"node_id": "box-c", "by": "op"})
        await until_ready(one)


@in_loop
async def test_a_full_fleet_is_ready(valkey_url: str, namespace: str, tmp_path: Path) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path, slots=1) as table,
        instance(environ_of(table)) as one,
    ):
        body = {"request_id": "r1", "model": MODEL}
        assert (await one.client.post("/placements", json=body)).status_code == 201
        await asyncio.sleep(1.1)
        assert await readiness(one) == (200, [])


@in_loop
async def test_while_the_pool_is_away_health_is_good_and_everything_else_says_so_at_once(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with behind_proxy(own_valkey, tmp_path) as (_, proxy, one):
        for mode in ("cut", "hold"):
            await until_ready(one)
            proxy.mode = mode
            await until_ready(one, "coordination_unavailable")
            began_s = time.monotonic()
            for path, status in (("/health", 200), ("/livez", 200), ("/readyz", 503)):
                assert (await one.client.get(path)).status_code == status
            assert (await one.client.get("/metrics")).status_code == 200
            assert time.monotonic() - began_s < 1.0
            answer = await one.client.get("/status")
            assert answer.status_code == 503
            assert answer.json()["reason"] == "coordination_unavailable"
            reasons = (await one.client.get("/readyz")).json()["reasons"]
            assert answer.json()["detail"] == reasons[0]["detail"]
            assert "127.0.0.1" not in answer.text
            assert answer.headers["retry-after"] == "1"
            proxy.mode = "pass"
        await until_ready(one)

        async def shown() -> bool:
            return (await one.client.get("/status")).status_code == 200

        await until_true(shown, "a status again")


@in_loop
async def test_a_pool_that_hangs_under_a_status_costs_it_its_limit_and_no_more(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with behind_proxy(own_valkey, tmp_path) as (_, proxy, one):
        assert (await one.client.get("/status")).status_code == 200
        await asyncio.sleep(1.1)
        proxy.mode = "hold"
        began_s = time.monotonic()
        answers = await asyncio.gather(*(one.client.get("/status") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {503}
        assert time.monotonic() - began_s < 5.0
        proxy.mode = "pass"


@in_loop
async def test_a_process_on_its_way_out_is_alive_and_not_ready(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        one.context.draining.on = True
        health = await one.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "draining")
        assert health.headers["connection"] == "close"
        assert await readiness(one) == (503, ["shutting_down"])
        assert (await one.client.get("/status")).json()["draining"] is True


# --- status


@in_loop
async def test_the_status_is_the_commands_own_document(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path, slots=1) as table,
        instance(environ_of(table)) as one,
    ):
        body = {"request_id": "r1", "model": MODEL}
        lease = (await one.client.post("/placements", json=body)).json()
        asking = asyncio.create_task(
            one.client.post("/placements", json={**body, "request_id": "r2", "wait_seconds": 30})
        )

        async def queued() -> bool:
            return bool((await one.client.get("/status")).json()["queue"])

        await until_true(queued, "a waiter in the status")
        found = (await one.client.get("/status")).json()
        assert (found.pop("mode"), found.pop("draining")) == ("cluster", False)
        document = StatusDocument.model_validate(found)
        assert document.cluster_enabled
        assert [one.lease_id for one in document.leases] == [lease["lease_id"]]
        assert (document.nodes[0].node_id, document.nodes[0].slots_used) == ("box-c", 1)
        assert (document.queue[0].request_id, document.queue[0].holder) == ("r2", "api:env:local")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@in_loop
async def test_many_who_ask_for_the_status_cost_one_reading(
    valkey_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = 0
    read_all = PlacementState.read_all

    async def counting(self: PlacementState) -> Any:
        nonlocal readings
        readings += 1
        return await read_all(self)

    monkeypatch.setattr(PlacementState, "read_all", counting)
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        began_s = time.monotonic()
        answers = await asyncio.gather(*(one.client.get("/status") for _ in range(60)))
        assert {answer.status_code for answer in answers} == {200}
        assert readings <= 1 + int(time.monotonic() - began_s)


@in_loop
async def test_a_log_that_is_set_back_is_read_anew(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with behind_proxy(own_valkey, tmp_path) as (_, _proxy, one):
        assert (await one.client.get("/status")).status_code == 200
        client = own_valkey.client()
        client.flushall()
        client.close()

        async def another() -> bool:
            # Somebody makes the pool anew, as the first request does.
            await one.client.post("/placements", json={"request_id": "r1", "model": MODEL})
            answer = await one.client.get("/status")
            return answer.status_code == 200 and answer.json()["fleet"] is None

        await until_true(another, "the status of the new pool")


# --- the door, on real sockets


async def raw(url: str, sent: list[bytes], *, pause_s: float = 0.0) -> bytes:
    """What comes back for these bytes, up to the connection's end. Sends on while it is read, as a
    client that does not look up.
    """
    loop, address, found = asyncio.get_running_loop(), httpx.URL(url), b""
    with socket.create_connection((address.host, address.port or 80)) as connection:
        connection.setblocking(False)

        async def send() -> None:
            with contextlib.suppress(ConnectionError):
                for piece in sent:
                    await loop.sock_sendall(connection, piece)
                    await asyncio.sleep(pause_s)

        sending = asyncio.create_task(send())
        try:
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionError):
                    while piece := await loop.sock_recv(connection, 65_536):
                        found += piece
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    return found


def parsed(answer: bytes) -> tuple[int, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split(b" ")[1]), loads(body)


HEAD = b"POST /placements HTTP/1.1\r\nHost: localhost\r\n"


@in_loop
async def test_a_client_that_trickles_its_body_is_told_and_cut(
    valkey_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        monkeypatch.setattr(body_guard, "SILENCE_S", 0.2)
        status, document = parsed(await raw(one.url, [HEAD + b"Content-Length: 100\r\n\r\n{"]))
        assert (status, document["reason"]) == (408, "timeout")
        monkeypatch.setattr(body_guard, "SILENCE_S", 5.0)
        monkeypatch.setattr(body_guard, "WHOLE_S", 0.4)
        drops = [HEAD + b"Content-Length: 5000\r\n\r\n", *[b" "] * 100]
        status, document = parsed(await raw(one.url, drops, pause_s=0.01))
        assert (status, document["reason"]) == (408, "timeout")
        assert await readiness(one) == (200, [])


@in_loop
async def test_a_client_that_sends_too_much_sees_its_answer_and_not_a_reset(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    small = {"AIBS_API_MAX_BODY_BYTES": "100000"}
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance({**environ_of(table), **small}) as one,
    ):
        piece = b"x" * 50_000
        for _ in range(5):
            announced = [HEAD + b"Content-Length: 1000000\r\n\r\n", *[piece] * 20]
            status, document = parsed(await raw(one.url, announced))
            assert (status, document["reason"]) == (413, "too_large")
        chunk = b"c350\r\n" + piece + b"\r\n"
        chunked = [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 20, b"0\r\n\r\n"]
        for sent in (chunked, [HEAD + b"Content-Length: 70000\r\n\r\n", b"x" * 70_000]):
            status, document = parsed(await raw(one.url, sent))
            assert (status, document["reason"]) == (413, "too_large")
        assert await readiness(one) == (200, [])


@in_loop
async def test_a_body_that_turns_out_too_large_is_answered_where_it_is_still_sent(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    small = {"AIBS_API_MAX_BODY_BYTES": "10000"}
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance({**environ_of(table), **small}) as one,
    ):
        chunk = b"c350\r\n" + b"x" * 50_000 + b"\r\n"
        chunked = [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 60, b"0\r\n\r\n"]
        for _ in range(5):
            began_s = time.monotonic()
            status, document = parsed(await raw(one.url, chunked))
            assert (status, document["reason"]) == (413, "too_large")
            assert "AIBS_API_MAX_BODY_BYTES" in document["detail"]
            assert time.monotonic() - began_s < 5.0

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(60):
                yield b"x" * 50_000

        # This client sends all of it before it looks for an answer.
        for _ in range(5):
            answer = await one.client.post("/placements", content=pieces())
            assert answer.status_code == 413


@in_loop
async def test_a_client_to_the_pool_is_closed_by_its_last_user(
    valkey_url: str, tmp_path: Path
) -> None:
    """A call that is still under way would open its connection anew, and nobody would close it."""
    context = context_of({"AIBS_VALKEY_URL": valkey_url, "AIBS_DATA_DIR": str(tmp_path)})
    link = PoolLink(context.settings)
    await link.open()
    held = link._held
    assert held is not None
    closed = asyncio.Event()
    close = held.client.aclose

    async def closing() -> None:
        closed.set()
        await close()

    held.client.aclose = closing  # type: ignore[method-assign]
    async with link.use() as client:
        await link.drop()
        assert not closed.is_set()
        await client.time()
    assert closed.is_set()
    with pytest.raises(CoordinationUnavailable):
        async with link.use():
            pass


@in_loop
async def test_bytes_that_are_no_http_harm_nobody(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        for sent in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
            b"GET / HTTP/9.9\r\n\r\n",
            HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
            HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            HEAD + b"Content-Length: x\r\n\r\n",
            b"POST /placements HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n{}",
        ):
            reader_writer = asyncio.create_task(raw(one.url, [sent, b""]))
            done, _ = await asyncio.wait({reader_writer}, timeout=3)
            if done:
                assert b" 201 " not in reader_writer.result()[:20]
            else:
                reader_writer.cancel()
                await asyncio.gather(reader_writer, return_exceptions=True)
        assert await readiness(one) == (200, [])
        assert not await table.events("LeaseAcquired")


@in_loop
async def test_a_socket_of_the_file_system_needs_no_key_and_no_local_name(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        path = str(tmp_path / "s")
        app = one.control.guard(Router(one.control.routes, redirect_slashes=False))
        async with (
            serving(app, path=path),
            httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(uds=path), base_url="http://anything"
            ) as client,
        ):
            assert (await client.get("/readyz")).status_code == 200


def test_the_routes_can_be_looked_at_without_a_running_process(tmp_path: Path) -> None:
    context = context_of({"AIBS_DATA_DIR": str(tmp_path)}, local=False)
    assert sorted(route.path for route in control_routes(context)) == [
        "/health",
        "/livez",
        "/metrics",
        "/openapi.json",
        "/placements",
        "/placements/{lease_id}",
        "/placements/{lease_id}/heartbeat",
        "/readyz",
        "/status",
    ]
