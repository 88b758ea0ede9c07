"""Leases for applications that call Ollama themselves, over HTTP, on a real pool."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from aibs import logs
from aibs.gateway.context import ANYBODY
from aibs.gateway.control.placement_bodies import Denial, Placement, PlacementBody, Refusal
from tests.control_plane import environ_of, instance
from tests.integration.in_loop import in_loop, until
from tests.placement_desk import MODEL, desk
from tests.placement_scene import until_true
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    import httpx

    from tests.control_plane import Instance
    from tests.placement_desk import Desk
    from tests.valkey_server import ValkeyServer

KEYED = {"AIBS_API_KEYS": "ci:Zqci:low,web:Zqweb"}
AT_ONCE_S = 2.0
"""What is refused "at once" is refused within the bound of one call, on a busy machine."""


@asynccontextmanager
async def served(
    url: str,
    namespace: str,
    directory: Path,
    more: Mapping[str, str] | None = None,
    *,
    slots: int = 2,
) -> AsyncIterator[tuple[Desk, Instance]]:
    async with (
        desk(url, namespace, directory, slots=slots) as table,
        instance({**environ_of(table), **(more or {})}) as one,
    ):
        yield table, one


async def place(client: httpx.AsyncClient, request_id: str, **more: Any) -> httpx.Response:
    body = {"request_id": request_id, "model": MODEL, **more}
    return await client.post("/placements", json=body)


async def granted(client: httpx.AsyncClient, request_id: str, **more: Any) -> dict[str, Any]:
    answer = await place(client, request_id, **more)
    assert answer.status_code == 201, answer.text
    lease: dict[str, Any] = answer.json()
    return lease


async def beat(client: httpx.AsyncClient, lease: dict[str, Any]) -> httpx.Response:
    path = f"/placements/{lease['lease_id']}/heartbeat"
    return await client.post(path, json={"token": lease["token"]})


async def give_back(
    client: httpx.AsyncClient, lease: dict[str, Any], call_id: str = "one", **more: Any
) -> httpx.Response:
    body = {"token": lease["token"], "call_id": call_id, **more}
    return await client.request("DELETE", f"/placements/{lease['lease_id']}", json=body)


def refused(answer: httpx.Response, status: int, reason: str) -> str:
    """Its sentence."""
    document = answer.json()
    model = Denial if "nodes" in document else Refusal
    assert set(document) >= set(model.model_validate(document).model_dump())
    assert (answer.status_code, document["reason"]) == (status, reason), answer.text
    sentence = document["detail"]
    assert isinstance(sentence, str)
    assert sentence.endswith((".", "…"))
    return sentence


async def waiting(table: Desk, count: int) -> None:
    async def so_many() -> bool:
        return len((await table.state.read_all()).waiters) == count

    await until_true(so_many, f"{count} waiters")


# --- from the grant to the end


@in_loop
async def test_a_lease_lives_from_its_grant_by_heartbeats_to_its_release(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path) as (table, one):
        answer = await place(one.client, "r1", role="answer", ttl_seconds=60, unheard_of={"a": 1})
        assert answer.status_code == 201
        lease = answer.json()
        assert Placement.model_validate(lease).model_dump() == lease
        assert lease["node_id"] == answer.headers["x-aibs-node"] == "box-c"
        assert lease["lease_id"] == answer.headers["x-aibs-lease"]
        assert (lease["node_base_url"], lease["model"]) == ("http://box-c:11434", MODEL)
        assert (lease["worker_id"], lease["warm"], lease["unload_first"]) == ("answer", False, [])
        assert 59_000 < lease["expires_in_ms"] <= 60_000
        assert isinstance(lease["token"], str)
        assert lease["deadline"].endswith("Z")
        assert lease["queue_ms"] == 0
        (stored,) = (await table.state.leases()).values()
        assert stored["holder"] == "api:env:local"
        assert stored["requester"] == "local"
        assert "api:env:local" not in await table.state.sessions()
        renewed = await beat(one.client, lease)
        assert (renewed.status_code, renewed.json()) == (200, {"expires_in_ms": 60_000})
        for _ in range(2):
            ended = await give_back(one.client, lease)
            assert (ended.status_code, ended.content) == (204, b"")
        refused(await give_back(one.client, lease, "another"), 410, "released")
        refused(await beat(one.client, lease), 410, "released")
        (release,) = await table.events("LeaseReleased")
        assert (release.data["outcome"], release.data["call_id"]) == ("completed", "one")
        await table.nothing_left()


@in_loop
async def test_the_same_request_again_gets_the_first_answer(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, slots=1) as (table, one):
        first = await granted(one.client, "r1")
        again = await granted(one.client, "r1", wait_seconds=5)
        assert (again["lease_id"], again["token"]) == (first["lease_id"], first["token"])
        refused(await place(one.client, "r1", priority="high"), 409, "request_conflict")
        assert (await beat(one.client, first)).status_code == 200
        assert (await give_back(one.client, first)).status_code == 204
        refused(await place(one.client, "r1"), 409, "request_ended")
        await table.nothing_left()


@in_loop
async def test_a_lost_answer_is_cancelled_by_the_requests_id(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    chance = random.Random(7)
    async with served(valkey_url, namespace, tmp_path, slots=1) as (table, one):
        for number in range(50):
            asking = asyncio.create_task(place(one.client, f"r{number}", wait_seconds=20))
            await asyncio.sleep(chance.random() * 0.02)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            gone = await one.client.delete("/placements", params={"request_id": f"r{number}"})
            assert gone.status_code == 204
        assert not await table.state.leases()
        await waiting(table, 0)
        # Cancelled before it was seen: a late question takes nothing.
        gone = await one.client.delete("/placements", params={"request_id": "never"})
        assert gone.status_code == 204
        refused(await place(one.client, "never"), 409, "request_ended")
        await table.nothing_left()


@in_loop
async def test_a_lease_that_was_not_renewed_is_gone_and_says_so_each_time(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, slots=2) as (table, one):
        unheard = await granted(one.client, "r1", ttl_seconds=1.0)
        heard = await granted(one.client, "r2", ttl_seconds=1.0)
        await asyncio.sleep(1.1)
        refused(await beat(one.client, heard), 410, "expired")
        for lease in (unheard, heard):
            for _ in range(2):
                refused(await give_back(one.client, lease), 410, "expired")
            refused(await give_back(one.client, lease, "another"), 410, "expired")
            refused(await beat(one.client, lease), 410, "expired")
        refused(await place(one.client, "r1", ttl_seconds=1.0), 409, "request_ended")
        assert len(await table.events("LateRelease")) == 2
        await table.nothing_left()


@in_loop
async def test_a_lease_that_an_operator_took_back_is_told_so(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path) as (table, one):
        lease = await granted(one.client, "r1")
        backend = await table.backend(holder="operator")
        answer = await backend._pool.call(
            "revoke",
            {
                "lease_id": lease["lease_id"],
                "why": "needed",
                "by": "op",
                "force": 1,
                "heartbeat_ms": 1000,
            },
        )
        assert answer.word == "ok"
        refused(await beat(one.client, lease), 410, "revoked")
        for _ in range(2):
            refused(await give_back(one.client, lease), 410, "revoked")
        await table.nothing_left()


# --- no place


@in_loop
async def test_who_does_not_fit_is_told_why_of_each_node(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, slots=1) as (_, one):
        await granted(one.client, "r1")
        answer = await place(one.client, "r2")
        sentence = refused(answer, 503, "no_slot")
        assert "box-c" in sentence
        document = answer.json()
        (node,) = document["nodes"]
        assert (node["node_id"], node["reason"]) == ("box-c", "no_slot")
        assert node["detail"].startswith("box-c has no free slot")
        assert document["position"] is None
        assert document["retry_after_ms"] > 0
        assert int(answer.headers["retry-after"]) >= 1
        late = await place(one.client, "r3", wait_seconds=0.3)
        refused(late, 503, "wait_timeout")
        assert late.json()["position"] == 1


@in_loop
async def test_what_nobody_serves_is_not_found(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path) as (_, one):
        refused(await place(one.client, "r1", model="gemma:2b"), 404, "unknown_model")
        only_role = {"request_id": "r2", "role": "painter"}
        answer = await one.client.post("/placements", json=only_role)
        refused(answer, 404, "unknown_model")
        assert answer.json()["retry_after_ms"] is None
        assert "retry-after" not in answer.headers


@in_loop
async def test_a_waiting_request_gets_the_place_that_comes_free(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, slots=1) as (table, one):
        first = await granted(one.client, "r1")
        asking = asyncio.create_task(granted(one.client, "r2", wait_seconds=30))
        await waiting(table, 1)
        assert (await give_back(one.client, first)).status_code == 204
        second = await asking
        assert second["queue_ms"] > 0
        assert (await give_back(one.client, second)).status_code == 204
        await table.nothing_left()


@in_loop
async def test_a_full_queue_is_too_many_requests(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    full = {"AIBS_MODEL_CLUSTER_QUEUE_MAX_WAITERS": "1"}
    async with served(valkey_url, namespace, tmp_path, full, slots=1) as (table, one):
        await granted(one.client, "r1")
        asking = asyncio.create_task(place(one.client, "r2", wait_seconds=30))
        await waiting(table, 1)
        answer = await place(one.client, "r3", wait_seconds=30)
        refused(answer, 429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        asking.cancel()
        await waiting(table, 0)


@in_loop
async def test_the_longest_wait_is_the_operators(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    short = {"AIBS_MODEL_CLUSTER_QUEUE_MAX_WAIT_SECONDS": "0.4"}
    async with served(valkey_url, namespace, tmp_path, short, slots=1) as (_, one):
        await granted(one.client, "r1")
        async with asyncio.timeout(10):
            refused(await place(one.client, "r2", wait_seconds=1e9), 503, "wait_timeout")


# --- clients that leave


@in_loop
async def test_a_client_that_leaves_while_it_waits_leaves_nothing(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, slots=1) as (table, one):
        first = await granted(one.client, "first")
        for number in range(20):
            asking = asyncio.create_task(place(one.client, f"r{number}", wait_seconds=60))
            await waiting(table, 1)
            asking.cancel()
            async with asyncio.timeout(5):
                await waiting(table, 0)
        ended = await table.events("WaitEnded")
        assert {event.data["how"] for event in ended} == {"cancelled"}
        assert (await give_back(one.client, first)).status_code == 204
        await table.nothing_left()


@in_loop
async def test_one_of_two_who_ask_for_the_same_may_leave(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, slots=1) as (table, one):
        first = await granted(one.client, "first")
        leaving, staying = (
            asyncio.create_task(place(one.client, "r1", wait_seconds=30)) for _ in range(2)
        )
        await until(lambda: [flight.clients for flight in flights_of(one)] == [2])
        await waiting(table, 1)
        leaving.cancel()
        await until(lambda: [flight.clients for flight in flights_of(one)] == [1])
        assert (await give_back(one.client, first)).status_code == 204
        answer = await staying
        assert answer.status_code == 201
        assert (await give_back(one.client, answer.json())).status_code == 204
        await table.nothing_left()


async def leaves_at_the_grant(one: Instance, request_id: str) -> None:
    """A client that is gone when its request was answered by the pool, and before it is told."""
    placements = one.control._placements
    asked = placements._asked(
        ANYBODY, PlacementBody.model_validate({"request_id": request_id, "model": MODEL})
    )
    client = asyncio.create_task(placements._flights.grant(asked))
    # One turn of the loop, and it has taken off; the pool's answer is not there yet.
    await asyncio.sleep(0)
    (flight,) = flights_of(one)
    assert flight.task is not None
    flight.task.add_done_callback(lambda _: client.cancel())
    with pytest.raises(asyncio.CancelledError):
        await client


def flights_of(one: Instance) -> list[Any]:
    return list(one.control._placements._flights._flights.values())


@in_loop
async def test_a_grant_that_nobody_waits_for_any_more_is_given_back(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, slots=1) as (table, one):
        await leaves_at_the_grant(one, "r1")

        async def given_back() -> bool:
            return bool(await table.events("LeaseReleased"))

        await until_true(given_back, "the grant given back")
        await table.nothing_left()


@in_loop
async def test_a_repetition_that_leaves_ends_nobodys_lease(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    """The first answer is in somebody's hands."""
    async with served(valkey_url, namespace, tmp_path, slots=1) as (table, one):
        lease = await granted(one.client, "r1")
        await leaves_at_the_grant(one, "r1")
        await one.context.placer.endings.settle(1.0)
        assert (await beat(one.client, lease)).status_code == 200
        assert (await give_back(one.client, lease)).status_code == 204
        await table.nothing_left()


# --- keys


@in_loop
async def test_another_keys_lease_is_unknown(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, KEYED) as (table, one):
        ci, web = one.key("Zqci"), one.key("Zqweb")
        lease = await granted(ci, "r1", priority="low")
        (stored,) = (await table.state.leases()).values()
        assert (stored["holder"], stored["requester"]) == ("api:env:ci", "ci")
        refused(await beat(web, lease), 410, "unknown")
        refused(await give_back(web, lease), 410, "unknown")
        forged = {**lease, "lease_id": lease["lease_id"].replace("r1", "r2")}
        refused(await give_back(ci, forged), 410, "unknown")
        refused(await beat(ci, {**lease, "token": "1"}), 410, "unknown")
        refused(await give_back(ci, {**lease, "token": "1"}), 410, "unknown")
        # The same name is another request of another key's.
        gone = await web.delete("/placements", params={"request_id": "r1"})
        assert gone.status_code == 204
        assert (await beat(ci, lease)).status_code == 200
        other = await granted(web, "r2")
        assert (await give_back(ci, lease)).status_code == 204
        refused(await give_back(web, lease), 410, "unknown")
        assert (await give_back(web, other)).status_code == 204
        await table.nothing_left()


@in_loop
async def test_a_process_of_ours_that_asks_by_the_keys_name_keeps_its_lease(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, KEYED) as (table, one):
        ci = one.key("Zqci")
        placer = one.context.placer
        asked = placer.lease(
            model=MODEL, request_id="r1", requester="ci", priority="low", timeout=0
        )
        async with asked as held:
            forged = {"lease_id": held.lease_id, "token": held.grant.token}
            refused(await beat(ci, forged), 410, "unknown")
            refused(await give_back(ci, forged), 410, "unknown")
            # With the very same parameters: it is the same request, and not this holder's.
            refused(await place(ci, "r1", priority="low"), 409, "request_conflict")
            assert (await table.counts())["LeaseAcquired"] == 1
            assert held.error is None
            assert len(await table.state.leases()) == 1
        await table.nothing_left()


@in_loop
async def test_no_key_asks_for_more_than_it_may(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, KEYED) as (table, one):
        ci = one.key("Zqci")
        for priority in ("high", "normal"):
            sentence = refused(await place(ci, "r1", priority=priority), 403, "forbidden")
            assert "low at most" in sentence
        refused(await place(one.key("Zqwrong"), "r1"), 401, "unauthorized")
        assert not await table.state.leases()


@in_loop
async def test_who_names_no_priority_asks_for_what_the_key_may_have(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, KEYED, slots=1) as (table, one):
        ci, web = one.key("Zqci"), one.key("Zqweb")
        lease = await granted(web, "r0")
        asked: tuple[tuple[httpx.AsyncClient, dict[str, Any], str], ...] = (
            (ci, {}, "low"),
            (ci, {"priority": None}, "low"),
            (ci, {"priority": "low"}, "low"),
            (web, {}, "normal"),
        )
        waits = [
            asyncio.create_task(place(client, f"r{number}", wait_seconds=30, **more))
            for number, (client, more, _) in enumerate(asked, 1)
        ]
        await waiting(table, len(asked))
        queued = await table.events("LeaseQueued")
        waiters = [event.data["waiter"] for event in queued]
        classes = {one["request_key"].rpartition("|")[2]: one["class"] for one in waiters}
        assert classes == {f"r{number}": class_ for number, (_, _, class_) in enumerate(asked, 1)}
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await give_back(web, lease)


# --- several instances, and one after the other


@in_loop
async def test_any_instance_takes_the_calls_of_another(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        served(valkey_url, namespace, tmp_path, KEYED) as (table, one),
        instance({**environ_of(table), **KEYED}, key="Zqweb") as two,
    ):
        here, there = one.key("Zqweb"), two.client
        # Characters that no path may have come in ids that clients choose.
        name = 'a/b?"c" ü%20|#'
        lease = await granted(here, name)
        assert (await granted(there, name))["lease_id"] == lease["lease_id"]
        assert (await beat(there, lease)).status_code == 200
        assert (await give_back(there, lease)).status_code == 204
        assert (await give_back(here, lease)).status_code == 204
        refused(await give_back(here, lease, "other"), 410, "released")
        refused(await beat(here, lease), 410, "released")
        second = await granted(here, "r2")
        gone = await there.delete("/placements", params={"request_id": "r2"})
        assert gone.status_code == 204
        refused(await beat(here, second), 410, "released")
        await table.nothing_left()


@in_loop
async def test_a_request_that_waits_at_one_instance_is_granted_at_another(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        served(valkey_url, namespace, tmp_path, slots=1) as (table, one),
        instance(environ_of(table)) as two,
    ):
        first = await granted(one.client, "first")
        waits = [
            asyncio.create_task(granted(at.client, "r1", wait_seconds=30)) for at in (one, two)
        ]
        await waiting(table, 1)
        await give_back(two.client, first)
        found = await asyncio.gather(*waits)
        assert found[0]["lease_id"] == found[1]["lease_id"]
        assert (await give_back(two.client, found[0])).status_code == 204
        await table.nothing_left()


@in_loop
async def test_who_asks_for_the_same_without_waiting_takes_nobodys_place(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        served(valkey_url, namespace, tmp_path, slots=1) as (table, one),
        instance(environ_of(table)) as two,
    ):
        first = await granted(one.client, "first")
        asking = asyncio.create_task(granted(one.client, "r1", wait_seconds=30))
        await waiting(table, 1)
        refused(await place(two.client, "r1"), 503, "wait_timeout")
        await two.context.placer.endings.settle(1.0)
        await give_back(two.client, first)
        assert (await give_back(two.client, await asking)).status_code == 204
        await table.nothing_left()


@in_loop
async def test_a_restarted_instance_finds_the_leases_alive(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with desk(valkey_url, namespace, tmp_path, slots=2) as table:
        async with instance(environ_of(table)) as one:
            lease = await granted(one.client, "r1")
            ended = await granted(one.client, "r2")
            await give_back(one.client, ended)
        assert len(await table.state.leases()) == 1
        async with instance(environ_of(table)) as again:
            assert (await beat(again.client, lease)).status_code == 200
            assert (await granted(again.client, "r1"))["token"] == lease["token"]
            assert (await give_back(again.client, ended)).status_code == 204
            assert (await give_back(again.client, lease)).status_code == 204
        await table.nothing_left()


@in_loop
async def test_a_process_on_its_way_out_ends_waits_and_no_lease(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path, slots=1) as (table, one):
        lease = await granted(one.client, "r1")
        asking = asyncio.create_task(place(one.client, "r2", wait_seconds=60))
        await waiting(table, 1)
        one.context.draining.on = True
        late = await place(one.client, "r3")
        assert (await beat(one.client, lease)).status_code == 200
        async with asyncio.timeout(10):
            ended = await asking
        for answer in (late, ended):
            sentence = refused(answer, 503, "shutting_down")
            # The contract's members, and no word that the same request would not do again.
            assert Denial.model_validate(answer.json()).model_dump() == answer.json()
            assert "new request_id" not in sentence
            assert answer.headers["retry-after"] == "1"
        # It keeps its place for a while: the same request goes on at another instance.
        await waiting(table, 1)
        async with instance(environ_of(table)) as other:
            again = asyncio.create_task(granted(other.client, "r2", wait_seconds=30))
            early = asyncio.create_task(granted(other.client, "r3", wait_seconds=30))
            await waiting(table, 2)
            assert (await give_back(one.client, lease)).status_code == 204
            second = await again
            assert (await give_back(other.client, second)).status_code == 204
            assert (await give_back(other.client, await early)).status_code == 204
        assert len(await table.events("LeaseQueued")) == 2
        await table.nothing_left()


@in_loop
async def test_a_question_under_way_as_the_process_ends_leaves_no_lease_behind(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with (
        TcpProxy(own_valkey.port) as proxy,
        desk(own_valkey.url, "doubt", tmp_path, slots=2) as table,
        instance(environ_of(table, proxy.url)) as one,
    ):
        assert (await give_back(one.client, await granted(one.client, "r0"))).status_code == 204
        proxy.mode = "drop_replies"
        asking = asyncio.create_task(place(one.client, "r1", wait_seconds=60))

        async def asked() -> bool:
            return len(await table.state.leases()) == 1

        await until_true(asked, "a grant whose answer is on its way")
        closing = asyncio.create_task(one.control._placements.close())
        await asyncio.sleep(0.05)
        proxy.mode = "pass"
        await closing
        refused(await asking, 503, "shutting_down")

        async def nothing() -> bool:
            return not await table.state.leases()

        await until_true(nothing, "the grant given back")


# --- the coordination server is away


@in_loop
async def test_without_the_coordination_server_every_call_is_refused_at_once(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with (
        TcpProxy(own_valkey.port) as proxy,
        desk(own_valkey.url, "away", tmp_path, slots=2) as table,
        instance(environ_of(table, proxy.url)) as one,
    ):
        lease = await granted(one.client, "r1")
        for mode in ("cut", "hold"):
            proxy.mode = mode
            await place(one.client, f"first-{mode}")
            for call in (
                place(one.client, f"r-{mode}", wait_seconds=60),
                place(one.client, f"s-{mode}"),
                beat(one.client, lease),
                give_back(one.client, lease, mode),
                one.client.delete("/placements", params={"request_id": "r1"}),
            ):
                async with asyncio.timeout(AT_ONCE_S):
                    answer = await call
                sentence = refused(answer, 503, "coordination_unavailable")
                assert int(answer.headers["retry-after"]) >= 1
                # Where the server is, and what the system said of it, is the log's.
                assert str(proxy.port) not in sentence
                assert "127.0.0.1" not in sentence
                document = Denial.model_validate(answer.json()).model_dump()
                assert document == answer.json()
            proxy.mode = "pass"

            async def served_again() -> bool:
                return (await beat(one.client, lease)).status_code == 200

            await until_true(served_again, "the pool reached again")
        await give_back(one.client, lease)

        # What was on its way while the answers were lost is cancelled.
        async def nothing() -> bool:
            parts = await table.state.read_all()
            return not parts.leases and not parts.waiters

        await until_true(nothing, "nothing left")


@in_loop
async def test_a_lost_answer_to_a_release_is_asked_for_again(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with (
        TcpProxy(own_valkey.port) as proxy,
        desk(own_valkey.url, "lost", tmp_path, slots=2) as table,
        instance(environ_of(table, proxy.url)) as one,
    ):
        lease = await granted(one.client, "r1")
        proxy.mode = "drop_replies"
        refused(await give_back(one.client, lease), 503, "coordination_unavailable")
        proxy.mode = "pass"

        async def released() -> bool:
            return (await give_back(one.client, lease)).status_code == 204

        await until_true(released, "released")
        assert len(await table.events("LeaseReleased")) <= 1
        assert not await table.events("DoubleRelease")


# --- hostile and mistaken


NAMES_IT = "it has to be a text of 1 to 128 bytes that names the request."
FROM_0 = "it has to be a number of seconds from 0 on."

BAD_BODIES: tuple[tuple[str, str], ...] = (
    ("", "request_id is missing"),
    ("nonsense", "not JSON"),
    ("[]", "not a JSON object"),
    ("null", "not a JSON object"),
    ("{}", "request_id is missing"),
    ('{"request_id":1,"model":"m"}', f"The field request_id is 1: {NAMES_IT}"),
    ('{"request_id":"","model":"m"}', f"The field request_id is empty: {NAMES_IT}"),
    ('{"request_id":null,"model":"m"}', f"The field request_id is null: {NAMES_IT}"),
    (f'{{"request_id":["{"x" * 90}"]}}', f'The field request_id is ["{"x" * 38}…: {NAMES_IT}'),
    ('{"request_id":"r"}', "a model, a role, or both"),
    (
        '{"request_id":"r","model":7}',
        "The field model is 7: it has to be a model of the roster, as text.",
    ),
    ('{"request_id":"r","model":"a b"}', "no model's name"),
    ('{"request_id":"r","role":"a|b"}', "no role's name"),
    (
        '{"request_id":"r","model":"m","priority":"top"}',
        'The field priority is "top": it has to be high, normal or low.',
    ),
    ('{"request_id":"r","model":"m","wait_seconds":-1}', f"wait_seconds is -1: {FROM_0}"),
    ('{"request_id":"r","model":"m","wait_seconds":"5"}', f'wait_seconds is "5": {FROM_0}'),
    ('{"request_id":"r","model":"m","wait_seconds":true}', f"wait_seconds is true: {FROM_0}"),
    ('{"request_id":"r","model":"m","ttl_seconds":0}', "ttl_seconds is 0: it has to be a number"),
    ('{"request_id":"r","model":"m","ttl_seconds":1e6}', "ttl_seconds is larger than 900"),
    ('{"request_id":"r\\u0000","model":"m"}', f"a character that cannot be printed: {NAMES_IT}"),
    ('{"request_id":"r\\n","model":"m"}', f"a character that cannot be printed: {NAMES_IT}"),
    ('{"request_id":"r\\ud800","model":"m"}', "not JSON"),
    (f'{{"request_id":"{"r" * 129}","model":"m"}}', f"is longer than 128 bytes: {NAMES_IT}"),
    (f'{{"request_id":"{"ü" * 65}","model":"m"}}', f"is longer than 128 bytes: {NAMES_IT}"),
    (f'{{"request_id":"r","model":{"[" * 5000}{"]" * 5000}}}', ""),
)


@in_loop
async def test_what_cannot_be_understood_is_refused_with_a_sentence(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path) as (table, one):
        for body, said in BAD_BODIES:
            answer = await one.client.post("/placements", content=body.encode())
            assert said in refused(answer, 400, "bad_request"), body[:100]
        huge = json.dumps({"request_id": "r", "model": "m", "more": "x" * 70_000})
        refused(await one.client.post("/placements", content=huge), 413, "too_large")
        assert not await table.events("LeaseAcquired", "LeaseDenied", "LeaseQueued")


@in_loop
async def test_ids_that_are_not_ours_are_unknown_and_break_nothing(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path) as (table, one):
        lease = await granted(one.client, "r1")
        for name in (
            *("x", "0" * 16, f"{'0' * 16}.r1", f"{'0' * 16}~!!", f"{'0' * 16}~{'A' * 199}"),
            *(f"{'0' * 16}~_w", f"{'0' * 16}.a|b", "%00", "%2e%2e", "a%22b", "*", "x" * 4000),
            *(f"{lease['lease_id']}x", lease["lease_id"].upper()),
        ):
            path = f"/placements/{name}"
            body = {"token": lease["token"]}
            answer = await one.client.request("DELETE", path, json=body)
            refused(answer, 410, "unknown")
            refused(await one.client.post(f"{path}/heartbeat", json=body), 410, "unknown")
        odd: tuple[Any, ...] = ("", "9" * 33, None, True, 1.5, [], "1 2", '"', "1\x00")
        for token in odd:
            answer = await one.client.request(
                "DELETE", f"/placements/{lease['lease_id']}", json={"token": token}
            )
            assert answer.status_code in (400, 410), token
        assert (await beat(one.client, lease)).status_code == 200
        # A token is a number to some clients; a release's name may be any text.
        path = f"/placements/{lease['lease_id']}"
        evil = {"token": int(lease["token"]), "call_id": '","x":"\n\u2028 é}', "outcome": "failed"}
        for _ in range(2):
            assert (await one.client.request("DELETE", path, json=evil)).status_code == 204
        (release,) = await table.events("LeaseReleased")
        assert release.data["outcome"] == "failed"
        await table.nothing_left()


@in_loop
async def test_a_release_needs_no_body_and_no_name(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path) as (table, one):
        lease = await granted(one.client, "r1")
        path = f"/placements/{lease['lease_id']}"
        assert (await one.client.delete(path)).status_code == 400
        for _ in range(2):
            ended = await one.client.delete(path, params={"token": lease["token"]})
            assert ended.status_code == 204
        await table.nothing_left()


@in_loop
async def test_another_method_is_told_which_there_are(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with served(valkey_url, namespace, tmp_path) as (_, one):
        for path, method, allowed in (
            ("/placements", "GET", "DELETE, POST"),
            ("/placements/x", "POST", "DELETE"),
            ("/placements/x/heartbeat", "GET", "POST"),
            ("/status", "POST", "GET, HEAD"),
        ):
            answer = await one.client.request(method, path)
            refused(answer, 405, "method_not_allowed")
            assert answer.headers["allow"] == allowed
        refused(await one.client.delete("/placements"), 400, "bad_request")
        for request_id in ("r\n", "x" * 129):
            gone = await one.client.delete("/placements", params={"request_id": request_id})
            refused(gone, 400, "bad_request")


# --- without a pool


@in_loop
async def test_a_process_that_admits_by_itself_serves_them_too(tmp_path: Path) -> None:
    environ = {
        "AIBS_MODEL_CLUSTER_NODE_IDS": "box-c",
        "AIBS_MODEL_CLUSTER_NODE_URLS": "http://box-c:11434",
        "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": "80",
        "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": "1",
        "AIBS_MODEL_ADMISSION_WORKER_ROSTER": '[{"worker_id":"a","model":"llama3:8b","kind":"chat",'
        '"resident_weight_gb":7,"active_parameter_billions":8}]',
        "AIBS_DATA_DIR": str(tmp_path),
    }
    async with instance(environ) as one:
        lease = await granted(one.client, "r1")
        assert lease["deadline"] > "2020"
        asking = asyncio.create_task(granted(one.client, "r2", wait_seconds=30))

        async def queued() -> bool:
            return bool((await one.client.get("/status")).json()["queue"])

        await until_true(queued, "a waiter in the status")
        status = (await one.client.get("/status")).json()
        assert (status["mode"], status["cluster_enabled"]) == ("local", False)
        assert [one["lease_id"] for one in status["leases"]] == [lease["lease_id"]]
        assert status["nodes"][0]["slots_used"] == 1
        assert (await beat(one.client, lease)).json() == {"expires_in_ms": 900_000}
        for _ in range(2):
            assert (await give_back(one.client, lease)).status_code == 204
        refused(await give_back(one.client, lease, "another"), 410, "released")
        second = await asking
        refused(await beat(one.client, {**second, "token": "0"}), 410, "unknown")
        gone = await one.client.delete("/placements", params={"request_id": "r2"})
        assert gone.status_code == 204
        refused(await beat(one.client, second), 410, "released")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Lines of a test's own gateways are no news."""
    logs.configure("error", "json")
    yield
    structlog.reset_defaults()
