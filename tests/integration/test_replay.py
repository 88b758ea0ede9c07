"""`aibs replay` as its users run it: on a real Valkey, and from a file that it wrote."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from aibs.eventstore.keys import Keys
from tests.integration.in_loop import in_loop
from tests.recorded_pool import RecordedPool, tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.valkey_server import ValkeyServer

PATIENCE_S = 30.0


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "aibs", "replay", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
        check=False,
    )


@asynccontextmanager
async def recorded(url: str, namespace: str) -> AsyncIterator[RecordedPool]:
    """Leases granted, queued, renewed, loaded, ended; a denial; a tenant."""
    pool = await RecordedPool.open(url, namespace)
    try:
        await pool.begin()
        first, second = pool.placed.leases
        await pool.queue(5)
        await pool.queue(6)
        await pool.deny(7)
        await pool.report(first, "loading")
        await pool.report(first, "loaded", 1200)
        await pool.renew(first, second)
        await pool.observe(tenant())
        await pool.release(first)
        await pool.take(5)
        yield pool
    finally:
        await pool.close()


def events_of(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


GENERATED = re.compile(rb'"generated_at": "([^"]*)"')


def told(answer: subprocess.CompletedProcess[bytes]) -> bytes:
    """What was printed, but for when."""
    return GENERATED.sub(b"", answer.stdout)


@in_loop
async def test_a_file_gives_what_the_server_gives_byte_for_byte(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with recorded(valkey_url, namespace) as pool:
        env = pool.settings(valkey_url)
        path, again = tmp_path / "log.ndjson.gz", tmp_path / "again.ndjson.gz"
        written = run("--export", str(path), **env)
        assert written.returncode == 0, written.stderr
        assert run("--from", str(path), "--export", str(again)).returncode == 0
        assert path.read_bytes() == again.read_bytes()
        events = events_of(run("--json", **env).stdout)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        middle, last = events[10]["id"], events[-1]["id"]
        for question in (
            ["--json"],
            [],
            ["--request", "r5"],
            ["--since", events[4]["at"], "--until", events[9]["at"]],
            ["--as-of", middle, "--json"],
            ["--as-of", last],
            ["--diff", middle, last, "--json"],
            ["--explain", "r5", "--json"],
            ["--explain", "r7"],
        ):
            live, file = run(*question, **env), run("--from", str(path), *question)
            assert live.returncode == 0, live.stderr
            assert told(live) == told(file), question
        verdicts = [
            json.loads(one.stdout)
            for one in (
                run("--verify", "--json", **env),
                run("--from", str(path), "--verify", "--json"),
            )
        ]
        assert verdicts[0].pop("compared_with_live_state")
        assert not verdicts[1].pop("compared_with_live_state")
        assert verdicts[0].pop("generated_at") < verdicts[1].pop("generated_at")
        assert verdicts[0] == verdicts[1]
        assert verdicts[0]["ok"]


def tampered(client: Redis, namespace: str, how: str) -> str | None:
    """Harm the stream with plain commands; the ID that --verify must name, None: any."""
    stream = Keys(namespace).key("log")
    entries: Any = client.xrange(stream)
    fields = dict(entries[-1][1])
    if how == "deleted":
        client.xdel(stream, entries[8][0])
        following: bytes = entries[9][0]
        return following.decode()
    seq = str(len(entries) + 1).encode()
    change: dict[bytes, bytes] = {
        "unknown type": {b"type": b"Strange"},
        "future version": {b"v": b"99"},
        "non-utf-8": {b"actor": b"\xff\xfe"},
        "not json": {b"data": b"{"},
        "ten megabytes": {b"actor": b"a" * 10_000_000},
        "missing": {},
        "altered fence": {b"fence": b"77"},
        "repeated": {b"seq": fields[b"seq"]},
    }[how]
    harmed = {**fields, b"seq": seq, **change}
    if how == "missing":
        del harmed[b"seq"]
    added: Any = client.xadd(stream, harmed)
    return str(added.decode())


@pytest.mark.parametrize(
    "how",
    [
        "deleted",
        "unknown type",
        "future version",
        "non-utf-8",
        "not json",
        "ten megabytes",
        "missing",
        "altered fence",
        "repeated",
    ],
)
def test_a_tampered_log_is_named_and_nothing_crashes(
    valkey_url: str, namespace: str, how: str
) -> None:
    async def history() -> dict[str, str]:
        async with recorded(valkey_url, namespace) as pool:
            return pool.settings(valkey_url)

    env = asyncio.run(history())
    with Redis.from_url(valkey_url) as client:
        named = tampered(client, namespace, how)
    verdict = run("--verify", "--json", **env)
    assert verdict.returncode == 1, verdict.stderr
    assert named in {problem["id"] for problem in json.loads(verdict.stdout)["problems"]}
    for question in ([], ["--json"], ["--as-of", "now"], ["--explain", "r5"]):
        answer = run(*question, **env)
        assert b"Traceback" not in answer.stderr, answer.stderr
        assert answer.returncode == 0, answer.stderr


@in_loop
async def test_another_fleet_is_asked_for_on_the_server_and_from_a_file_alike(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with recorded(valkey_url, namespace) as pool:
        env = pool.settings(valkey_url)
        path = tmp_path / "log.ndjson"
        assert run("--export", str(path), **env).returncode == 0
        question = ("--what-if", "box-c.slots=4", "--json")
        live, file = run(*question, **env), run("--from", str(path), *question)
        assert live.returncode == 0, live.stderr
        assert told(live) == told(file)
        answer = json.loads(live.stdout)
        assert answer["schema"] == "aibs.replay.what-if/1"
        assert answer["recorded"]["requests"] == answer["before"]["requests"] > 0
        assert answer["after"]["wait_longest_ms"] <= answer["before"]["wait_longest_ms"]
        wrong = run("--what-if", "nowhere.slots=4", **env)
        assert (wrong.returncode, wrong.stdout) == (2, b"")


@in_loop
async def test_live_state_that_was_changed_by_hand_is_named(
    valkey_url: str, namespace: str
) -> None:
    async with recorded(valkey_url, namespace) as pool:
        with Redis.from_url(valkey_url) as client:
            client.hset(Keys(namespace).key("owner"), "fence", "5")
        verdict = run("--verify", **pool.settings(valkey_url))
        assert verdict.returncode == 1
        assert b"The term is live otherwise than the log tells: fence." in verdict.stdout


def test_exit_statuses_and_that_nothing_is_started(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    nowhere = run(AIBS_VALKEY_URL="redis://127.0.0.1:1")
    embedded = run(AIBS_VALKEY_URL="embedded", AIBS_DATA_DIR=str(tmp_path))
    missing = run(AIBS_VALKEY_URL=valkey_url, AIBS_MODEL_CLUSTER_NAMESPACE=namespace)
    wrong = run("--since", "yesterday")
    assert [one.returncode for one in (nowhere, embedded, missing, wrong)] == [3, 3, 1, 2]
    assert list(tmp_path.iterdir()) == []
    for one in (nowhere, embedded, missing, wrong):
        assert one.stdout == b""
        assert one.stderr.startswith(b"aibs: ")
        assert b"Traceback" not in one.stderr


def test_a_cut_file_is_shown_up_to_its_fault_and_fails(tmp_path: Path) -> None:
    from tests.incident_log import items, write

    path = write(tmp_path / "log.ndjson", items())
    path.write_bytes(path.read_bytes()[:-300])
    shown = run("--from", str(path))
    assert shown.returncode == 1
    assert len(shown.stdout.splitlines()) == 30
    assert b"after line 31" in shown.stderr
    assert run("--from", str(path), "--verify").returncode == 1


def test_reordered_lines_of_a_file_are_named(tmp_path: Path) -> None:
    from tests.incident_log import items, write

    path = write(tmp_path / "log.ndjson", items())
    lines = path.read_bytes().splitlines(keepends=True)
    lines[9], lines[10] = lines[10], lines[9]
    path.write_bytes(b"".join(lines))
    verdict = run("--from", str(path), "--verify", "--json")
    assert verdict.returncode == 1
    named = {problem["id"] for problem in json.loads(verdict.stdout)["problems"]}
    assert json.loads(lines[10])["id"] in named
    for question in ([], ["--as-of", "-1s"]):
        answer = run("--from", str(path), *question)
        assert b"Traceback" not in answer.stderr, answer.stderr


@in_loop
async def test_following_outlives_a_restart_of_the_server(own_valkey: ValkeyServer) -> None:
    async with recorded(own_valkey.url, "followed") as pool:
        follower = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aibs", "replay", "--follow", "--since", "-1h", "--json",
            env={**os.environ, **pool.settings(own_valkey.url)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert follower.stdout is not None
            assert follower.stderr is not None
            async with asyncio.timeout(PATIENCE_S):
                while json.loads(await follower.stdout.readline())["type"] != "LeaseAcquired":
                    pass
                while json.loads(await follower.stdout.readline())["type"] != "LeaseReleased":
                    pass
                await asyncio.to_thread(own_valkey.stop)
                assert b"Waiting for it" in await follower.stderr.readline()
                await asyncio.to_thread(own_valkey.start)
                assert b"is back" in await follower.stderr.readline()
                # Whoever connects next finds a server that was restarted, which is an event.
                after = await RecordedPool.open(own_valkey.url, "followed")
                await after.pool.open()
                await after.close()
                while json.loads(await follower.stdout.readline())["type"] != "PoolSuspect":
                    pass
            follower.send_signal(signal.SIGINT)
            assert await follower.wait() == 130
            assert b"Traceback" not in await follower.stderr.read()
        finally:
            if follower.returncode is None:
                follower.kill()
                await follower.wait()
