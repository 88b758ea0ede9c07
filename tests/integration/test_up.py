"""`aibs up` as an operator runs it: what comes up, what goes down, and what may die between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

from aibs.codec import dumps_text, loads
from aibs.eventstore.embedded import find
from aibs.ollama.sim import SimServer
from aibs.up.no_nodes import no_nodes
from tests.integration.in_loop import in_loop
from tests.monitor_process import FAST
from tests.served_fleet import NAMES, ROSTER, specs, whole
from tests.valkey_server import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from typing import Any

PATIENCE_S = 40.0
BODY = {"model": "aibs/answer", "messages": [{"role": "user", "content": "hi"}], "stream": False}


@dataclass
class Up:
    """One `aibs up`, what it printed, and how to look at its tree."""

    process: asyncio.subprocess.Process
    out: list[str]
    err: list[str]
    url: str
    environ: dict[str, str]
    directory: Path
    seen: set[int] = field(default_factory=set)

    async def said(self, text: str, lines: list[str] | None = None, *, times: int = 1) -> None:
        """Wait until so many of its lines have that text."""
        found = self.out if lines is None else lines
        await self.until(lambda: sum(text in line for line in found) >= times, text)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():  # noqa: ASYNC110 - processes have no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"never: {what}\n{self.out}\n{self.err}") from None

    async def ended(self) -> int:
        """Its exit status. A traceback of anybody fails the test."""
        async with asyncio.timeout(PATIENCE_S):
            status = await self.process.wait()
        assert "Traceback" not in "\n".join([*self.out, *self.err]), self.err
        return status

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of its log that tell this, of whatever process of the tree."""
        return [told for line in self.err if (told := _told(line)).get("event") == event]

    def child(self, name: str) -> int:
        """The process id of the newest child of that name."""
        started = [told["pid"] for told in self.logged("child_started") if told["child"] == name]
        return int(started[-1])

    def tree(self) -> set[int]:
        """Every process that it started, and theirs."""
        now = _descendants(self.process.pid)
        self.seen |= now
        return now

    async def chat(self) -> httpx.Response:
        async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
            return await client.post(f"{self.url}/api/chat", json=BODY)


@asynccontextmanager
async def up(
    directory: Path, nodes: SimServer, *arguments: str, port: int | None = None, **changes: str
) -> AsyncIterator[Up]:
    port = port or free_port()
    environ = whole(
        {
            **FAST,
            "AIBS_DATA_DIR": str(directory / "data"),
            "AIBS_MODEL_CLUSTER_NODE_IDS": ",".join(NAMES),
            "AIBS_MODEL_CLUSTER_NODE_URLS": ",".join(nodes.urls),
            "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": ",".join("90" for _ in NAMES),
            "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": ",".join("1" for _ in NAMES),
            "AIBS_MODEL_ADMISSION_WORKER_ROSTER": dumps_text(list(ROSTER)),
            **changes,
        }
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aibs", "up", "--port", str(port), *arguments),
        env=environ,
        cwd=directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # As in a terminal of its own: a signal to the group is for the parent alone.
        start_new_session=True,
    )
    found = Up(process, [], [], f"http://127.0.0.1:{port}", environ, directory)
    hearing = [
        asyncio.create_task(_hear(stream, lines))
        for stream, lines in ((process.stdout, found.out), (process.stderr, found.err))
    ]
    try:
        yield found
    finally:
        # Those too that a test saw before their parent was gone.
        found.tree()
        for pid in (process.pid, *found.seen):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()
        await asyncio.wait(hearing, timeout=5)


async def _hear(stream: asyncio.StreamReader | None, lines: list[str]) -> None:
    assert stream is not None
    async for line in stream:
        lines.append(line.decode().rstrip("\n"))


def _told(line: str) -> dict[str, Any]:
    try:
        document = loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _descendants(pid: int) -> set[int]:
    shown = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    parents = [tuple(map(int, line.split())) for line in shown.stdout.splitlines()]
    found, news = set[int](), {pid}
    while news:
        news = {child for child, parent in parents if parent in news} - found
        found |= news
    return found


def _alive(pids: set[int]) -> set[int]:
    shown = subprocess.run(
        ["ps", "-eo", "pid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    living = {int(line.split()[0]) for line in shown.splitlines() if "Z" not in line.split()[1]}
    return pids & living


def _command(pid: int) -> str:
    shown = subprocess.run(
        ["ps", "-o", "comm=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip().rpartition("/")[2]


async def _replayed(found: Up, *arguments: str) -> str:
    """`aibs replay` of its log, for which a server is started and stopped again."""
    from pathlib import Path

    from aibs.eventstore.embedded import EmbeddedValkey

    held = await EmbeddedValkey.ensure(Path(found.environ["AIBS_DATA_DIR"]))
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aibs", "replay", *arguments),
            env=found.environ,
            cwd=found.directory,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, out
        return out.decode()
    finally:
        await held.close()


async def _types(found: Up) -> list[str]:
    return [loads(line)["type"] for line in (await _replayed(found, "--json")).splitlines()]


# --- coming up


@in_loop
async def test_it_says_what_runs_where_serves_and_ends_by_itself_after_a_trial(
    tmp_path: Path,
) -> None:
    async with SimServer(specs()) as nodes, up(tmp_path, nodes, "--exit-after", "1") as found:
        await found.said("Ready.")
        assert (await found.chat()).status_code == 200
        assert await found.ended() == 0
    text = "\n".join(found.out)
    assert f"gateway  {found.url}" in text
    assert "embedded, its data in" in text
    assert f"export OLLAMA_HOST={found.url}" in text
    assert await find(tmp_path / "data") is None
    assert "LeaseReleased" in await _types(found)


@in_loop
async def test_a_second_start_goes_on_with_the_log_of_the_first(tmp_path: Path) -> None:
    async with SimServer(specs()) as nodes:
        for _ in range(2):
            async with up(tmp_path, nodes, "--exit-after", "0") as found:
                assert await found.ended() == 0
    types = await _types(found)
    assert types.count("PoolCreated") == 1
    assert types.count("OwnerElected") == 2
    assert "PoolSuspect" not in types


# --- going down


async def _goes_down(tmp_path: Path, number: signal.Signals, *, workers: int = 1) -> None:
    slow = specs(load_s=0, token_s=0.05, tokens=20)
    more = ("--workers", str(workers))
    async with SimServer(slow) as nodes, up(tmp_path, nodes, *more) as found:
        await found.said("Ready.")
        chat = asyncio.create_task(found.chat())
        await found.said("placement_acquired", found.err)
        tree = found.tree()
        if workers > 1:
            assert len(_descendants(found.child("gateway"))) >= workers
        os.killpg(found.process.pid, number)
        answer = await chat
        assert answer.json()["done"], "the request under way was cut"
        assert await found.ended() == 0
        assert not _alive(tree)
    stopped = [told["child"] for told in found.logged("child_stopped")]
    assert stopped == ["gateway", "monitor"]
    assert await find(tmp_path / "data") is None
    types = await _types(found)
    assert types.index("LeaseReleased") < types.index("OwnerResigned") < types.index("PoolClosed")
    await _replayed(found, "--verify")


@in_loop
async def test_ctrl_c_ends_the_gateway_then_the_monitor_then_the_server(tmp_path: Path) -> None:
    await _goes_down(tmp_path, signal.SIGINT)


@in_loop
async def test_sigterm_ends_the_gateway_then_the_monitor_then_the_server(tmp_path: Path) -> None:
    await _goes_down(tmp_path, signal.SIGTERM, workers=2)


@in_loop
async def test_a_second_ctrl_c_ends_everything_at_once_and_says_what_that_means(
    tmp_path: Path,
) -> None:
    endless = specs(load_s=0, token_s=1, tokens=600)
    async with SimServer(endless) as nodes, up(tmp_path, nodes) as found:
        await found.said("Ready.")
        chat = asyncio.create_task(found.chat())
        await found.said("placement_acquired", found.err)
        tree = found.tree()
        found.process.send_signal(signal.SIGINT)
        await found.said("SIGINT: ")
        found.process.send_signal(signal.SIGINT)
        assert await found.ended() == 1
        await asyncio.gather(chat, return_exceptions=True)
        assert not _alive(tree)
    assert "not every child ended in good order" in found.out[-1]


@in_loop
async def test_nothing_outlives_a_parent_that_was_killed_and_its_term_is_given_back(
    tmp_path: Path,
) -> None:
    async with SimServer(specs()) as nodes, up(tmp_path, nodes) as found:
        await found.said("Ready.")
        tree = found.tree()
        assert len(tree) >= 4, "monitor, gateway, the server and its supervisor"
        found.process.kill()
        await found.until(lambda: not _alive(tree), "the children end by themselves")
    assert await find(tmp_path / "data") is None
    assert "OwnerResigned" in await _types(found)


# --- what dies between


@in_loop
async def test_a_killed_gateway_is_started_again_and_serves_again(tmp_path: Path) -> None:
    async with SimServer(specs()) as nodes, up(tmp_path, nodes) as found:
        await found.said("Ready.")
        first = found.child("gateway")
        os.kill(first, signal.SIGKILL)
        await found.said("child_started", found.err, times=3)
        await found.said("gateway_started", found.err, times=2)
        assert found.child("gateway") != first
        assert (await found.chat()).status_code == 200
        ended = next(
            told for line in found.err if (told := _told(line)).get("event") == "child_ended"
        )
        assert (ended["child"], ended["how"], ended["again_in_s"]) == ("gateway", "signal 9", 0.5)
        found.process.terminate()
        assert await found.ended() == 0


@in_loop
async def test_a_killed_monitor_is_started_again_and_elected_with_a_higher_fence(
    tmp_path: Path,
) -> None:
    async with SimServer(specs()) as nodes, up(tmp_path, nodes) as found:
        await found.said("Ready.")
        os.kill(found.child("monitor"), signal.SIGKILL)
        await found.said("owner_elected", found.err, times=2)
        fences = [told["fence"] for told in found.logged("owner_elected")]
        assert fences == [1, 2]
        found.process.terminate()
        assert await found.ended() == 0


@in_loop
async def test_a_killed_server_is_started_again_and_still_stopped_in_good_order(
    tmp_path: Path,
) -> None:
    soon = {"AIBS_MODEL_CLUSTER_HEARTBEAT_INTERVAL_SECONDS": "0.5"}
    async with SimServer(specs()) as nodes, up(tmp_path, nodes, port=None, **soon) as found:
        await found.said("Ready.")
        (server,) = (pid for pid in found.tree() if _command(pid).startswith("valkey-server"))
        os.kill(server, signal.SIGKILL)
        await found.said("owner_elected", found.err, times=2)
        assert (await found.chat()).status_code == 200, "it waits until the pool has recovered"
        found.process.terminate()
        assert await found.ended() == 0
    types = await _types(found)
    assert "PoolSuspect" in types
    assert types[-1] == "PoolClosed"


@in_loop
async def test_a_child_whose_settings_no_longer_work_ends_all_with_its_own_words(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("app:s3cret\n")
    keys.chmod(0o600)
    async with (
        SimServer(specs()) as nodes,
        up(tmp_path, nodes, AIBS_API_KEYS=f"@{keys}") as found,
    ):
        await found.said("Ready.")
        tree = found.tree()
        keys.unlink()
        os.kill(found.child("gateway"), signal.SIGKILL)
        assert await found.ended() == 2
        assert not _alive(tree)
    assert len(found.logged("child_started")) == 3, "it was tried again and again"
    last = found.err[-1]
    assert last.startswith("aibs: The gateway ended with exit status 2")
    assert "AIBS_API_KEYS" in last


# --- what is in the way


@in_loop
async def test_a_port_in_use_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with SimServer(specs()) as nodes, up(tmp_path, nodes, port=port) as found:
            assert await found.ended() == 2
    assert re.fullmatch(
        rf"aibs: The gateway cannot listen on 127\.0\.0\.1:{port}: .+ in use\. Stop what .+",
        found.err[-1],
    )
    assert not (tmp_path / "data" / "valkey.log").exists()


@in_loop
async def test_a_second_one_on_the_same_data_is_refused_and_the_first_goes_on(
    tmp_path: Path,
) -> None:
    async with SimServer(specs()) as nodes, up(tmp_path, nodes) as first:
        await first.said("Ready.")
        async with up(tmp_path, nodes) as second:
            assert await second.ended() == 2
        assert f"Another `aibs up` (process {first.process.pid}) runs on" in second.err[-1]
        assert (await first.chat()).status_code == 200
        first.process.terminate()
        assert await first.ended() == 0


@in_loop
async def test_without_a_node_it_names_the_settings_and_what_answers_on_this_machine() -> None:
    async with SimServer(specs()) as nodes:
        with_one = str(await no_nodes(nodes.urls[0]))
    without = str(await no_nodes(f"http://127.0.0.1:{free_port()}"))
    for text in (with_one, without):
        assert text.startswith("AIBS_MODEL_CLUSTER_NODE_IDS is empty")
        assert "_NODE_VRAM_GB" in text
        assert "_NODE_MAX_PARALLEL_REQUESTS" in text
    assert f"AIBS_MODEL_CLUSTER_NODE_URLS={nodes.urls[0]}" in with_one
    assert not re.search(r"VRAM_GB=\d", with_one), "a budget is the operator's to name"


@in_loop
async def test_without_a_node_it_ends_with_status_2(tmp_path: Path) -> None:
    async with SimServer(specs()) as nodes:
        changes = {
            "AIBS_MODEL_CLUSTER_NODE_IDS": "",
            "AIBS_MODEL_CLUSTER_NODE_URLS": "",
            "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": "",
            "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": "",
        }
        async with up(tmp_path, nodes, port=None, **changes) as found:
            assert await found.ended() == 2
    assert "AIBS_MODEL_CLUSTER_NODE_IDS is empty" in "\n".join(found.err)
    assert not (tmp_path / "data").exists()
