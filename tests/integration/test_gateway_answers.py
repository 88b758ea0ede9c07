"""What a gateway answers by itself: counted once each, every refusal with its code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import openai
import pytest

from aibs.errors import CoordinationUnavailable, FleetMismatch
from aibs.gateway import fleet_view
from aibs.gateway.installed import not_installed
from tests.integration.in_loop import in_loop, until
from tests.local_gateway import MODEL, PlainNode, local_gateway

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

HI: Any = [{"role": "user", "content": "hi"}]


def code_of(answer: httpx.Response) -> tuple[int, str | None]:
    """The status and the code, in whichever format."""
    document = answer.json()
    if answer.request.url.path.startswith("/v1/"):
        return answer.status_code, document["error"]["code"]
    return answer.status_code, document["reason"]


@in_loop
async def test_every_request_is_counted_once_under_a_label_of_the_gateway_s_own(
    tmp_path: Path,
) -> None:
    async with local_gateway(tmp_path, {"box-a": PlainNode([MODEL])}) as one:
        asked: list[tuple[str, str, int, str]] = [
            ("GET", "/", 200, "/"),
            ("GET", "/api/tags", 200, "/api/tags"),
            ("GET", "/api/ps", 200, "/api/ps"),
            ("GET", "/api/version", 200, "/api/version"),
            ("GET", "/v1/models", 200, "/v1/models"),
            ("GET", f"/v1/models/{MODEL}", 200, "/v1/models/{model}"),
            ("GET", "/v1/models/nobody", 404, "/v1/models/{model}"),
            ("POST", "/api/tags", 405, "/api/tags"),
            ("GET", "/api/chat", 405, "/api/chat"),
            ("POST", "/api/pull", 403, "/api/pull"),
            ("HEAD", "/api/blobs/sha256:1", 403, "/api/blobs/{digest}"),
            ("GET", "/api/Zq1", 404, "other"),
            ("GET", "/Zq2", 404, "other"),
            ("POST", "/v1/Zq3", 404, "other"),
        ]
        wanted: dict[tuple[str, str], float] = {}
        for method, path, status, label in asked:
            answer = await one.client.request(method, path)
            assert answer.status_code == status, (method, path, answer.text)
            key = (label, f"{status // 100}xx")
            wanted[key] = wanted.get(key, 0) + 1
        show = await one.client.post("/api/show", json={"model": MODEL})
        assert show.status_code == 200
        wanted["/api/show", "2xx"] = 1
        chat = await one.client.post(
            "/api/chat", json={"model": MODEL, "messages": HI, "stream": False}
        )
        assert chat.status_code == 200, chat.text
        wanted["/api/chat", "2xx"] = 1
        assert await one.counted() == wanted


@in_loop
async def test_a_request_that_is_not_let_in_is_counted_under_the_same_label_and_once(
    tmp_path: Path,
) -> None:
    node = PlainNode([MODEL])
    async with local_gateway(tmp_path, {"box-a": node}, key="Zqk", API_KEYS="ci:Zqk") as one:
        wrong = {"X-API-Key": "wrong"}
        for path in ("/api/tags", "/v1/models/x", "/placements/l1", "/placements/l1/heartbeat"):
            assert (await one.client.get(path, headers=wrong)).status_code == 401
        assert await one.counted() == {
            ("/api/tags", "4xx"): 1,
            ("/v1/models/{model}", "4xx"): 1,
            ("/placements/{lease_id}", "4xx"): 1,
            ("/placements/{lease_id}/heartbeat", "4xx"): 1,
        }


@in_loop
async def test_a_client_that_leaves_before_its_body_is_whole_is_counted(tmp_path: Path) -> None:
    async with local_gateway(tmp_path, {"box-a": PlainNode([MODEL])}) as one:
        url = one.client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = "POST /api/show HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        writer.write(head.encode() + b"{")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(5):
            while await one.counted() != {("/api/show", "4xx"): 1}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not await reader.read()


@in_loop
async def test_every_refusal_has_a_code(tmp_path: Path) -> None:
    node = PlainNode([MODEL])
    async with local_gateway(tmp_path, {"box-a": node}, key="Zqk", API_KEYS="ci:Zqk:low") as one:
        ask = one.client.request

        async def told(method: str, path: str, **more: Any) -> tuple[int, str | None]:
            answer = await ask(method, path, **more)
            assert answer.headers["content-type"] == "application/json", answer.text
            return code_of(answer)

        for chat in ("/api/chat", "/v1/chat/completions"):
            assert await told("POST", chat, content=b"{") == (400, "bad_request")
            assert await told("POST", chat, content=b"") == (400, "bad_request")
            assert await told("POST", chat, json={"messages": HI}) == (400, "bad_request")
            assert await told("POST", chat, json={"model": 5}) == (400, "bad_request")
            assert await told("POST", chat, json={"model": "a b"}) == (400, "bad_request")
            assert await told("POST", chat, json={"model": "gone"}) == (404, "unknown_model")
            assert await told("GET", chat) == (405, "method_not_allowed")
            high = {"X-AIBS-Priority": "high"}
            body = {"model": MODEL, "messages": HI}
            assert await told("POST", chat, json=body, headers=high) == (403, "forbidden")
            urgent = {"X-AIBS-Priority": "urgent"}
            assert await told("POST", chat, json=body, headers=urgent) == (400, "bad_request")
            coded = {"Content-Encoding": "gzip"}
            refused = await told("POST", chat, content=b"x", headers=coded)
            assert refused == (415, "unsupported_encoding")
        assert await told("GET", "/v1/models/gone") == (404, "unknown_model")
        assert await told("POST", "/v1/models") == (405, "method_not_allowed")
        assert await told("POST", "/api/tags") == (405, "method_not_allowed")
        assert await told("POST", "/api/pull", json={}) == (403, "forbidden")
        for path in ("/api/nothing", "/v1/nothing", "/nothing"):
            assert await told("GET", path) == (404, "not_found")
        assert await told("GET", "/placements") == (405, "method_not_allowed")
        allow = (await ask("POST", "/api/tags")).headers["allow"]
        assert allow == "GET, HEAD"


@in_loop
async def test_what_breaks_inside_is_told_with_its_code_and_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_gateway(tmp_path, {"box-a": PlainNode([MODEL])}) as one:
        plane = one.gateway.plane
        body = {"model": MODEL, "messages": HI}
        faults: list[tuple[Exception, int, str]] = [
            (RuntimeError("Zq secret"), 500, "failed"),
            (CoordinationUnavailable("unix:///run/Zq.sock"), 503, "coordination_unavailable"),
            (FleetMismatch("The declared fleet is another one."), 503, "fleet_mismatch"),
        ]
        for fault, status, code in faults:

            async def serve(*_: Any, fault: Exception = fault) -> None:
                raise fault

            monkeypatch.setattr(plane.placing, "serve", serve)
            monkeypatch.setattr(plane.view, "tags", serve)
            for path in ("/api/chat", "/v1/chat/completions"):
                answer = await one.client.post(path, json=body)
                assert code_of(answer) == (status, code), answer.text
                assert "Zq" not in answer.text
                assert ("retry-after" in answer.headers) == (status == 503)
                # What an operator has to mend, OpenAI's clients would wait out in silence.
                told_off = code == "fleet_mismatch" and path.startswith("/v1/")
                assert answer.headers.get("x-should-retry") == ("false" if told_off else None)
            broken = await one.client.get("/v1/models")
            assert code_of(broken)[0] >= 500
            monkeypatch.setattr(one.gateway.control._placements._flights, "grant", serve)
            body = {"request_id": "r1", **body}
            placed = await one.client.post("/placements", json=body)
            assert code_of(placed) == (status, code)
            assert "Zq" not in placed.text
        counted = await one.counted()
        assert counted["/placements", "5xx"] == len(faults)


@in_loop
async def test_a_request_that_the_gateway_ends_as_it_stops_is_told_when_to_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_gateway(tmp_path, {"box-a": PlainNode([MODEL])}) as one:
        plane = one.gateway.plane

        async def serve(*_: Any) -> None:
            await asyncio.sleep(60)

        monkeypatch.setattr(plane.placing, "serve", serve)
        body = {"model": MODEL, "messages": HI}
        asked = [
            asyncio.create_task(one.client.post(path, json=body))
            for path in ("/api/chat", "/v1/chat/completions")
        ]
        await until(lambda: plane.count == 2)
        one.gateway.drain()
        plane.end_all()
        for answer in await asyncio.gather(*asked):
            assert code_of(answer) == (503, "shutting_down")
            assert int(answer.headers["retry-after"]) >= 1
        assert asked[0].result().json()["retry_after_ms"] == 1000
        late = await one.client.post("/api/chat", json=body)
        assert code_of(late) == (503, "shutting_down")
        assert late.headers["retry-after"] == "1"


# --- a model of the roster that no node has


@in_loop
async def test_a_model_that_no_node_has_is_told_with_the_mend_and_without_trying_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fleet_view.KEPT_MS, "/api/tags", 100)
    nodes = {name: PlainNode(["other:1b"]) for name in ("box-a", "box-b", "box-c")}
    body = {"model": MODEL, "messages": HI, "stream": False}
    async with local_gateway(tmp_path, nodes) as one:
        for path in ("/api/chat", "/v1/chat/completions", "/api/show", "/api/chat"):
            answer = await one.client.post(path, json=body)
            assert code_of(answer) == (503, "not_installed"), answer.text
            assert int(answer.headers["retry-after"]) == 60
            for word in (*nodes, f"`ollama pull {MODEL}`"):
                assert word in answer.text
            # No client of OpenAI's waits a minute by itself for what an operator has to mend.
            no_retry = answer.headers.get("x-should-retry")
            assert no_retry == ("false" if path.startswith("/v1/") else None)
        listed = await one.client.get(f"/v1/models/{MODEL}")
        assert code_of(listed) == (503, "not_installed")
        # One node was asked in vain; of the others it is known.
        assert sum(len(node.asked) for node in nodes.values()) == 1
        # Somebody installs it: it is found without waiting for any mark to end.
        nodes["box-b"].installed.append(MODEL)
        await asyncio.sleep(0.15)
        served = await one.client.post("/api/chat", json=body)
        assert (served.status_code, served.headers["x-aibs-node"]) == (200, "box-b"), served.text
        role = await one.client.post("/api/chat", json={**body, "model": "aibs/answer"})
        assert (role.status_code, role.headers["x-aibs-node"]) == (200, "box-b"), role.text


@in_loop
async def test_a_model_that_was_removed_a_moment_ago_is_told_as_missing(tmp_path: Path) -> None:
    nodes = {"box-a": PlainNode([]), "box-b": PlainNode([MODEL])}
    body = {"model": MODEL, "messages": HI, "stream": False}
    async with local_gateway(tmp_path, nodes) as one:
        answer = await one.client.post("/api/chat", json=body)
        assert (answer.status_code, answer.headers["x-aibs-node"]) == (200, "box-b")
        assert (await one.client.get("/api/tags")).status_code == 200
        # Its list is of before.
        nodes["box-b"].installed.clear()
        answer = await one.client.post("/api/chat", json=body)
        assert code_of(answer) == (503, "not_installed"), answer.text
        assert "box-b" in answer.json()["error"]


def test_what_may_run_nowhere_is_no_sentence_without_a_node() -> None:
    assert not_installed({}) == "No node of the fleet may run it."


def test_a_mend_names_each_model_on_its_nodes() -> None:
    sentence = not_installed({"a:1b": ["box-a"], "b:1b": ["box-b", "box-c"]})
    assert sentence == (
        "a:1b is not installed on box-a, b:1b is not installed on box-b and box-c: run "
        "`ollama pull a:1b` on box-a, or `ollama pull b:1b` on one of box-b and box-c."
    )


# --- what no waiting mends


@in_loop
async def test_what_an_operator_has_to_mend_is_told_at_once_to_clients_that_retry(
    tmp_path: Path,
) -> None:
    """A model that is larger than every node."""
    small = {"MODEL_CLUSTER_NODE_VRAM_GB": "4"}
    async with local_gateway(tmp_path, {"box-a": PlainNode([MODEL])}, **small) as one:
        native = await one.client.post("/api/chat", json={"model": MODEL, "messages": HI})
        assert code_of(native) == (503, "never_fits")
        assert native.headers["retry-after"] == "60"
        assert native.json()["retry_after_ms"] == 60_000
        assert "AIBS_MODEL_CLUSTER_NODE_VRAM_GB" in native.json()["error"]
        client = openai.AsyncOpenAI(base_url=f"{one.client.base_url}/v1", api_key="x")
        async with client, asyncio.timeout(10):
            with pytest.raises(openai.InternalServerError) as refused:
                await client.chat.completions.create(model=MODEL, messages=HI)
        assert refused.value.code == "never_fits"
        assert refused.value.response.headers["retry-after"] == "60"
        assert (await one.counted())["/v1/chat/completions", "5xx"] == 1
        placed = await one.client.post("/placements", json={"request_id": "r1", "model": MODEL})
        assert code_of(placed) == (503, "never_fits")
        assert placed.headers["retry-after"] == "60"
