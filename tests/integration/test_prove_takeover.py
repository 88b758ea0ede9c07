"""The takeover proof on a real server with real monitors: it passes, and it can fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from aibs.codec import loads
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.scripts import source
from aibs.eventstore.state import LiveState
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from aibs.proofs.document import TakeoverDocument
from aibs.proofs.ground import Ground
from aibs.proofs.monitors import Monitor
from aibs.proofs.namespaces import REGISTRY, Namespaces
from aibs.proofs.service import ProofOptions, prove
from aibs.proofs.takeover import Proof
from aibs.settings import load
from tests.integration.in_loop import in_loop
from tests.monitor_process import MonitorProcess, environment, watch
from tests.tcp_proxy import TcpProxy
from tests.valkey_server import ValkeyServer, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aibs.eventstore.state import Stamp
    from aibs.proofs.document import RunReport

GB = 10**9
NAMES = ("box-c", "box-e")
SPECS = tuple(
    SimSpec(name, 90 * GB, (SimModel("llama3:8b", 7 * GB, loaded=True),)) for name in NAMES
)
NAMESPACE = "real"
SHORT_S = 4.0
"""Patience for a step that never comes about."""


class Scene:
    """A server, two nodes, and a proof of them that a test may break."""

    def __init__(self, server: ValkeyServer, nodes: SimServer, ground: Ground) -> None:
        self.server, self.nodes, self.ground = server, nodes, ground
        self.proof = Proof(
            settings=ground.settings,
            client=ground.client,
            namespaces=Namespaces(ground.client),
            start=ground.start,
            directory=ground.directory,
            variant="kill",
            gate="strict",
            tell=lambda _: None,
        )

    async def prove(self, **options: Any) -> TakeoverDocument:
        proved = await prove(self.ground, ProofOptions(**options), lambda _: None, proof=self.proof)
        document = proved.document
        TakeoverDocument.model_validate(document.model_dump(by_alias=True))
        return document

    async def fails(self) -> RunReport:
        """A proof of one run, which must not pass."""
        document = await self.prove()
        (run,) = document.runs
        assert not document.passed
        return run

    def left(self) -> set[bytes]:
        with contextlib.closing(self.server.client()) as client:
            return {key for key in client.keys("*") if isinstance(key, bytes)}


@contextlib.asynccontextmanager
async def scene(tmp_path: Path, *, urls: tuple[str, ...] | None = None) -> AsyncIterator[Scene]:
    with ValkeyServer() as server:
        async with SimServer(SPECS) as nodes:
            told = environment(
                server.url, NAMESPACE, dict(zip(NAMES, urls or nodes.urls, strict=True))
            )
            client = await open_client(server.url, data_dir=tmp_path, purpose="write")
            plain = {n: v for n, v in os.environ.items() if not n.startswith("AIBS_")}
            settings = load(told, env_file=None)
            try:
                yield Scene(
                    server, nodes, Ground(settings, client, tmp_path, {**plain, **told}, tmp_path)
                )
            finally:
                await client.aclose()


@in_loop
async def test_a_killed_owner_is_followed_within_the_bound_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as made:
        document = await made.prove(repeat=2)
        assert document.passed, document.runs
        for run in document.runs:
            assert run.handover_ms is not None
            assert run.handover_ms <= document.bound_ms
            assert sum(value or 0 for value in run.parts.model_dump().values()) == run.handover_ms
            assert (run.fenced_writes_rejected, run.fenced_writes_accepted) == (2, 0)
            assert run.pre_kill_owner_losses == 0
            assert {node.node_id for node in run.nodes} == set(NAMES)
            assert all(node.last_before and node.first_after for node in run.nodes)
        assert made.left() == {b"{aibs-proofs}:last"}
        for number in range(len(NAMES)):
            assert {method for method, _ in made.nodes.node(number).log} == {"GET"}


@in_loop
async def test_the_real_namespace_is_not_touched_by_any_command(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        seen: list[str] = []

        def listen(monitor: Any) -> None:
            for told in monitor.listen():
                if told["command"].lower().startswith("echo"):
                    return
                seen.append(told["command"])

        with contextlib.closing(made.server.client()) as client, _monitor(client) as monitor:
            listener = threading.Thread(target=listen, args=(monitor,))
            listener.start()
            document = await made.prove()
            with contextlib.closing(made.server.client()) as other:
                other.echo("")
            listener.join(10)
            assert not listener.is_alive()
        assert document.passed
        namespace = document.runs[0].namespace
        assert any(f"{{aibs:{namespace}}}" in command for command in seen), "it saw nothing"
        assert [command for command in seen if f"{{aibs:{NAMESPACE}}}" in command] == []


@in_loop
async def test_a_paused_owner_is_deposed_and_its_fence_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.proof = replace(made.proof, variant="pause")
        document = await made.prove(variant="pause")
        (run,) = document.runs
        assert document.passed, run.findings
        assert run.fenced_writes_rejected >= 2
        assert run.stderr.unexplained == []


@in_loop
async def test_it_fails_where_the_server_no_longer_checks_fences(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        fence = source("include/fence.lua").replace(
            "  expire_term()\n  if owner ~= ''", "  expire_term()\n  if true or owner ~= ''"
        )
        made.proof = replace(made.proof, overrides={"fence": fence})
        run = await made.fails()
        assert not run.correctness_passed
        assert run.fenced_writes_accepted > 0
        assert any("deposed owner were accepted" in finding for finding in run.findings)


@in_loop
async def test_it_fails_where_stamps_hide_their_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_they_are = LiveState.stamps

    async def younger(live: LiveState) -> dict[str, Stamp]:
        return {
            node_id: replace(stamp, observed_at_ms=stamp.observed_at_ms + 1)
            for node_id, stamp in (await as_they_are(live)).items()
        }

    async with scene(tmp_path) as made:
        monkeypatch.setattr(LiveState, "stamps", younger)
        run = await made.fails()
        assert any("hide their age" in finding for finding in run.findings)


@in_loop
async def test_it_fails_where_the_killed_monitor_gave_its_term_back(tmp_path: Path) -> None:
    class Polite(Monitor):
        async def kill(self) -> None:
            self.killed = True
            self.signal(signal.SIGTERM)
            await self._wait()

    async with scene(tmp_path) as made:
        ground = made.ground
        made.proof = replace(
            made.proof,
            start=lambda name, namespace, directory: _as(
                Polite, ground, name, namespace, directory
            ),
        )
        run = await made.fails()
        assert any("was resigned, not expired" in finding for finding in run.findings)


@in_loop
async def test_it_fails_where_the_standby_never_comes(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        ground = made.ground
        nowhere = {"AIBS_VALKEY_URL": f"redis://127.0.0.1:{free_port()}"}

        def start(name: str, namespace: str, directory: Path) -> Monitor:
            where = ground
            if name == "B":
                where = replace(ground, environment={**ground.environment, **nowhere})
            return where.start(name, namespace, directory)

        made.proof = replace(made.proof, start=start, patience_s=SHORT_S)
        run = await made.fails()
        assert run.stopped_at == "standby"
        assert "monitor B stands by" in run.findings[0]
        assert run.namespace_deleted


@in_loop
async def test_it_fails_where_the_standby_comes_late_unless_that_is_only_reported(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as made:
        ground = made.ground
        started: dict[str, Monitor] = {}

        class Hampered(Monitor):
            """Killed together with a pause of its standby."""

            async def kill(self) -> None:
                await super().kill()
                other = started["B"]
                other.signal(signal.SIGSTOP)
                asyncio.get_running_loop().call_later(3.2, other.signal, signal.SIGCONT)

        def start(name: str, namespace: str, directory: Path) -> Monitor:
            started[name] = _as(Hampered, ground, name, namespace, directory)
            return started[name]

        made.proof = replace(made.proof, start=start)
        run = await made.fails()
        assert run.correctness_passed, run.findings
        assert not run.availability_passed
        assert any("over the bound" in finding for finding in run.findings)
        made.proof = replace(made.proof, gate="report-only")
        document = await made.prove(gate="report-only")
        assert (document.passed, document.availability_passed) == (True, False)
        assert any("over the bound" in finding for finding in document.runs[0].findings)


@in_loop
async def test_a_way_to_the_server_that_turns_slow_fails_the_handover_or_is_only_reported(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as made, TcpProxy(made.server.port) as proxy:
        monitors = "AIBS_MODEL_CLUSTER_RESIDENCY_MONITOR_"
        slow = {
            "AIBS_VALKEY_URL": proxy.url,
            # A quarter of the TTL is a renewal's longest time: more than the delay.
            f"{monitors}LEASE_TTL_SECONDS": "3.2",
            f"{monitors}POLL_INTERVAL_SECONDS": "0.2",
            f"{monitors}POLL_TIMEOUT_SECONDS": "0.15",
        }
        told = {k: v for k, v in made.ground.environment.items() if k.startswith("AIBS_")}
        ground = replace(
            made.ground,
            environment={**made.ground.environment, **slow},
            settings=load({**told, **slow}, env_file=None),
        )

        class Slowing(Monitor):
            """Killed just after a renewal, when the way turns slow."""

            async def kill(self) -> None:
                namespace = self.environment["AIBS_MODEL_CLUSTER_NAMESPACE"]
                live = LiveState(made.ground.client, Keys(namespace))
                before = now = await live.term()
                while now == before:
                    await asyncio.sleep(0.005)
                    now = await live.term()
                proxy.reply_delay_s = 0.5
                await super().kill()

        slowed = Scene(made.server, made.nodes, ground)
        for gate in ("report-only", "strict"):
            proxy.reply_delay_s = 0.0
            slowed.proof = replace(
                slowed.proof,
                gate=gate,
                start=lambda name, namespace, directory: _as(
                    Slowing, ground, name, namespace, directory
                ),
            )
            document = await slowed.prove(gate=gate)
            (run,) = document.runs
            assert run.correctness_passed, run.findings
            assert document.passed == (gate == "report-only"), run
            assert not document.availability_passed, run
            assert any("over the bound" in finding for finding in run.findings)


@in_loop
async def test_it_fails_where_a_node_is_down_and_names_it(tmp_path: Path) -> None:
    async with SimServer(SPECS) as others:
        urls = (others.urls[0], f"http://127.0.0.1:{free_port()}")
        async with scene(tmp_path, urls=urls) as made:
            made.proof = replace(made.proof, patience_s=SHORT_S)
            run = await made.fails()
            assert run.stopped_at == "samples"
            assert "box-e" in run.findings[0]
            assert "box-c" not in run.findings[0].partition("in vain")[2]


@in_loop
async def test_it_fails_where_its_namespace_is_left_behind(tmp_path: Path) -> None:
    class Forgetful(Namespaces):
        async def delete(self, namespace: str) -> bool:  # noqa: ARG002 - as its parent
            return False

    async with scene(tmp_path) as made:
        made.proof = replace(made.proof, namespaces=Forgetful(made.ground.client))
        run = await made.fails()
        assert not run.namespace_deleted
        assert any("left behind" in finding for finding in run.findings)


@in_loop
async def test_two_proofs_and_a_live_monitor_do_not_disturb_each_other(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        told = {k: v for k, v in made.ground.environment.items() if k.startswith("AIBS_")}
        pool, close = await watch(made.server.url, NAMESPACE, tmp_path)
        with MonitorProcess(told, tmp_path, "live") as live:
            owner = await pool.owner_of(live)
            other = tmp_path / "other"
            other.mkdir()
            second = Scene(made.server, made.nodes, replace(made.ground, directory=other))
            documents = await asyncio.gather(made.prove(), second.prove())
            assert [one.passed for one in documents] == [True, True], documents
            term = await pool.live.term()
            assert term is not None
            assert (term.owner, term.fence) == (owner.data["owner"], owner.fence)
        await close()
        left = {key for key in made.left() if not key.startswith(b"{aibs:real}")}
        assert left == {b"{aibs-proofs}:last"}


async def _command(made: Scene, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aibs", "prove-takeover", *arguments),
        # What one leaves that is killed goes with the test.
        env={**made.ground.environment, "TMPDIR": str(made.ground.directory)},
        cwd=made.ground.cwd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def _until_said(stream: asyncio.StreamReader, words: str) -> None:
    async with asyncio.timeout(30):
        while words not in (line := (await stream.readline()).decode()):
            assert line, "it ended before"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@in_loop
async def test_told_to_stop_it_ends_its_monitors_and_deletes_its_namespace(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with scene(tmp_path) as made:
        process = await _command(made)
        assert process.stdout is not None
        await _until_said(process.stdout, "stands by")
        (entry,) = (await made.ground.client.hgetall(REGISTRY)).values()
        process.send_signal(number)
        _, err = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, b"Traceback" in err) == (130, False)
        assert made.left() == set()
        assert not any(_runs(pid) for pid, _ in loads(entry)["children"])


@in_loop
async def test_what_a_killed_proof_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        process = await _command(made)
        assert process.stdout is not None
        await _until_said(process.stdout, "stands by")
        ((left, entry),) = (await made.ground.client.hgetall(REGISTRY)).items()
        children = [pid for pid, _ in loads(entry)["children"]]
        process.kill()
        await process.wait()
        assert len(children) == 2
        # The first may have been killed by the proof itself.
        assert _runs(children[1])
        document = await made.prove()
        assert document.passed
        assert made.left() == {b"{aibs-proofs}:last"}, left
        assert not any(_runs(pid) for pid in children)


@in_loop
async def test_the_runbooks_command_prints_one_document_and_the_audit_tells_of_it(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as made:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aibs_backend.interfaces.cli.prove_model_monitor_takeover"),
            "--json",
            "--keep-log",
            str(tmp_path / "kept.ndjson"),
            env=dict(made.ground.environment),
            cwd=made.ground.cwd,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, err
        document = loads(out)
        TakeoverDocument.model_validate(document)
        assert document["passed"] is True
        kept = (tmp_path / "kept.ndjson").read_text().splitlines()
        assert sum('"OwnerElected"' in line for line in kept) == 2
        audit = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aibs", "audit", "--json"),
            env=dict(made.ground.environment),
            cwd=made.ground.cwd,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(audit.communicate(), 30)
        told = {one["name"]: one["detail"] for one in loads(out)["information"]}
        assert "passed" in told["last_proof"]


@pytest.mark.soak
@pytest.mark.parametrize("variant", ["kill", "pause"])
@in_loop
async def test_with_the_default_settings_each_handover_is_within_the_bound(
    tmp_path: Path, variant: str
) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AIBS_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aibs", "prove-takeover", "--self-contained", "--json"),
        *("--repeat", "3", "--variant", variant),
        env=plain,
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, err
    document = loads(out)
    assert document["passed"]
    assert len(document["runs"]) == 3
    assert all(run["handover_ms"] <= document["bound_ms"] for run in document["runs"])


@in_loop
async def test_a_server_that_is_away_is_status_3_and_bad_options_are_status_2(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as made:
        process = await _command(made, "--repeat", "0")
        _, err = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, b"--repeat" in err) == (2, True)
        away = replace(
            made.ground,
            environment={
                **made.ground.environment,
                "AIBS_VALKEY_URL": f"redis://127.0.0.1:{free_port()}",
            },
        )
        process = await _command(Scene(made.server, made.nodes, away))
        _, err = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, b"Traceback" in err) == (3, False), err


def _as(kind: type[Monitor], ground: Ground, name: str, namespace: str, directory: Path) -> Monitor:
    plain = ground.start(name, namespace, directory)
    return kind(name, plain.environment, directory, ground.cwd)


def _monitor(client: object) -> Any:
    return cast("Any", client).monitor()


def _runs(pid: int) -> bool:
    try:
        state = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
