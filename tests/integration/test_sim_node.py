"""The simulated server over real sockets: what it answers, holds, aborts and counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from typing import Any, Self

import httpx
import pytest
from openai import AsyncOpenAI

from aibs.ollama.sim import SimModel, SimServer, SimSpec
from tests.integration.in_loop import in_loop, until

GB = 10**9
LOAD_S = 0.05
FOR_LONG_S = 60.0
MODELS = (
    SimModel("llama3:8b", 6 * GB),
    SimModel("copy", 6 * GB, weights="registry.ollama.ai/library/llama3:8b"),
    SimModel("mistral", 30 * GB),
    SimModel("qwen", 40 * GB),
    SimModel("bge-m3", GB, kind="embedding"),
)


def spec(**changes: Any) -> SimSpec:
    return SimSpec(**{"vram_bytes": 90 * GB, "models": MODELS, "load_seconds": LOAD_S, **changes})


class Bench(SimServer):
    """A server with clients that a test drives byte by byte, all closed before it goes."""

    async def raw(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, with the request sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(request)
        return reader, writer

    async def __aenter__(self) -> Self:
        self.writers: list[asyncio.StreamWriter] = []
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await super().__aexit__(None, None, None)


def browser(server: SimServer, index: int = 0) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url(index), timeout=30, trust_env=False)


async def names(http: httpx.AsyncClient) -> list[str]:
    return [entry["name"] for entry in (await http.get("/api/ps")).json()["models"]]


def post(path: str, document: Any) -> bytes:
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def events(response: httpx.Response) -> list[str]:
    assert response.headers["content-type"] == "text/event-stream"
    assert response.text.endswith("\n\n")
    parts = response.text[:-2].split("\n\n")
    assert all(part.startswith("data: ") for part in parts)
    return [part.removeprefix("data: ") for part in parts]


# Routes and errors.


@in_loop
async def test_the_root_and_the_lists_answer_get_and_head() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        assert (await http.get("/")).text == "Ollama is running"
        for path in ("/", "/api/version", "/api/tags"):
            head = await http.head(path)
            assert (head.status_code, head.content) == (200, b"")
        assert (await http.get("/api/version")).json() == {"version": "0.32.15"}
        assert (await http.get("/v1/models")).json()["data"][0]["id"] == "llama3:8b"


@pytest.mark.parametrize(("profile", "status"), [("0.6.8", 404), ("0.7.0", 405)])
@in_loop
async def test_a_wrong_method_is_405_from_0_7_on(profile: str, status: int) -> None:
    async with Bench([spec(profile=profile)]) as server, browser(server) as http:
        for method, path in (("POST", "/api/ps"), ("HEAD", "/api/ps"), ("GET", "/api/generate")):
            answer = await http.request(method, path)
            assert answer.status_code == status
            assert answer.headers["content-type"].startswith("text/plain")


@in_loop
async def test_a_doubled_slash_or_an_unknown_path_is_a_404_in_text() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        for path in ("/api/nothing", "/api/ps/", f"{server.url()}//api/ps"):
            answer = await http.get(path)
            assert (answer.status_code, answer.text) == (404, "404 page not found")


@in_loop
async def test_nodes_by_path_are_apart_and_other_paths_are_nobodys() -> None:
    async with Bench([spec(), spec(profile="0.9")]) as server, browser(server, 1) as http:
        assert (await http.get("/api/version")).json()["version"] == "0.9.0"
        assert server.node(0).log == []
        root = f"http://127.0.0.1:{server.port}"
        for path in ("/api/ps", "/n/2/api/ps", "/n/x/api/ps", "/n/-1/api/ps", "/n/99999999999/"):
            assert (await http.get(root + path)).status_code == 404
        assert (await http.get(f"{root}/n/1")).text == "Ollama is running"


@pytest.mark.parametrize(
    ("path", "document", "status", "text"),
    [
        ("/api/generate", {"model": "x", "prompt": "a"}, 404, "model 'x' not found"),
        ("/api/chat", {"model": "x"}, 404, "model 'x' not found"),
        ("/api/chat", {}, 400, "model is required"),
        ("/api/embed", {"model": "x"}, 404, 'model "x" not found, try pulling it first'),
        ("/api/generate", {"model": "a b"}, 400, "invalid model name"),
        ("/api/show", {"model": "x"}, 404, "model 'x' not found"),
        ("/api/show", {}, 400, "model is required"),
        ("/api/generate", {"model": "bge-m3"}, 400, '"bge-m3" does not support generate'),
        ("/api/chat", {"model": "BGE-m3"}, 400, '"BGE-m3" does not support chat'),
        (
            "/api/generate",
            {"model": "llama3:8b", "keep_alive": "300"},
            400,
            'time: missing unit in duration "300"',
        ),
        (
            "/api/embed",
            {"model": "bge-m3", "keep_alive": True},
            400,
            "Unsupported type: 'bool'",
        ),
        (
            "/api/chat",
            {"model": "llama3:8b", "options": {"num_ctx": "big"}},
            500,
            'option "num_ctx" must be of type integer',
        ),
    ],
)
@in_loop
async def test_a_native_error_has_its_status_and_text(
    path: str, document: Any, status: int, text: str
) -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        answer = await http.post(path, json=document)
        assert (answer.status_code, answer.json()) == (status, {"error": text})
        assert server.node().stats.loads.total() == 0


@pytest.mark.parametrize(
    ("document", "status", "kind"),
    [
        ({"model": "x", "messages": [{"role": "user"}]}, 404, "not_found_error"),
        ({"model": "llama3:8b", "messages": []}, 400, "invalid_request_error"),
        ({"model": "bge-m3", "messages": [{"role": "user"}]}, 400, "invalid_request_error"),
    ],
)
@in_loop
async def test_an_openai_error_has_its_own_shape(document: Any, status: int, kind: str) -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        answer = await http.post("/v1/chat/completions", json=document)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == kind


@in_loop
async def test_an_empty_body_is_a_missing_one() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        answer = await http.post("/api/generate", content=b"")
        assert (answer.status_code, answer.json()["error"]) == (400, "missing request body")


@in_loop
async def test_show_tells_an_embedding_model_from_a_chat_model() -> None:
    async with Bench([spec(), spec(profile="0.6.3")]) as server:
        async with browser(server) as http:
            new = (await http.post("/api/show", json={"name": "bge-m3"})).json()
        async with browser(server, 1) as http:
            old = (await http.post("/api/show", json={"name": "bge-m3"})).json()
    assert new["capabilities"] == ["embedding"]
    assert "capabilities" not in old
    assert any(key.endswith(".pooling_type") for key in old["model_info"])


@pytest.mark.parametrize(
    "headers", [{"Host": "ollama.example.com"}, {"Origin": "https://example.com"}]
)
@in_loop
async def test_a_foreign_host_or_origin_is_a_403_without_a_body(headers: dict[str, str]) -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        answer = await http.get("/api/ps", headers=headers)
        assert (answer.status_code, answer.content) == (403, b"")


# Load, unload, keep-alive.


@pytest.mark.parametrize(
    ("path", "document", "expected"),
    [
        ("/api/generate", {}, {"response": "", "done": True, "done_reason": "load"}),
        (
            "/api/chat",
            {"messages": []},
            {"message": {"role": "assistant", "content": ""}, "done_reason": "load"},
        ),
        ("/api/embed", {"model": "BGE-M3"}, {"model": "BGE-M3", "embeddings": []}),
        ("/api/embed", {"model": "bge-m3", "input": []}, {"embeddings": []}),
        ("/api/embeddings", {"model": "bge-m3"}, {"embedding": []}),
    ],
)
@in_loop
async def test_load_only_waits_for_the_load_and_is_one_object(
    path: str, document: Any, expected: dict[str, Any]
) -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        answer = await http.post(path, json={"model": "llama3:8b", **document})
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert not answer.text.endswith("\n")
        assert expected.items() <= answer.json().items()
        assert "total_duration" not in answer.json()
        assert server.node().stats.loads.total() == 1
        assert server.node().stats.generations.total() == 0


@pytest.mark.parametrize(
    ("profile", "path", "reason", "loads"),
    [
        ("0.3.0", "/api/generate", "load", 1),
        ("0.3.11", "/api/generate", "unload", 0),
        ("0.32", "/api/chat", "unload", 0),
        ("0.32", "/api/embed", None, 1),
    ],
)
@in_loop
async def test_an_unload_call_loads_first_where_the_version_has_none(
    profile: str, path: str, reason: str | None, loads: int
) -> None:
    async with Bench([spec(profile=profile)]) as server, browser(server) as http:
        answer = (await http.post(path, json={"model": "llama3:8b", "keep_alive": 0})).json()
        assert answer.get("done_reason") == reason
        assert server.node().stats.loads.total() == loads
        assert await names(http) == []


@in_loop
async def test_an_empty_embed_loads_nothing_before_0_3_6() -> None:
    async with Bench([spec(profile="0.3.0")]) as server, browser(server) as http:
        answer = await http.post("/api/embed", json={"model": "bge-m3", "input": ""})
        assert (answer.status_code, answer.json()["embeddings"]) == (200, [])
        assert (await http.post("/api/embed", json={"model": "bge-m3"})).status_code == 400
        assert server.node().resident == []


@in_loop
async def test_a_done_reason_came_with_0_1_35() -> None:
    async with Bench([spec(profile="0.1.34")]) as server, browser(server) as http:
        assert "done_reason" not in (await http.post("/api/chat", json={"model": "qwen"})).json()


@in_loop
async def test_a_model_goes_when_its_keep_alive_is_over_and_not_before() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        asked = {"model": "llama3:8b", "keep_alive": "200ms"}
        await http.post("/api/generate", json=asked)
        assert await names(http) == ["llama3:8b"]
        await until(lambda: server.node().resident == [])


@in_loop
async def test_keep_alive_0_with_a_prompt_answers_and_then_unloads() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        document = {"model": "llama3:8b", "prompt": "a", "keep_alive": 0, "stream": False}
        assert (await http.post("/api/generate", json=document)).json()["done_reason"] == "stop"
        await until(lambda: server.node().resident == [])
        assert server.node().stats.unloads == 1


@in_loop
async def test_the_last_keep_alive_wins_for_all_and_openai_leaves_it() -> None:
    async with Bench([spec()]) as server, browser(server) as http:

        async def expiry() -> str:
            models = (await http.get("/api/ps")).json()["models"]
            return str(models[0]["expires_at"])

        await http.post("/api/generate", json={"model": "llama3:8b", "keep_alive": -1})
        assert (await expiry()) > "2300"
        document = {"model": "copy", "messages": [{"role": "user", "content": "a"}]}
        await http.post("/v1/chat/completions", json={**document, "keep_alive": "1m"})
        assert (await expiry()) > "2300"
        await http.post("/api/chat", json={**document, "keep_alive": "5m"})
        assert (await expiry()) < "2300"


@in_loop
async def test_the_expiry_of_a_first_request_slides_with_each_look() -> None:
    async with Bench([spec(token_seconds=FOR_LONG_S)]) as server, browser(server) as http:
        reader, _ = await server.raw(post("/api/generate", {"model": "qwen", "prompt": "a"}))
        await reader.readuntil(b"token1")
        looks = [(await http.get("/api/ps")).json()["models"][0]["expires_at"] for _ in range(2)]
        assert looks[0] != looks[1]


@in_loop
async def test_only_the_last_request_to_end_moves_the_expiry() -> None:
    async with Bench([spec(token_seconds=FOR_LONG_S)]) as server, browser(server) as http:
        await http.post("/api/generate", json={"model": "qwen"})
        reader, _ = await server.raw(post("/api/generate", {"model": "qwen", "prompt": "a"}))
        await reader.readuntil(b"token1")
        before = (await http.get("/api/ps")).json()
        await http.post("/api/generate", json={"model": "qwen"})
        assert (await http.get("/api/ps")).json() == before


@in_loop
async def test_an_unload_drains_and_shows_an_expiry_that_is_past() -> None:
    async with Bench([spec(token_seconds=FOR_LONG_S)]) as server, browser(server) as http:
        await http.post("/api/generate", json={"model": "qwen"})
        reader, writer = await server.raw(post("/api/generate", {"model": "qwen", "prompt": "a"}))
        await reader.readuntil(b"token1")
        before = time.time()
        await http.post("/api/generate", json={"model": "qwen", "keep_alive": 0})
        (entry,) = (await http.get("/api/ps")).json()["models"]
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before + 60))
        assert entry["expires_at"] < now
        writer.close()
        await until(lambda: server.node().resident == [])


@in_loop
async def test_a_keep_alive_that_arrives_while_draining_cancels_the_unload() -> None:
    async with Bench([spec(token_seconds=0.05)]) as server, browser(server) as http:
        document = {"model": "qwen", "prompt": "a", "stream": False}
        busy = asyncio.ensure_future(http.post("/api/generate", json=document))
        await until(lambda: server.node().stats.generating.total() == 1)
        await http.post("/api/generate", json={"model": "qwen", "keep_alive": 0})
        await http.post("/api/generate", json={"model": "qwen", "keep_alive": "5m"})
        await busy
        assert await names(http) == ["qwen:latest"]


@in_loop
async def test_a_model_closed_slowly_stays_listed_until_it_is_gone() -> None:
    one = spec(profile="0.12", unload_seconds=0.1)
    async with Bench([one]) as server, browser(server) as http:
        await http.post("/api/generate", json={"model": "qwen"})
        await http.post("/api/generate", json={"model": "qwen", "keep_alive": 0})
        assert await names(http) == ["qwen:latest"]
        await until(lambda: server.node().resident == [])
        assert await names(http) == []


# Loading.


@pytest.mark.parametrize(
    ("profile", "engine", "shown"),
    [
        ("0.3.0", "llama", ["m:latest"]),
        ("0.9", "llama", ["m:latest"]),
        ("0.12", "llama", []),
        ("0.12", "ollama", ["m:latest"]),
        ("0.30", "ollama", []),
        ("0.30", "mlx", ["m:latest"]),
    ],
)
@in_loop
async def test_whether_ps_shows_a_load_depends_on_version_and_engine(
    profile: str, engine: Any, shown: list[str]
) -> None:
    model = SimModel("m", GB, engine=engine, load_seconds=FOR_LONG_S)
    async with Bench([spec(profile=profile, models=(model,))]) as server:
        _, writer = await server.raw(post("/api/generate", {"model": "m"}))
        await until(lambda: server.node().resident == ["m:latest"])
        async with browser(server) as http:
            assert await names(http) == shown
            if engine == "mlx":
                (entry,) = (await http.get("/api/ps")).json()["models"]
                assert (entry["size"], entry["size_vram"]) == (0, 0)
        writer.close()


@in_loop
async def test_ps_waits_for_an_mlx_load_from_0_32_4_on_while_the_rest_answers() -> None:
    model = SimModel("m", GB, engine="mlx", load_seconds=0.2)
    async with Bench([spec(models=(model,))]) as server, browser(server) as http:
        loading = asyncio.ensure_future(http.post("/api/generate", json={"model": "m"}))
        await until(lambda: server.node().resident == ["m:latest"])
        looking = asyncio.ensure_future(http.get("/api/ps"))
        assert (await http.get("/api/version")).status_code == 200
        assert (await http.get("/api/tags")).status_code == 200
        assert not looking.done()
        assert [entry["size"] for entry in (await looking).json()["models"]] == [GB]
        await loading


@in_loop
async def test_the_fault_blocks_ps_for_any_load_of_any_version() -> None:
    async with Bench([spec(profile="0.9", load_seconds=0.2)]) as server:
        server.node().faults.ps_blocks_while_loading = True
        async with browser(server) as http:
            loading = asyncio.ensure_future(http.post("/api/generate", json={"model": "qwen"}))
            await until(lambda: server.node().resident == ["qwen:latest"])
            looking = asyncio.ensure_future(http.get("/api/ps"))
            assert (await http.get("/api/version")).status_code == 200
            assert not looking.done()
            assert len((await looking).json()["models"]) == 1
            await loading


@pytest.mark.parametrize("half", [False, True])
@in_loop
async def test_a_client_that_leaves_aborts_its_load_and_the_next_one_begins_anew(
    half: bool,
) -> None:
    first = SimModel("m", GB, load_seconds=FOR_LONG_S)
    async with Bench([spec(models=(first,))]) as server, browser(server) as http:
        node = server.node()
        reader, writer = await server.raw(post("/api/generate", {"model": "m"}))
        await until(lambda: node.resident == ["m:latest"])
        waiter = asyncio.ensure_future(http.post("/api/generate", json={"model": "m"}))
        await until(lambda: node.scheduler.waiting == 1)
        if half:
            writer.write_eof()
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 499 ")
            assert b"request canceled" in answer
        else:
            writer.close()
        await until(lambda: node.stats.aborted_loads == 1 and node.resident == ["m:latest"])
        assert node.stats.loads.total() == 0
        writer.close()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)


@in_loop
async def test_a_client_that_leaves_the_line_is_skipped() -> None:
    async with Bench([spec(load_seconds=FOR_LONG_S)]) as server:
        node = server.node()
        _, first = await server.raw(post("/api/generate", {"model": "qwen"}))
        await until(lambda: node.resident == ["qwen:latest"])
        _, second = await server.raw(post("/api/generate", {"model": "mistral"}))
        await until(lambda: node.scheduler.waiting == 1)
        second.close()
        await until(lambda: node.scheduler.waiting == 0)
        assert node.stats.aborted_loads == 0
        first.close()
        await until(lambda: node.resident == [])


@in_loop
async def test_the_line_waits_for_a_load_and_loaded_models_pass_by() -> None:
    slow = SimModel("slow", GB, load_seconds=FOR_LONG_S)
    loaded = SimModel("fast", GB, loaded=True)
    other = SimModel("other", GB)
    async with Bench([spec(models=(slow, loaded, other))]) as server, browser(server) as http:
        _, writer = await server.raw(post("/api/generate", {"model": "slow"}))
        await until(lambda: "slow:latest" in server.node().resident)
        behind = asyncio.ensure_future(http.post("/api/generate", json={"model": "other"}))
        await until(lambda: server.node().scheduler.waiting == 1)
        document = {"model": "fast", "prompt": "a", "stream": False}
        assert (await http.post("/api/generate", json=document)).status_code == 200
        assert not behind.done()
        writer.close()
        assert (await behind).status_code == 200


@in_loop
async def test_a_full_line_is_a_503_with_two_spaces() -> None:
    one = spec(load_seconds=FOR_LONG_S, max_queue=1)
    async with Bench([one]) as server, browser(server) as http:
        _, first = await server.raw(post("/api/generate", {"model": "qwen"}))
        await until(lambda: server.node().resident == ["qwen:latest"])
        _, second = await server.raw(post("/api/generate", {"model": "mistral"}))
        await until(lambda: server.node().scheduler.waiting == 1)
        answer = await http.post("/api/generate", json={"model": "mistral"})
        assert answer.status_code == 503
        assert answer.json()["error"] == (
            "server busy, please try again.  maximum pending requests exceeded"
        )
        assert "retry-after" not in answer.headers
        first.close()
        second.close()


@in_loop
async def test_in_a_deadlock_loads_hang_while_everything_else_stays_green() -> None:
    loaded = SimModel("fast", GB, loaded=True)
    async with Bench([spec(models=(loaded, *MODELS))]) as server, browser(server) as http:
        server.node().inject(deadlock=True)
        stuck = asyncio.ensure_future(http.post("/api/generate", json={"model": "qwen"}))
        await until(lambda: "/api/generate" in server.node().stats.requests)
        assert await names(http) == ["fast:latest"]
        assert (await http.get("/api/tags")).status_code == 200
        document = {"model": "fast", "prompt": "a", "stream": False}
        assert (await http.post("/api/generate", json=document)).status_code == 200
        assert server.node().resident == ["fast:latest"]
        assert not stuck.done()
        server.node().heal()
        assert (await stuck).status_code == 200


@in_loop
async def test_a_failed_load_is_a_500_and_leaves_nothing_behind() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        server.node().faults.load_error = "llama-server process has terminated"
        answer = await http.post("/api/chat", json={"model": "qwen"})
        assert answer.status_code == 500
        assert answer.json() == {"error": "llama-server process has terminated"}
        assert server.node().resident == []
        assert server.node().stats.failed_loads == 1


# Eviction and reload.


@in_loop
async def test_room_is_made_by_keep_alive_one_at_a_time_until_it_fits() -> None:
    three = (SimModel("a", 20 * GB), SimModel("b", 20 * GB), SimModel("c", 20 * GB))
    one = spec(vram_bytes=80 * GB, models=(*three, SimModel("big", 30 * GB)), max_loaded=9)
    async with Bench([one]) as server, browser(server) as http:
        for name, keep_alive in (("a", "10m"), ("b", "2m"), ("c", -1)):
            await http.post("/api/generate", json={"model": name, "keep_alive": keep_alive})
        assert (await http.post("/api/generate", json={"model": "big"})).status_code == 200
        stats = server.node().stats
        assert stats.evicted == ["b:latest"]
        assert set(server.node().resident) == {"a:latest", "c:latest", "big:latest"}


@in_loop
async def test_a_count_of_models_makes_room_too() -> None:
    async with Bench([spec(max_loaded=1)]) as server, browser(server) as http:
        for name in ("llama3:8b", "bge-m3"):
            await http.post("/api/embed", json={"model": name, "input": "a"})
        assert await names(http) == ["bge-m3:latest"]
        assert server.node().stats.evicted == ["llama3:8b"]


@in_loop
async def test_a_model_too_large_evicts_all_and_is_then_loaded_in_part() -> None:
    huge = SimModel("huge", 200 * GB)
    pinned = SimModel("pinned", GB, loaded=True)
    async with Bench([spec(models=(huge, pinned))]) as server, browser(server) as http:
        await http.post("/api/generate", json={"model": "huge"})
        (entry,) = (await http.get("/api/ps")).json()["models"]
        assert (entry["size"], entry["size_vram"]) == (200 * GB, 90 * GB)
        assert server.node().stats.evicted == ["pinned:latest"]


@in_loop
async def test_an_eviction_waits_for_the_requests_of_a_busy_model() -> None:
    one = spec(vram_bytes=50 * GB, token_seconds=0.03)
    async with Bench([one]) as server, browser(server) as http:
        document = {"model": "qwen", "prompt": "a", "stream": False}
        busy = asyncio.ensure_future(http.post("/api/generate", json=document))
        await until(lambda: server.node().stats.generating.total() == 1)
        await http.post("/api/generate", json={"model": "mistral"})
        assert busy.done()
        assert (await busy).json()["done_reason"] == "stop"
        assert server.node().stats.evicted == ["qwen:latest"]
        assert server.node().stats.aborted_generations == 0


@in_loop
async def test_the_next_load_waits_until_the_memory_is_back() -> None:
    one = spec(vram_bytes=50 * GB, vram_recovery_seconds=0.1, profile="0.12")
    async with Bench([one]) as server, browser(server) as http:
        for name in ("qwen", "mistral"):
            await http.post("/api/generate", json={"model": name})
        (entry,) = (await http.get("/api/ps")).json()["models"]
        assert entry["size_vram"] == entry["size"] == 30 * GB


@in_loop
async def test_another_context_length_reloads_and_the_name_flips() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        await http.post("/api/generate", json={"model": "llama3:8b"})
        await http.post("/api/generate", json={"model": "copy"})
        assert await names(http) == ["llama3:8b"]
        await http.post("/api/generate", json={"model": "copy", "options": {"num_ctx": 8192}})
        (entry,) = (await http.get("/api/ps")).json()["models"]
        assert (entry["name"], entry["context_length"]) == ("copy:latest", 8192)
        assert server.node().stats.reloads == 1


@in_loop
async def test_context_and_slots_take_memory() -> None:
    model = SimModel("m", GB, kv_bytes_per_token=1000)
    one = spec(models=(model,), num_parallel=4)
    async with Bench([one]) as server, browser(server) as http:
        await http.post("/api/generate", json={"model": "m", "options": {"num_ctx": 8192}})
        (entry,) = (await http.get("/api/ps")).json()["models"]
    assert entry["size"] == GB + 1000 * 8192 * 4
    assert entry["context_length"] == 8192


# Streams.


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/api/generate", {"prompt": "one two"}),
        ("/api/chat", {"messages": [{"role": "user", "content": "one two"}]}),
    ],
)
@in_loop
async def test_a_native_stream_is_lines_that_end_with_done(path: str, document: Any) -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        answer = await http.post(path, json={"model": "LLAMA3:8b", **document})
        assert answer.headers["content-type"] == "application/x-ndjson"
        *pieces, last = lines(answer)
        assert len(pieces) == 8
        assert not any(piece["done"] for piece in pieces)
        assert {piece["model"] for piece in (*pieces, last)} == {"LLAMA3:8b"}
        assert (last["done"], last["done_reason"]) == (True, "stop")
        assert last["load_duration"] >= LOAD_S * 1e9
        assert last["total_duration"] >= last["load_duration"]
        assert (last["prompt_eval_count"], last["eval_count"]) == (2, 8)


@in_loop
async def test_a_reply_cut_by_num_predict_says_length() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        document = {"model": "qwen", "prompt": "a", "options": {"num_predict": 2}}
        whole = (await http.post("/api/generate", json={**document, "stream": False})).json()
        assert (whole["response"], whole["done_reason"]) == ("token1 token2", "length")


@in_loop
async def test_no_byte_is_sent_before_the_first_token() -> None:
    one = spec(load_seconds=0.0, prompt_seconds=FOR_LONG_S)
    async with Bench([one]) as server:
        reader, writer = await server.raw(post("/api/generate", {"model": "qwen", "prompt": "a"}))
        await until(lambda: server.node().stats.generating.total() == 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        writer.close()
        await until(lambda: server.node().stats.aborted_generations == 1)


@pytest.mark.parametrize(
    ("profile", "status", "kind"),
    [("0.12.5", 200, "application/x-ndjson"), ("0.12.6", 500, "application/json; charset=utf-8")],
)
@in_loop
async def test_a_failure_before_the_first_byte_has_a_status_from_0_12_6_on(
    profile: str, status: int, kind: str
) -> None:
    async with Bench([spec(profile=profile)]) as server, browser(server) as http:
        server.node().faults.stream_error_after = 0
        answer = await http.post("/api/generate", json={"model": "qwen", "prompt": "a"})
        assert (answer.status_code, answer.headers["content-type"]) == (status, kind)
        assert set(json.loads(answer.text)) == {"error"}


@in_loop
async def test_a_failure_midway_is_a_last_line_without_done() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        server.node().faults.stream_error_after = 2
        answer = await http.post("/api/generate", json={"model": "qwen", "prompt": "a"})
        assert answer.status_code == 200
        *pieces, last = lines(answer)
        assert (len(pieces), set(last)) == (2, {"error"})
        whole = {"model": "qwen", "prompt": "a", "stream": False}
        assert (await http.post("/api/generate", json=whole)).status_code == 500


@pytest.mark.parametrize(
    ("path", "document", "kind"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}]},
            "chat.completion.chunk",
        ),
        ("/v1/completions", {"prompt": "a"}, "text_completion"),
    ],
)
@in_loop
async def test_an_openai_stream_is_events_that_end_with_done(
    path: str, document: Any, kind: str
) -> None:
    asked = {"model": "qwen", "stream": True, "stream_options": {"include_usage": True}, **document}
    async with Bench([spec()]) as server, browser(server) as http:
        *chunks, usage, done = events(await http.post(path, json=asked))
        assert done == "[DONE]"
        assert json.loads(usage)["usage"]["completion_tokens"] == 8
        assert {json.loads(chunk)["object"] for chunk in chunks} == {kind}
        assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "stop"
        del asked["stream_options"]
        *chunks, done = events(await http.post(path, json=asked))
        assert done == "[DONE]"
        assert not any("usage" in json.loads(chunk) for chunk in chunks)


@in_loop
async def test_openai_routes_do_not_stream_unless_told() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        document = {"model": "qwen", "messages": [{"role": "user", "content": "a"}]}
        whole = (await http.post("/v1/chat/completions", json=document)).json()
        assert whole["object"] == "chat.completion"
        assert whole["choices"][0]["message"]["content"].startswith("token1 token2")
        vectors = await http.post("/v1/embeddings", json={"model": "bge-m3", "input": ["a", "b"]})
        assert [entry["index"] for entry in vectors.json()["data"]] == [0, 1]


@in_loop
async def test_a_failure_midway_of_an_openai_stream_is_swallowed_and_lacks_done() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        server.node().faults.stream_error_after = 2
        document = {"model": "qwen", "stream": True, "messages": [{"role": "user", "content": "a"}]}
        answer = await http.post("/v1/chat/completions", json=document)
        chunks = [json.loads(event) for event in events(answer)]
        assert len(chunks) == 3
        assert chunks[-1]["choices"][0]["delta"]["content"] == ""


@in_loop
async def test_the_official_client_reads_responses_whole_and_streamed() -> None:
    async with Bench([spec()]) as server:
        client = AsyncOpenAI(base_url=f"{server.url()}/v1", api_key="none", max_retries=0)
        async with client:
            asked: Any = {"model": "qwen", "input": "one two three"}
            whole = await client.responses.create(**asked)
            assert whole.output_text.startswith("token1 token2")
            assert whole.usage is not None
            assert (whole.usage.input_tokens, whole.usage.output_tokens) == (3, 8)
            told = [event async for event in await client.responses.create(**asked, stream=True)]
            assert [event.type for event in told[:2]] == [
                "response.created",
                "response.in_progress",
            ]
            said = [event.delta for event in told if event.type == "response.output_text.delta"]
            assert "".join(said) == whole.output_text
            assert [event.sequence_number for event in told] == list(range(len(told)))
            last = told[-1]
            assert last.type == "response.completed"
            assert last.response.output_text == whole.output_text
            cut = await client.responses.create(**asked, max_output_tokens=2)
            assert (cut.status, cut.output_text) == ("completed", "token1 token2")


@in_loop
async def test_a_failure_midway_of_responses_ends_them_without_their_end() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        server.node().faults.stream_error_after = 2
        document = {"model": "qwen", "stream": True, "input": [{"role": "user", "content": "a"}]}
        answer = await http.post("/v1/responses", json=document)
        assert answer.status_code == 200
        assert "response.output_text.delta" in answer.text
        assert "response.completed" not in answer.text


@pytest.mark.parametrize(
    ("version", "given", "status"),
    [("0.13.2", "a", 404), ("0.13.3", "a", 200), ("0.13.3", 7, 400), ("0.13.3", None, 400)],
)
@in_loop
async def test_responses_are_answered_since_their_release_and_with_an_input(
    version: str, given: Any, status: int
) -> None:
    async with Bench([spec(profile=version)]) as server, browser(server) as http:
        answer = await http.post("/v1/responses", json={"model": "qwen", "input": given})
        assert answer.status_code == status


@pytest.mark.parametrize("way", ["close", "half", "reset"])
@in_loop
async def test_a_client_that_leaves_ends_its_generation(way: str) -> None:
    async with Bench([spec(token_seconds=FOR_LONG_S)]) as server:
        node = server.node()
        reader, writer = await server.raw(post("/api/generate", {"model": "qwen", "prompt": "a"}))
        await reader.readuntil(b"token1")
        if way == "half":
            writer.write_eof()
            rest = await reader.read()
            assert rest.endswith(b"0\r\n\r\n")
            assert b'"done":true' not in rest
        else:
            if way == "reset":
                no_linger = struct.pack("ii", 1, 0)
                client = writer.get_extra_info("socket")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
            writer.close()
        await until(lambda: node.stats.aborted_generations == 1)
        assert node.stats.generating.total() == 0
        assert node.resident == ["qwen:latest"]
        writer.close()


@in_loop
async def test_a_slow_reader_holds_the_generation_up_and_loses_nothing() -> None:
    # The name is echoed as it was typed, so each line is long and few of them fill all buffers.
    long_name = "qwen" + " " * 100_000
    async with Bench([spec(reply_tokens=200)]) as server:
        request = post("/api/generate", {"model": long_name, "prompt": "a"})
        reader, _ = await server.raw(request)
        await until(lambda: server.node().stats.generating.total() == 1)
        await asyncio.sleep(0.5)
        assert server.node().stats.generating.total() == 1
        received = bytearray()
        while b'"done":true' not in received[-4096:]:
            received += await reader.read(2**16)
        assert received.count(b'"done":false') == 200


# Slots and counts.


@pytest.mark.parametrize(
    ("changes", "model", "slots"),
    [
        ({}, "qwen", 1),
        ({"profile": "0.9"}, "qwen", 4),
        ({"num_parallel": 2}, "qwen", 2),
        ({"num_parallel": 4}, "bge-m3", 1),
    ],
)
@in_loop
async def test_a_model_answers_as_many_at_once_as_it_has_slots_and_queues_the_rest(
    changes: Any, model: str, slots: int
) -> None:
    one = spec(token_seconds=0.002, prompt_seconds=0.01, **changes)
    async with Bench([one]) as server, browser(server) as http:
        embeds = model == "bge-m3"
        path = "/api/embed" if embeds else "/api/generate"
        document = {"model": model, "stream": False, "input" if embeds else "prompt": "a"}
        answers = await asyncio.gather(*(http.post(path, json=document) for _ in range(6)))
        assert {answer.status_code for answer in answers} == {200}
        stats = server.node().stats
        name = SimModel(model, 1).display
        assert stats.peak_generations == {name: slots}
        assert stats.peak_in_flight == {name: 6}
        assert stats.loads == {name: 1}
        assert stats.generations == {name: 6}


# Faults and control.


@in_loop
async def test_faults_counts_and_log_are_at_hand_over_http() -> None:
    async with Bench([spec(), spec()]) as server, browser(server, 1) as http:
        assert (await http.post("/_sim/faults", json={"answer": "html"})).status_code == 200
        assert "<html>" in (await http.get("/api/ps")).text
        assert (await http.get("/_sim/stats")).json()["requests"] == {"/api/ps": 1}
        assert (await http.get("/_sim/log")).json() == {"requests": [["GET", "/api/ps"]]}
        assert (await http.post("/_sim/reset")).status_code == 200
        assert (await http.get("/api/ps")).json() == {"models": []}
        assert (await http.get("/_sim/stats")).json()["requests"] == {"/api/ps": 1}
        wrong = await http.post("/_sim/faults", json={"answer": "html", "sulk": 1})
        assert wrong.status_code == 400
        assert "sulk" in wrong.json()["error"]
        assert (await http.post("/_sim/faults", content=b"[]")).status_code == 400
        assert (await http.get("/api/ps")).status_code == 200
        assert server.node(0).log == []


@in_loop
async def test_a_body_given_over_http_is_sent_byte_for_byte() -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        await http.post(
            "/_sim/faults",
            json={
                "ps_body_base64": "/wA=",
                "ps_status": 203,
                "ps_headers": {"X-A": "b"},
                "ps_delay_s": 0.01,
            },
        )
        answer = await http.get("/api/ps")
        assert (answer.status_code, answer.content) == (203, b"\xff\x00")
        assert answer.headers["x-a"] == "b"


@in_loop
async def test_after_n_requests_a_node_refuses_and_its_neighbour_does_not() -> None:
    async with Bench([spec(), spec()]) as server:
        server.node(0).faults.refuse_after = 2
        async with browser(server, 0) as http:
            for _ in range(2):
                assert (await http.get("/api/ps")).status_code == 200
            with pytest.raises(httpx.TransportError):
                await http.get("/api/ps")
        async with browser(server, 1) as http:
            assert (await http.get("/api/ps")).status_code == 200


@in_loop
async def test_a_server_that_dies_drops_what_is_under_way_and_listens_no_more() -> None:
    async with Bench([spec(load_seconds=FOR_LONG_S)]) as server, browser(server) as http:
        loading = asyncio.ensure_future(http.post("/api/generate", json={"model": "qwen"}))
        await until(lambda: server.node().resident == ["qwen:latest"])
        with pytest.raises(httpx.TransportError):
            await http.post("/_sim/faults", json={"die": True})
        with pytest.raises(httpx.TransportError):
            await loading
        with pytest.raises(httpx.ConnectError):
            await http.get("/")


@in_loop
async def test_leaving_the_server_ends_what_is_under_way() -> None:
    async with SimServer([spec(load_seconds=FOR_LONG_S)]) as server:
        one, other = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        one[1].write(post("/api/generate", {"model": "qwen"}))
        await until(lambda: server.node().resident == ["qwen:latest"])
        server.node().faults.answer = "hang"
        other[1].write(b"GET /api/ps HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: "/api/ps" in server.node().stats.requests)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    for _, writer in (one, other):
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


# HTTP.


@in_loop
async def test_requests_on_one_connection_are_answered_in_turn() -> None:
    get = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    load = post("/api/generate", {"model": "qwen"})
    async with Bench([spec()]) as server:
        reader, writer = await server.raw(get + load + get)
        bodies = []
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            bodies.append(json.loads(await reader.readexactly(length)))
        assert [next(iter(body)) for body in bodies] == ["version", "model", "version"]
        writer.close()


@in_loop
async def test_a_poll_repeated_on_one_connection_sees_every_change() -> None:
    poll = b"GET /api/ps HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with Bench([spec()]) as server, browser(server) as http:
        reader, writer = await server.raw(b"")

        async def ask() -> list[Any]:
            writer.write(poll)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            return list(json.loads(await reader.readexactly(length))["models"])

        assert [await ask(), await ask(), await ask()] == [[], [], []]
        await http.post("/api/generate", json={"model": "qwen"})
        assert [entry["name"] for entry in await ask()] == ["qwen:latest"]
        server.node().faults.ps_delay_s = 0.05
        writer.write(poll + poll)
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            assert b"qwen" in await reader.readexactly(length)
        server.node().heal()
        await http.post("/api/generate", json={"model": "qwen", "keep_alive": 0})
        assert await ask() == []
        assert server.node().stats.requests["/api/ps"] == 7
        writer.close()


@in_loop
async def test_a_body_in_chunks_that_waits_for_a_go_ahead_is_taken() -> None:
    head = (
        b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    )
    async with Bench([spec()]) as server:
        reader, writer = await server.raw(head)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        body = b'{"model":"qwen"}'
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


@pytest.mark.parametrize("request_bytes", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
@in_loop
async def test_what_is_no_http_is_refused_and_the_server_lives(request_bytes: bytes) -> None:
    async with Bench([spec()]) as server, browser(server) as http:
        reader, writer = await server.raw(request_bytes)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        assert (await http.get("/")).status_code == 200


@in_loop
async def test_a_client_of_the_old_protocol_is_served_and_let_go() -> None:
    async with Bench([spec()]) as server:
        reader, writer = await server.raw(b"GET /api/version HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b'{"version":"0.32.15"}')
        writer.close()


# Scale.


@in_loop
async def test_a_thousand_nodes_in_one_process_answer_a_burst_of_polls_cheaply() -> None:
    model = SimModel("llama3:8b", 6 * GB, loaded=True)
    nodes = 1000
    async with Bench([spec(models=(model,)) for _ in range(nodes)]) as server:
        connections = [await server.raw(b"") for _ in range(20)]

        async def poll(reader: asyncio.StreamReader, writer: Any, indexes: range) -> None:
            for index in indexes:
                writer.write(f"GET /n/{index}/api/ps HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                assert b"llama3:8b" in await reader.readexactly(length)

        began = time.process_time()
        await asyncio.gather(
            *(
                poll(reader, writer, range(start, nodes, len(connections)))
                for start, (reader, writer) in enumerate(connections)
            )
        )
        # Both ends of every poll are in this process.
        assert time.process_time() - began < 5.0
        assert all(server.node(i).stats.requests["/api/ps"] == 1 for i in range(nodes))
        for _, writer in connections:
            writer.close()
