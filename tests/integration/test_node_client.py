"""The node client against a simulated server: every body and every way of not answering."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Any

import pytest

from aibs.errors import (
    InvalidResponse,
    ModelNotInstalled,
    NodeError,
    NodeLoading,
    NodeUnreachable,
    NodeUnsupported,
    WarmUpFailed,
)
from aibs.model_names import comparison_key
from aibs.ollama.client import NodeClient
from aibs.ollama.ownership import classify
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from tests.integration.in_loop import in_loop, until
from tests.unit.test_ps import ALPHA, BODIES, MEANINGS, meaning

if TYPE_CHECKING:
    from aibs.fleet import Kind

GB = 10**9
KEY = comparison_key("llama3:8b")
MODELS = (
    SimModel("llama3:8b", 6 * GB),
    SimModel("copy", 6 * GB, weights=KEY),
    SimModel("bge-m3", GB, kind="embedding"),
)
FULL = (BODIES / "02_full_gpu_new.json").read_bytes()


def spec(**changes: Any) -> SimSpec:
    return SimSpec(**{"vram_bytes": 90 * GB, "models": MODELS, "load_seconds": 0.02, **changes})


def client(server: SimServer, timeout_s: float = 10.0, index: int = 0) -> NodeClient:
    return NodeClient(server.url(index), timeout_s=timeout_s)


# Every stored body, over the wire.


@pytest.mark.parametrize("name", MEANINGS)
@in_loop
async def test_a_stored_body_arrives_with_its_meaning(name: str) -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.ps_body = (BODIES / f"{name}.json").read_bytes()
        snapshot = await node.ps()
    assert tuple(meaning(model) for model in snapshot.models) == MEANINGS[name]
    wanted = MEANINGS[name]
    residency = classify(snapshot, {ALPHA: ("w1",)}, {}, "unified")
    assert residency.unaccounted is any(not model.readable for model in wanted)
    foreign = sum(model.unified or 0 for model in wanted if model.key != ALPHA)
    assert residency.foreign_bytes == (None if residency.unaccounted else foreign)
    assert residency.own_bytes == sum(m.unified or 0 for m in wanted if m.key == ALPHA)


@in_loop
async def test_a_body_that_breaks_off_is_an_invalid_response() -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.ps_body = (BODIES / "16_truncated.json").read_bytes()
        with pytest.raises(InvalidResponse):
            await node.ps()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (gzip.compress(FULL), (("Content-Encoding", "gzip"),)),
        (b"\xef\xbb\xbf" + FULL, ()),
        (gzip.compress(b"\xef\xbb\xbf" + FULL), (("Content-Encoding", "gzip"),)),
        (b"\n " + FULL + b"\n", (("X-Served-By", "proxy"),)),
    ],
)
@in_loop
async def test_a_body_in_another_wrapping_still_says_what_is_resident(
    body: bytes, headers: tuple[tuple[str, str], ...]
) -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.ps_body = body
        server.node().faults.ps_headers = headers
        assert [model.key for model in (await node.ps()).models] == [ALPHA]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (FULL, (("Content-Encoding", "gzip"),)),
        (gzip.compress(FULL)[:-20], (("Content-Encoding", "gzip"),)),
        (gzip.compress(FULL), ()),
    ],
)
@in_loop
async def test_a_wrapping_that_is_not_what_it_says_is_an_invalid_response(
    body: bytes, headers: tuple[tuple[str, str], ...]
) -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.ps_body = body
        server.node().faults.ps_headers = headers
        with pytest.raises(InvalidResponse):
            await node.ps()


@pytest.mark.parametrize(
    ("entry", "unaccounted", "charge"),
    [
        ('{"name":"a:1","size":6.65e9,"size_vram":6.65e9}', False, 6_650_000_000),
        ('{"name":"a:1","size":-5,"size_vram":5}', True, None),
        ('{"name":"a:1","size":5,"size_vram":-5}', True, None),
        ('{"name":"a:1","size":5,"size_vram":5},{"name":"a:1","size":5,"size_vram":5}', False, 5),
    ],
)
@in_loop
async def test_odd_sizes_and_duplicates_over_the_wire(
    entry: str, unaccounted: bool, charge: int | None
) -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.ps_body = f'{{"models":[{entry}]}}'.encode()
        residency = classify(await node.ps(), {}, {}, "unified")
    assert [model.charge_bytes for model in residency.models] == [charge]
    assert residency.unaccounted is unaccounted
    assert residency.foreign_bytes == (None if unaccounted else charge)


# Every way of not answering.


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        ("error_500", InvalidResponse, "http_500"),
        ("html", InvalidResponse, "invalid_response"),
        ("garbage", InvalidResponse, "invalid_response"),
        ("truncated", InvalidResponse, "invalid_response"),
        ("empty", InvalidResponse, "invalid_response"),
        ("cut", InvalidResponse, "invalid_response"),
        ("huge", InvalidResponse, "body_too_large"),
        ("not_found", NodeUnsupported, "unsupported"),
        ("reset", NodeUnreachable, "reset"),
    ],
)
@in_loop
async def test_an_answer_that_cannot_be_trusted_is_an_error_and_the_next_one_counts(
    answer: Any, kind: type[NodeError], reason: str
) -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.answer = answer
        with pytest.raises(NodeError) as caught:
            await node.ps()
        assert type(caught.value) is kind
        assert caught.value.reason == reason
        server.node().heal()
        assert (await node.ps()).models == ()


@pytest.mark.parametrize("answer", ["hang", "stalled"])
@in_loop
async def test_a_server_that_hangs_wholly_is_unreachable(answer: Any) -> None:
    async with SimServer([spec()]) as server, client(server, 0.2) as node:
        server.node().faults.answer = answer
        with pytest.raises(NodeUnreachable) as caught:
            await node.ps()
        assert caught.value.reason == "timeout"
        server.node().heal()
        assert (await node.ps()).models == ()


@pytest.mark.parametrize("answer", ["hang", "stalled"])
@in_loop
async def test_a_ps_that_hangs_alone_is_a_node_that_loads(answer: Any) -> None:
    async with SimServer([spec()]) as server, client(server, 0.2) as node:
        server.node().inject(answer=answer, paths=["/api/ps"])
        with pytest.raises(NodeLoading) as caught:
            await node.ps()
        assert caught.value.reason == "loading"


@in_loop
async def test_a_slow_ps_within_the_timeout_is_a_good_one() -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.ps_delay_s = 0.1
        assert (await node.ps()).models == ()


@in_loop
async def test_a_port_without_a_server_is_unreachable() -> None:
    async with SimServer([spec()]) as server:
        url = server.url()
    async with NodeClient(url, timeout_s=5) as node:
        with pytest.raises(NodeUnreachable) as caught:
            await node.ps()
    assert caught.value.reason == "connect_failed"


@in_loop
async def test_a_host_name_that_does_not_resolve_is_told_as_that() -> None:
    async with NodeClient("http://no-such-host.invalid:11434", timeout_s=10) as node:
        with pytest.raises(NodeUnreachable) as caught:
            await node.ps()
    assert caught.value.reason == "dns"


@in_loop
async def test_a_server_that_speaks_no_http_is_an_invalid_response() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        async with NodeClient(f"http://127.0.0.1:{port}", timeout_s=5) as node:
            with pytest.raises(InvalidResponse):
                await node.ps()


@in_loop
async def test_a_server_that_closes_unanswered_is_unreachable_not_lying() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        async with NodeClient(f"http://127.0.0.1:{port}", timeout_s=5) as node:
            with pytest.raises(NodeUnreachable) as caught:
                await node.ps()
    assert caught.value.reason == "reset"


@in_loop
async def test_a_version_without_ps_is_unsupported() -> None:
    async with SimServer([spec(profile="0.1.36")]) as server, client(server) as node:
        with pytest.raises(NodeUnsupported) as caught:
            await node.ps()
        assert caught.value.mend
        assert await node.version() == "0.1.36"


@in_loop
async def test_a_status_that_is_neither_good_nor_404_is_told_with_its_number() -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().inject(ps_body="", ps_status=403)
        with pytest.raises(InvalidResponse) as caught:
            await node.ps()
        assert caught.value.reason == "http_403"
        assert "OLLAMA_HOST" in caught.value.mend


# Redirects.


@in_loop
async def test_a_redirect_on_the_same_server_is_followed() -> None:
    async with SimServer([spec(), spec()]) as server, client(server) as node:
        server.node(0).inject(ps_body="", ps_status=307, ps_headers={"Location": "/n/1/api/ps"})
        server.node(1).faults.ps_body = FULL
        assert [model.key for model in (await node.ps()).models] == [ALPHA]


@pytest.mark.parametrize("location", ["/n/0/api/ps", "", "http://127.0.0.2:9/api/ps", "http://[::"])
@in_loop
async def test_a_redirect_that_leads_nowhere_good_is_an_invalid_response(location: str) -> None:
    async with SimServer([spec(), spec()]) as server, client(server) as node:
        server.node(0).inject(ps_body="", ps_status=307, ps_headers={"Location": location})
        with pytest.raises(InvalidResponse):
            await node.ps()
        assert server.node(0).stats.requests["/api/ps"] <= 4


# Residency by version.


@pytest.mark.parametrize("profile", ["0.1.38", "0.3.0", "0.9", "0.12", "0.30", "0.32"])
@pytest.mark.parametrize("kind", ["chat", "embedding"])
@in_loop
async def test_a_warm_up_shows_in_ps_and_an_unload_takes_it_away(profile: str, kind: Kind) -> None:
    model = "bge-m3" if kind == "embedding" else "llama3:8b"
    one = spec(profile=profile, unload_seconds=0.05)
    async with SimServer([one]) as server, client(server) as node:
        await node.warm_up(model, kind, num_ctx=None, timeout_s=10)
        (resident,) = (await node.ps()).models
        assert resident.key == comparison_key(model)
        assert resident.placement == "gpu"
        assert resident.expires_at_ms is not None
        await node.unload(model)
        assert await node.wait_gone(resident.key, resident.digest, timeout_s=10)
        assert server.node().resident == []
        assert server.node().stats.loads == {SimModel(model, 1).display: 1}


@pytest.mark.parametrize("profile", ["0.1.38", "0.3.0", "0.3.6", "0.9", "0.12", "0.30", "0.32"])
@pytest.mark.parametrize("kind", ["chat", "embedding"])
@in_loop
async def test_load_only_loads_and_sets_the_keep_alive_in_every_version(
    profile: str, kind: Kind
) -> None:
    model = "bge-m3" if kind == "embedding" else "llama3:8b"
    async with SimServer([spec(profile=profile)]) as server, client(server) as node:
        for keep_alive, forever in (("10m", False), (-1, True)):
            await node.load_only(model, kind, num_ctx=1024, keep_alive=keep_alive, timeout_s=10)
            (resident,) = (await node.ps()).models
            assert resident.keeps_forever is forever
        stats = server.node().stats
        assert (stats.loads.total(), stats.reloads) == (1, 0)
        assert resident.context_length in (None, 1024)


@in_loop
async def test_unload_of_a_model_that_is_not_resident_loads_nothing() -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        for model in ("llama3:8b", "bge-m3"):
            await node.unload(model)
        assert server.node().stats.loads.total() == 0


@in_loop
async def test_wait_gone_waits_for_a_busy_model_and_gives_up_in_time() -> None:
    slow = spec(profile="0.12", token_seconds=60.0)
    async with SimServer([slow]) as server, client(server) as node:
        busy = asyncio.ensure_future(node.warm_up("llama3:8b", "chat", num_ctx=None, timeout_s=60))
        await until(lambda: server.node().stats.generating.total() == 1)
        await node.unload("llama3:8b")
        assert not await node.wait_gone(KEY, None, timeout_s=0.1)
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        assert await node.wait_gone(KEY, None, timeout_s=10)


@in_loop
async def test_no_answer_is_never_taken_for_gone() -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.answer = "error_500"
        assert not await node.wait_gone(KEY, None, timeout_s=0.05)


@in_loop
async def test_ps_held_up_by_an_unload_is_a_node_that_loads_from_0_32_4_on() -> None:
    old, new = (spec(profile=version, unload_seconds=30.0) for version in ("0.32.3", "0.32.4"))
    async with SimServer([old, new]) as server:
        for index in (0, 1):
            async with client(server, 0.3, index) as node:
                await node.warm_up("llama3:8b", "chat", num_ctx=None, timeout_s=10)
                await node.unload("llama3:8b")
                if index == 0:
                    assert [model.key for model in (await node.ps()).models] == [KEY]
                else:
                    with pytest.raises(NodeLoading):
                        await node.ps()


@in_loop
async def test_cancelling_a_warm_up_aborts_the_load_on_the_server() -> None:
    async with SimServer([spec(load_seconds=60.0)]) as server, client(server) as node:
        task = asyncio.ensure_future(node.warm_up("llama3:8b", "chat", num_ctx=None, timeout_s=60))
        await until(lambda: server.node().resident == ["llama3:8b"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: server.node().resident == [])
        assert server.node().stats.aborted_loads == 1


@in_loop
async def test_a_warm_up_that_outlives_its_timeout_aborts_the_load_and_says_so() -> None:
    async with SimServer([spec(load_seconds=60.0)]) as server, client(server) as node:
        with pytest.raises(NodeUnreachable) as caught:
            await node.warm_up("llama3:8b", "chat", num_ctx=None, timeout_s=0.2)
        assert caught.value.reason == "timeout"
        await until(lambda: server.node().stats.aborted_loads == 1)


@pytest.mark.parametrize(("model", "kind"), [("other", "chat"), ("other", "embedding")])
@in_loop
async def test_a_model_that_is_not_installed_is_told_with_the_pull(model: str, kind: Kind) -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        with pytest.raises(ModelNotInstalled) as caught:
            await node.warm_up(model, kind, num_ctx=None, timeout_s=10)
        assert "ollama pull other" in caught.value.mend
        assert server.node().stats.requests.total() == 1


@pytest.mark.parametrize(("model", "kind"), [("llama3:8b", "chat"), ("bge-m3", "embedding")])
@in_loop
async def test_a_failed_load_is_told_in_the_servers_words(model: str, kind: Kind) -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.load_error = "llama-server process has terminated: out of memory"
        with pytest.raises(WarmUpFailed) as caught:
            await node.warm_up(model, kind, num_ctx=None, timeout_s=10)
        assert "out of memory" in caught.value.sentence
        assert (await node.ps()).models == ()


@in_loop
async def test_an_embedding_model_warmed_up_as_chat_is_told_why_it_cannot_be() -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        with pytest.raises(WarmUpFailed) as caught:
            await node.warm_up("bge-m3", "chat", num_ctx=None, timeout_s=10)
        assert "does not support generate" in caught.value.sentence


@pytest.mark.parametrize("answer", ["html", "garbage", "truncated", "empty"])
@pytest.mark.parametrize(("model", "kind"), [("llama3:8b", "chat"), ("bge-m3", "embedding")])
@in_loop
async def test_a_status_of_200_alone_is_no_warm_up(answer: Any, model: str, kind: Kind) -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.answer = answer
        with pytest.raises(InvalidResponse):
            await node.warm_up(model, kind, num_ctx=None, timeout_s=10)


@in_loop
async def test_an_error_with_status_200_of_an_old_server_is_an_error() -> None:
    body = b'{"error":"an error was encountered while running the model"}\n'

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        async with NodeClient(f"http://127.0.0.1:{port}", timeout_s=5) as node:
            with pytest.raises(WarmUpFailed):
                await node.warm_up("llama3:8b", "chat", num_ctx=None, timeout_s=5)


@in_loop
async def test_a_warm_up_takes_the_context_it_was_given() -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        await node.warm_up("llama3:8b", "chat", num_ctx=16_384, timeout_s=10)
        assert (await node.ps()).models[0].context_length == 16_384
        await node.warm_up("llama3:8b", "chat", num_ctx=16_384, timeout_s=10)
        assert server.node().stats.reloads == 0
        await node.warm_up("llama3:8b", "chat", num_ctx=None, timeout_s=10)
        assert server.node().stats.reloads == 1


# Names and digests.


@in_loop
async def test_an_alias_on_one_digest_is_one_runner_and_one_charge() -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        await node.warm_up("copy", "chat", num_ctx=None, timeout_s=10)
        await node.warm_up("llama3:8b", "chat", num_ctx=None, timeout_s=10)
        snapshot = await node.ps()
        assert [model.name for model in snapshot.models] == ["copy:latest"]
        digests = {m.digest: ("w1",) for m in await node.tags() if m.key == KEY and m.digest}
        residency = classify(snapshot, {KEY: ("w1",)}, digests, "unified")
        assert (residency.own_bytes, residency.foreign_bytes) == (6 * GB, 0)
        await node.unload("llama3:8b")
        assert await node.wait_gone(KEY, None, timeout_s=10)
        assert (await node.ps()).models == ()


@pytest.mark.parametrize("profile", ["0.1.38", "0.9", "0.32"])
@in_loop
async def test_tags_name_what_is_installed(profile: str) -> None:
    async with SimServer([spec(profile=profile)]) as server, client(server) as node:
        installed = await node.tags()
    assert [model.name for model in installed] == ["llama3:8b", "copy:latest", "bge-m3:latest"]
    assert installed[0].digest == installed[1].digest != installed[2].digest
    assert not any(model.remote for model in installed)


@pytest.mark.parametrize("answer", ["html", "empty", "truncated", "error_500", "not_found"])
@in_loop
async def test_tags_that_cannot_be_trusted_are_an_error(answer: Any) -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.answer = answer
        with pytest.raises(InvalidResponse):
            await node.tags()


@pytest.mark.parametrize("answer", ["html", "empty", "error_500", "not_found"])
@in_loop
async def test_a_version_that_is_not_told_is_unknown_not_an_error(answer: Any) -> None:
    async with SimServer([spec()]) as server, client(server) as node:
        server.node().faults.answer = answer
        assert await node.version() is None


@in_loop
async def test_a_last_slash_of_the_base_url_is_not_doubled() -> None:
    async with (
        SimServer([spec(), spec()]) as server,
        NodeClient(f"{server.url(1)}/", timeout_s=10) as node,
    ):
        assert (await node.ps()).models == ()
        assert server.node(1).log == [("GET", "/api/ps")]
