"""`aibs audit` as an operator and a script run it, against real sockets and a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from aibs.audit.document import AuditDocument
from aibs.codec import loads
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from aibs.placement import open_placer
from aibs.settings import load
from tests.integration.in_loop import in_loop
from tests.monitor_process import MonitorProcess, environment, watch
from tests.valkey_server import ValkeyServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

GB = 10**9
NAMES = ("box-c", "box-e")
SPECS = (
    SimSpec(
        "box-c",
        90 * GB,
        (
            SimModel("llama3:8b", 7 * GB, loaded=True),
            SimModel("nomic-embed-text", GB, kind="embedding"),
        ),
    ),
    SimSpec(
        "box-e",
        104 * GB,
        (
            SimModel("somebody/elses:70b", 43 * GB, loaded=True),
            SimModel("nomic-embed-text", GB, kind="embedding"),
        ),
    ),
)
ROSTER = (
    '[{"worker_id":"answer","model":"LLAMA3:8b","roles":["answer"],"kind":"chat",'
    '"resident_weight_gb":7,"active_parameter_billions":8}]'
)
READ_COMMANDS = {
    "hello",
    "client",
    "info",
    "hgetall",
    "hget",
    "zrange",
    "multi",
    "exec",
    "get",
    "time",
    "config",
    "scan",
    "select",
    "ping",
    "command",
    "script",
    "xrange",
    "xrevrange",
    "xlen",
    "xinfo",
}
STOPPING_S = 60
LAST_OF_TRACE = "echo"


async def audit(
    settings: Mapping[str, str], directory: Path, *arguments: str, module: str = "aibs"
) -> tuple[int, str, str]:
    """Run it as a process. Returns its exit status, output and messages."""
    command = ["audit"] if module == "aibs" else []
    return await run(settings, directory, *command, *arguments, module=module)


async def run(
    settings: Mapping[str, str], directory: Path, *arguments: str, module: str = "aibs"
) -> tuple[int, str, str]:
    """A command's exit status, output and messages."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        env={**os.environ, **settings},
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), STOPPING_S)
    assert b"Traceback" not in err, err.decode()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def audit_json(settings: Mapping[str, str], directory: Path, *more: str) -> tuple[int, Any]:
    """The exit status and the document, which its own model accepts."""
    status, out, err = await audit(settings, directory, "--json", *more)
    document = loads(out)
    AuditDocument.model_validate(document)
    assert document["schema"] == "aibs.audit/1", err
    return status, document


def gates(document: Any) -> dict[str, bool]:
    return {gate["name"]: gate["passed"] for gate in document["gates"]}


def fleet(url: str, namespace: str, nodes: SimServer, **more: str) -> dict[str, str]:
    return {
        **environment(url, namespace, dict(zip(NAMES, nodes.urls, strict=True))),
        "AIBS_MODEL_ADMISSION_WORKER_ROSTER": ROSTER,
        "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": "90,104",
        "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": "1,1",
        **more,
    }


@in_loop
async def test_a_watched_fleet_is_ready_whether_or_not_the_scheduler_is_enabled(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with SimServer(SPECS) as nodes:
        settings = fleet(valkey_url, namespace, nodes)
        pool, close = await watch(valkey_url, namespace, tmp_path)
        with MonitorProcess(settings, tmp_path, "a") as monitor:
            elected = await pool.owner_of(monitor)
            await pool.observed_under(elected.fence or 0, NAMES)
            for enabled in (False, True):
                told = {**settings, "AIBS_MODEL_CLUSTER_ENABLED": str(enabled).lower()}
                status, document = await audit_json(told, tmp_path)
                assert status == 0, gates(document)
                assert document["cluster_enabled"] is enabled
                assert document["ready_to_enable_global_scheduler"] is True
                assert document["ready_for_global_scheduler"] is enabled
            box_c, box_e = document["nodes"]
            assert (box_c["own_resident_bytes"], box_c["foreign_resident_bytes"]) == (7 * GB, 0)
            assert (box_e["own_resident_bytes"], box_e["foreign_resident_bytes"]) == (0, 43 * GB)
            assert box_c["stamp"]["fresh"] is True
            assert box_c["stamp"]["fence"] == elected.fence
            (model,) = box_c["resident_models"]
            assert model["key"] == "registry.ollama.ai/library/llama3:8b"
            assert model["worker_ids"] == ["answer"]
            (worker,) = document["workers"]
            assert worker["loaded_on"] == ["box-c"]
            assert worker["suggestion"]["resident_weight_gb"] == 7
            assert document["suggested_roster"][0]["resident_weight_gb"] == 7
        await close()


@in_loop
async def test_the_audit_writes_no_key_and_moves_no_model(tmp_path: Path) -> None:
    with ValkeyServer() as server:
        async with SimServer(SPECS) as nodes:
            settings = fleet(server.url, "trace", nodes)
            pool, close = await watch(server.url, "trace", tmp_path)
            with MonitorProcess(settings, tmp_path, "a") as monitor:
                elected = await pool.owner_of(monitor)
                await pool.observed_under(elected.fence or 0, NAMES)
            await close()
            for index in range(len(NAMES)):
                nodes.node(index).log.clear()
            with _trace(server) as commands:
                await audit_json(settings, tmp_path)
            assert "hgetall" in commands, "the trace saw nothing"
            assert set(commands) <= READ_COMMANDS
            for index in range(len(NAMES)):
                methods = {method for method, _ in nodes.node(index).log}
                assert methods == {"GET"}


@in_loop
async def test_leases_owner_and_fleet_are_what_the_log_tells_and_a_difference_is_said(
    tmp_path: Path,
) -> None:
    with ValkeyServer() as server:
        async with SimServer(SPECS) as nodes:
            settings = fleet(server.url, "told", nodes)
            pool, close = await watch(server.url, "told", tmp_path)
            with MonitorProcess(settings, tmp_path, "a") as monitor:
                elected = await pool.owner_of(monitor)
                await pool.observed_under(elected.fence or 0, NAMES)
                asking = settings | {"AIBS_MODEL_CLUSTER_ENABLED": "true"}
                async with (
                    open_placer(load(asking, None)) as placer,
                    placer.lease(model="llama3:8b") as lease,
                ):
                    _, document = await audit_json(settings, tmp_path)
                    held = {node["node_id"]: node for node in document["nodes"]}[lease.node_id]
                    assert held["leases"] == [lease.lease_id]
                    assert (held["leased_bytes"], held["slots_used"]) == (7 * GB, 1)
                    log = document["log"]
                    assert (log["consistent_with_live_state"], log["differences"]) == (True, [])
                    _, out, _ = await run(
                        settings, tmp_path, "replay", "--as-of", log["last_id"], "--json"
                    )
                    as_of = loads(out)
                    told = {node["node_id"]: node["leases"] for node in as_of["nodes"]}
                    assert told[lease.node_id] == [lease.lease_id]
                    # Somebody's hand in the live state.
                    with contextlib.closing(server.client()) as hand:
                        hand.hset("{aibs:told}:cordons", "box-c", '{"why":"by hand"}')
                        _, document = await audit_json(settings, tmp_path)
                        hand.hdel("{aibs:told}:cordons", "box-c")
                    assert not document["log"]["consistent_with_live_state"]
                    assert "cordon" in document["log"]["differences"][0]
                    warned = [one["name"] for one in document["information"]]
                    assert "log" in warned
            await close()


@contextlib.contextmanager
def _trace(server: ValkeyServer) -> Iterator[list[str]]:
    """Every command that the server executes meanwhile, by name."""
    seen: list[str] = []

    def listen(monitor: Any) -> None:
        for told in monitor.listen():
            name = told["command"].split()[0].lower()
            if name == LAST_OF_TRACE:
                return
            seen.append(name)

    with contextlib.closing(server.client()) as client, cast("Any", client).monitor() as monitor:
        listener = threading.Thread(target=listen, args=(monitor,))
        listener.start()
        yield seen
        with contextlib.closing(server.client()) as other:
            other.echo("")
        listener.join(10)
        assert not listener.is_alive()


@in_loop
async def test_ad_hoc_nodes_are_looked_at_with_nothing_else_configured(tmp_path: Path) -> None:
    async with SimServer(SPECS) as nodes:
        urls = [argument for url in nodes.urls for argument in ("--node-url", url)]
        status, document = await audit_json({}, tmp_path, *urls)
        assert status == 0
        assert [node["node_id"] for node in document["nodes"]] == ["url-1", "url-2"]
        assert document["nodes"][1]["foreign_resident_bytes"] == 43 * GB
        gone = f"http://127.0.0.1:{free_port()}"
        status, document = await audit_json({}, tmp_path, *urls, "--node-url", gone)
        assert status == 3
        lost = document["nodes"][2]
        assert (lost["state"], lost["resident_models"]) == ("unreachable", [])
        assert lost["own_resident_bytes"] is None
    assert not (tmp_path / ".aibs").exists(), "a reader must start no server"


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        ("html", "invalid_response"),
        ("truncated", "invalid_response"),
        ("not_found", "unsupported"),
        ("reset", "unreachable"),
    ],
)
def test_a_node_whose_answer_cannot_be_trusted_shows_no_sums(
    tmp_path: Path, fault: str, state: str
) -> None:
    @in_loop
    async def drill() -> None:
        async with SimServer(SPECS) as nodes:
            nodes.node(0).inject(answer=fault, paths=("/api/ps",))
            arguments = ("--node-url", nodes.url(0), "--node-url", nodes.url(1))
            _, document = await audit_json({}, tmp_path, *arguments)
            spoiled, sound = document["nodes"]
            assert spoiled["state"] == state
            assert spoiled["error"]
            assert spoiled["resident_models"] == []
            assert spoiled["foreign_resident_bytes"] is spoiled["own_resident_bytes"] is None
            assert sound["state"] == "ok"

    drill()


@in_loop
async def test_a_held_up_ps_is_loading_and_delays_the_audit_by_its_timeout_only(
    tmp_path: Path,
) -> None:
    async with SimServer(SPECS) as nodes:
        nodes.node(0).inject(answer="hang", paths=("/api/ps",))
        began = time.monotonic()
        _, document = await audit_json({}, tmp_path, "--node-url", nodes.url(0))
        assert document["nodes"][0]["state"] == "loading"
        assert time.monotonic() - began < 30


@in_loop
async def test_an_entry_without_a_size_makes_the_foreign_sum_unknown(tmp_path: Path) -> None:
    async with SimServer(SPECS) as nodes:
        nodes.node(0).inject(
            ps_body=b'{"models":[{"name":"a:1","size":5000000000,"size_vram":5000000000},'
            b'{"name":"b:1","size":-1,"size_vram":-1}]}'
        )
        _, document = await audit_json({}, tmp_path, "--node-url", nodes.url(0))
        (node,) = document["nodes"]
        assert node["unaccounted"] is True
        assert node["foreign_resident_bytes"] is None
        assert "a:1" in [model["name"] for model in node["resident_models"]]
        assert any("b:1" in warning for warning in node["warnings"])


@in_loop
async def test_an_unreachable_valkey_or_node_is_3_and_a_failed_gate_1(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with SimServer(SPECS) as nodes:
        away = f"redis://:hidden@127.0.0.1:{free_port()}"
        status, document = await audit_json(fleet(away, namespace, nodes), tmp_path)
        assert status == 3
        assert gates(document)["valkey_reachable"] is False
        assert "hidden" not in str(document)
        status, document = await audit_json(fleet(valkey_url, namespace, nodes), tmp_path)
        assert status == 1
        assert gates(document)["monitor_fresh"] is False
        gone = fleet(valkey_url, namespace, nodes)
        gone["AIBS_MODEL_CLUSTER_NODE_URLS"] = f"{nodes.url(0)},http://127.0.0.1:{free_port()}"
        status, document = await audit_json(gone, tmp_path)
        assert status == 3
        assert gates(document)["nodes_reachable"] is False


@in_loop
async def test_a_server_that_is_not_valkey_8_fails_the_gate_and_says_what_it_is(
    tmp_path: Path,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line[:1] != b"*":
                continue
            words = []
            for _ in range(int(line[1:])):
                await reader.readline()
                words.append((await reader.readline()).strip().lower())
            info = b"# Server\r\nredis_version:7.2.4\r\nrun_id:" + b"a" * 40 + b"\r\n"
            reply = b"$%d\r\n%s\r\n" % (len(info), info) if words[0] == b"info" else b"+OK\r\n"
            writer.write(reply)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, SimServer(SPECS) as nodes:
        settings = fleet(f"redis://127.0.0.1:{port}", "x", nodes)
        status, document = await audit_json(settings, tmp_path)
        assert status == 1
        assert gates(document)["valkey_reachable"] is True
        assert gates(document)["valkey_version"] is False
        assert "7.2.4" in str(document["gates"])


@in_loop
async def test_the_runbooks_module_is_the_same_command(tmp_path: Path) -> None:
    async with SimServer(SPECS) as nodes:
        status, out, _ = await audit(
            {},
            tmp_path,
            *("--node-url", nodes.url(0), "--json"),
            module="aibs_backend.interfaces.cli.audit_model_capacity",
        )
        assert status == 0
        assert loads(out)["schema"] == "aibs.audit/1"


@in_loop
async def test_text_for_a_person_names_models_and_carries_no_escape_of_theirs(
    tmp_path: Path,
) -> None:
    async with SimServer(SPECS) as nodes:
        nodes.node(0).inject(
            ps_body=b'{"models":[{"name":"evil\\u001b[31m:1","size":5000000000,'
            b'"size_vram":5000000000}]}'
        )
        _, out, _ = await audit({}, tmp_path, "--node-url", nodes.url(0))
        assert "\x1b" not in out
        assert "evil" in out


@in_loop
async def test_an_unmeasured_lane_gets_a_line_to_paste(tmp_path: Path) -> None:
    roster = '[{"worker_id":"answer","model":"llama3:8b","active_parameter_billions":8}]'
    async with SimServer(SPECS) as nodes:
        settings = {"AIBS_MODEL_ADMISSION_WORKER_ROSTER": roster}
        _, out, _ = await audit(settings, tmp_path, "--node-url", nodes.url(0))
        (line,) = [n for n in out.splitlines() if "AIBS_MODEL_ADMISSION_WORKER_ROSTER=" in n]
        assert '"resident_weight_gb":7' in line


@in_loop
async def test_two_pools_of_one_node_and_a_lossy_server_are_told(tmp_path: Path) -> None:
    with ValkeyServer(options=("--maxmemory", "500mb")) as server:
        with contextlib.closing(server.client()) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            client.config_set("appendonly", "no")
        async with SimServer(SPECS) as nodes:
            other = fleet(server.url, "other", nodes)
            pool, close = await watch(server.url, "other", tmp_path)
            with MonitorProcess(other, tmp_path, "a") as monitor:
                elected = await pool.owner_of(monitor)
                await pool.observed_under(elected.fence or 0, NAMES)
                _, document = await audit_json(fleet(server.url, "ours", nodes), tmp_path)
            await close()
        told = {item["name"]: item["detail"] for item in document["information"]}
        assert "other" in told["shared_node"]
        assert "allkeys-lru" in told["maxmemory_policy"]
        assert "appendonly" in told


# --- warm-up


@in_loop
async def test_a_warm_up_measures_each_lane_and_leaves_the_node_as_it_was(tmp_path: Path) -> None:
    roster = (
        '[{"worker_id":"answer","model":"llama3:8b"},'
        '{"worker_id":"embed","model":"nomic-embed-text","kind":"embedding"},'
        '{"worker_id":"lost","model":"not-there"}]'
    )
    async with SimServer(SPECS) as nodes:
        settings = {"AIBS_MODEL_ADMISSION_WORKER_ROSTER": roster}
        _, document = await audit_json(settings, tmp_path, "--node-url", nodes.url(0), "--warmup")
        found = {item["worker_id"]: item for item in document["warmup"]}
        assert found["answer"]["status"] == "already_resident"
        assert found["answer"]["unloaded"] is None
        assert found["embed"]["status"] == "measured"
        assert found["embed"]["unloaded"] is True
        assert found["embed"]["size_bytes"] == GB
        assert found["lost"]["status"] == "not_installed"
        assert set(nodes.node(0).resident) == {"llama3:8b"}
        workers = {worker["worker_id"]: worker for worker in document["workers"]}
        assert workers["embed"]["suggestion"]["source"] == "warmup"


@in_loop
async def test_what_a_warm_up_measured_is_in_the_log_with_record_and_only_then(
    tmp_path: Path,
) -> None:
    installed = SimSpec("box-e", 104 * GB, (SimModel("llama3:8b", 7 * GB),))
    with ValkeyServer() as server:
        async with SimServer([SPECS[0], installed]) as nodes:
            settings = fleet(server.url, "kept", nodes)
            warmup = ("--warmup", "--warmup-node-id", "box-e")
            status, _, err = await audit(settings, tmp_path, *warmup, "--record")
            assert status == 1
            assert "no pool" in err, "a reader makes no pool"
            status, _, err = await audit(settings, tmp_path, "--record")
            assert (status, "--warmup" in err) == (2, True)
            pool, close = await watch(server.url, "kept", tmp_path)
            with MonitorProcess(settings, tmp_path, "a") as monitor:
                elected = await pool.owner_of(monitor)
                await pool.observed_under(elected.fence or 0, NAMES)
                await audit(settings, tmp_path, *warmup)
                await audit(settings, tmp_path, *warmup, "--record")
            events = [event async for event in pool.log.read()]
            await close()
            measured = [event.data for event in events if event.type == "WarmupMeasured"]
            assert [(one["worker_id"], one["node_id"]) for one in measured] == [("answer", "box-e")]
            assert measured[0]["size_bytes"] == 7 * GB


@in_loop
async def test_one_failing_model_stops_no_other_and_evictions_are_told(tmp_path: Path) -> None:
    spec = SimSpec(
        "small",
        10 * GB,
        (
            SimModel("resident:1", 6 * GB, loaded=True, keep_alive="5m"),
            SimModel("big:1", 8 * GB),
            SimModel("small:1", GB),
        ),
    )
    roster = '[{"worker_id":"big","model":"big:1"},{"worker_id":"small","model":"small:1"}]'
    async with SimServer([spec]) as nodes:
        settings = {"AIBS_MODEL_ADMISSION_WORKER_ROSTER": roster}
        _, document = await audit_json(settings, tmp_path, "--node-url", nodes.url(), "--warmup")
        found = {item["worker_id"]: item for item in document["warmup"]}
        assert found["big"]["status"] == "measured"
        assert found["big"]["evicted"] == ["resident:1"]
        nodes.node().inject(load_error="llama-server process has terminated")
        _, document = await audit_json(settings, tmp_path, "--node-url", nodes.url(), "--warmup")
        assert [item["status"] for item in document["warmup"]] == ["failed", "failed"]
        assert "terminated" in document["warmup"][0]["error"]


@in_loop
async def test_ctrl_c_unloads_what_the_warm_up_loaded(tmp_path: Path) -> None:
    spec = SimSpec("slow", 90 * GB, (SimModel("a:1", GB),), load_seconds=5.0)
    async with SimServer([spec]) as nodes:
        process = subprocess.Popen(  # noqa: ASYNC220 - its signals are the test's subject
            [
                *(sys.executable, "-m", "aibs", "audit", "--node-url", nodes.url()),
                *("--warmup", "--json"),
            ],
            env={
                **os.environ,
                "AIBS_MODEL_ADMISSION_WORKER_ROSTER": '[{"worker_id":"a","model":"a:1"}]',
            },
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        while not any(method == "POST" for method, _ in nodes.node().log):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.to_thread(process.communicate, None, STOPPING_S)
        assert b"Traceback" not in err
        document = loads(out)
        assert document["warmup"][0]["status"] == "cancelled"
        assert process.returncode == 1
        assert not nodes.node().resident


@in_loop
async def test_options_that_cannot_be_used_are_2_and_one_sentence(tmp_path: Path) -> None:
    for arguments in (
        ("--node-url", "ftp://x"),
        ("--warmup-node-id", "box-c"),
        ("--warmup", "--warmup-node-id", "nobody"),
    ):
        status, out, err = await audit({}, tmp_path, *arguments)
        assert (status, out) == (2, "")
        assert len(err.strip().splitlines()) == 1
