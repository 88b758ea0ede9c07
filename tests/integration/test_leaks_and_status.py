"""`aibs leaks`, `aibs status` and `aibs node …` as operators and scripts run them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis import Redis

from aibs.codec import dumps, loads, rfc3339
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.reports.hand_document import HandDocument
from aibs.reports.leaks import LeaksDocument
from aibs.reports.status import StatusDocument
from tests.integration.in_loop import in_loop
from tests.integration.test_audit import _trace
from tests.placed_fleet import FLEET, ORDER, PlacedFleet
from tests.recorded_pool import RecordedPool
from tests.server_clock import ServerClock
from tests.valkey_server import ValkeyServer, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from aibs.eventstore.events import Event

ENDING_S = 60
AGED_MS = 100_000
"""Longer than three heartbeats of the default 30 s, and than two."""
WRITING = ("SET", "DEL", "ADD", "EVAL", "FCALL", "TRIM", "INCR", "PUSH", "POP", "REM", "EXPIRE")


class Scene(PlacedFleet):
    """A placed fleet whose scripts' clock stands where the test wants it."""

    def __init__(self, pool: CoordinationPool, url: str, directory: Path) -> None:
        super().__init__(pool)
        self.directory = directory
        self.settings = {
            "AIBS_VALKEY_URL": url,
            "AIBS_MODEL_CLUSTER_NAMESPACE": pool.keys.namespace,
            "COLUMNS": "140",
        }

    async def run(self, *arguments: str, stdin: bytes = b"", **more: str) -> tuple[int, str, str]:
        return await run({**self.settings, **more}, self.directory, *arguments, stdin=stdin)

    async def leaks(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        status, out, err = await self.run("leaks", "--json", *arguments)
        assert out, err
        document: dict[str, Any] = loads(out)
        LeaksDocument.model_validate(document)
        return status, document

    async def status(self) -> dict[str, Any]:
        code, out, err = await self.run("status", "--json")
        assert code == 0, err
        document: dict[str, Any] = loads(out)
        StatusDocument.model_validate(document)
        return document

    async def events(self, type_: str) -> list[Event]:
        log = Log(self.pool.client, self.pool.keys)
        return [event async for event in log.read() if event.type == type_]

    async def grant(self, number: int, *, ttl_ms: int = 900_000) -> str:
        arguments = {**self.admit_arguments(number), "ttl_ms": ttl_ms}
        answer = await self.pool.call("admit", arguments)
        assert answer.word == "granted", answer
        lease = loads(answer.texts[2])
        self.leases.append(lease)
        return str(lease["lease_id"])

    async def release(self, lease: Mapping[str, Any], call_id: str) -> str:
        told = {name: lease[name] for name in ("holder", "request_key", "lease_id", "token")}
        call: dict[str, Any] = {"outcome": "completed", "call_id": call_id, **ORDER}
        return (await self.pool.call("release", {**told, **call})).word


async def run(
    settings: Mapping[str, str], directory: Path, *arguments: str, stdin: bytes = b""
) -> tuple[int, str, str]:
    """The exit status, output and messages of a command."""
    process = await _start(settings, directory, *arguments)
    out, err = await asyncio.wait_for(process.communicate(stdin), ENDING_S)
    assert b"Traceback" not in err, err.decode()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def _start(
    settings: Mapping[str, str], directory: Path, *arguments: str
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aibs", *arguments),
        env={**os.environ, **settings},
        cwd=directory,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def scene(
    url: str, namespace: str, directory: Path, *, aged_ms: int = 0
) -> AsyncIterator[Scene]:
    """A pool whose lease and stamps are `aged_ms` old."""
    with closing(Redis.from_url(url)) as plain:
        seconds, micros = plain.time()
        clock = ServerClock(plain, namespace, seconds * 1000 + micros // 1000 - aged_ms)
        client = commands(await open_client(url, data_dir=directory, purpose="write"))
        overrides = clock.overrides if aged_ms else None
        pool = CoordinationPool(
            client, Keys(namespace), "test:1:x:y", recovery_ms=1, overrides=overrides
        )
        try:
            found = Scene(pool, url, directory)
            await found.open()
            yield found
        finally:
            await client.aclose()


@in_loop
async def test_a_healthy_pool_needs_its_address_and_namespace_only_and_exits_0(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as pool:
        status, document = await pool.leaks()
        assert status == 0, document
        (lease,) = document["leases"]
        assert (lease["state"], lease["end"], lease["node_id"]) == ("active", None, "box-c")
        assert lease["node_base_url"] == "http://box-c:11434"
        assert document["counts"] == {
            "active": 1,
            "late": 0,
            "expired_unreleased": 0,
            "draining": 0,
            "revoked": 0,
            "reaped": 0,
            "late_releases": 0,
            "double_releases": 0,
            "unlisted": 0,
        }
        assert document["consistent_with_live_state"] is True
        shown = await pool.status()
        assert [one["lease_id"] for one in shown["leases"]] == [lease["lease_id"]]
        assert shown["other_leases"] == []
        code, out, _ = await pool.run("schema", "leaks")
        assert code == 0
        assert set(loads(out)["properties"]) == set(document)
        code, out, _ = await pool.run("leaks", COLUMNS="60")
        assert code == 0
        assert "No lease leaks." in out


@in_loop
async def test_a_lease_without_heartbeats_is_late_and_fails_the_check(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path, aged_ms=AGED_MS) as pool:
        late = await pool.grant(7)
        overdue = pool.leases[0]["lease_id"]
        code, _, _ = await pool.run("leaks", "--ack", overdue)
        assert code == 1, "the other one is late all the same"
        status, document = await pool.leaks()
        states = {lease["lease_id"]: lease["state"] for lease in document["leases"]}
        assert status == 1
        shown = await pool.status()
        assert shown["leases"] == [], "active ones only"
        others = {lease["lease_id"]: lease["state"] for lease in shown["other_leases"]}
        assert others == states
        assert sum(len(node["leases"]) for node in shown["nodes"]) == 2
        code, out, _ = await pool.run("status")
        assert code == 0
        assert late in out
        # The first lease's own minute is over, and nothing has ended it yet.
        assert states == {late: "late", overdue: "expired_unreleased"}
        assert (document["counts"]["late"], document["counts"]["expired_unreleased"]) == (1, 1)


@in_loop
async def test_expiry_late_and_double_releases_are_counted_since_the_moment_asked_for(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as pool:
        (first,) = pool.leases
        assert await pool.release(first, "c1") == "ok"
        assert await pool.release(first, "c2") == "double"
        gone = await pool.grant(8, ttl_ms=1)
        async with asyncio.timeout(ENDING_S):
            while not await pool.events("LeaseExpired"):
                await pool.pool.call("reap", ORDER)
        assert await pool.release(pool.leases[-1], "c3") == "late"
        status, document = await pool.leaks()
        assert status == 1
        (ended,) = document["leases"]
        assert (ended["lease_id"], ended["state"], ended["end"]) == (
            gone,
            "expired_unreleased",
            "expired",
        )
        counts = document["counts"]
        assert (counts["late_releases"], counts["double_releases"]) == (1, 1)
        assert (counts["expired_unreleased"], counts["draining"]) == (1, 1)
        # What expired is told until it is known; the rest since the moment asked for.
        status, document = await pool.leaks("--since", "1ms")
        assert status == 1
        assert [lease["lease_id"] for lease in document["leases"]] == [gone]
        counts = document["counts"]
        assert (counts["late_releases"], counts["double_releases"]) == (0, 0)
        assert (counts["expired_unreleased"], document["leaking"]) == (1, True)
        # One that never leaked spoils the acknowledgement of the other: nothing is noted.
        code, _, err = await pool.run("leaks", "--ack", gone, "--ack", "nobody")
        assert code == 1
        assert "No lease nobody leaked" in err
        assert await pool.events("LeakAcknowledged") == []
        for new in (1, 0):
            code, _, err = await pool.run("leaks", "--ack", gone, "--ack", gone)
            assert code == 0, err
            assert f"{new} newly acknowledged, {1 - new} before" in err
        (noted,) = await pool.events("LeakAcknowledged")
        assert noted.data["leases"] == [gone]
        status, document = await pool.leaks("--since", "1ms")
        assert (status, document["leases"]) == (0, [])
        assert (document["counts"]["expired_unreleased"], document["leaking"]) == (0, False)
        status, document = await pool.leaks()
        assert (status, document["leases"][0]["acknowledged"]) == (0, True)
        assert "@" in noted.data["by"]


@in_loop
async def test_a_leak_whose_events_left_the_log_is_told_until_it_is_acknowledged(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    pool = await RecordedPool.open(valkey_url, namespace)
    try:
        await pool.placed.open()
        gone = await pool.expire(7, drain_ms=1)
        await pool.release(pool.placed.leases[0])
        info = await pool.keep("one")
        assert await pool.let_go(info)
        left = [event.type async for event in Log(pool.client, pool.pool.keys).read()]
        assert "LeaseExpired" not in left
        settings = pool.settings(valkey_url)
        told = ("leaks", "--json", "--since", "1ms")
        for acknowledged in (False, True):
            status, out, err = await run(settings, tmp_path, *told)
            document = loads(out)
            found = [lease["lease_id"] for lease in document["leases"]]
            assert (status, found) == ((0, []) if acknowledged else (1, [gone])), err
            assert document["counts"]["expired_unreleased"] == len(found)
            assert document["differences"] == []
            status, _, err = await run(settings, tmp_path, "leaks", "--ack", gone)
            assert status == 0, err
    finally:
        await pool.close()


@in_loop
async def test_reaping_asks_and_spares_a_lease_that_lives_unless_it_is_forced(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as pool:
        lease_id = pool.leases[0]["lease_id"]
        for answer in (b"", b"n\n"):
            code, _, err = await pool.run("leaks", "--reap", lease_id, stdin=answer)
            assert code == 1
            assert "small:7b on box-c" in err
            assert "Nothing was taken" in err
        code, _, err = await pool.run("leaks", "--reap", "nobody")
        assert (code, err.strip()[:36]) == (1, "aibs: There is no living lease nobody"[:36])
        code, _, err = await pool.run("leaks", "--reap", lease_id, "--yes")
        assert code == 1
        assert "was renewed" in err
        assert "--force" in err
        assert await pool.events("LeaseRevoked") == []
        forced = ("leaks", "--reap", lease_id, "--force", "--reason", "stuck")
        code, out, err = await pool.run(*forced, stdin=b"y\n")
        assert code == 0, err
        assert "is revoked" in out
        code, out, _ = await pool.run(*forced, "--yes")
        assert (code, "was revoked already" in out) == (0, True)
        (event,) = await pool.events("LeaseRevoked")
        assert (event.data["why"], "@" in event.data["by"]) == ("stuck", True)
        status, document = await pool.leaks()
        assert (status, document["leases"][0]["state"]) == (0, "revoked")
        assert document["counts"]["revoked"] == 1
        assert await pool.release(pool.leases[0], "c") == "late"
        status, document = await pool.leaks()
        assert (status, document["leases"][0]["state"]) == (0, "reaped")
        assert document["counts"]["reaped"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("leaks", "--since", "soon"), "--since is 'soon', not a duration"),
        (("leaks", "--since", "0s"), "--since is '0s', not a duration"),
        (("leaks", "--since", "999999999d"), "longer than ten years"),
        (("leaks", "--reap", "x", "--json"), "--reap goes alone"),
        (("leaks", "--force"), "none is named"),
        (("node", "cordon", "box-c", "--for", "x"), "--for is 'x', not a duration"),
        (("node", "drain", "box-c", "--timeout", "-1s"), "--timeout is '-1s', not a duration"),
    ],
    ids=lambda told: "_".join(told) if isinstance(told, tuple) else "",
)
def test_bad_usage_is_one_sentence_and_exits_2(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    @in_loop
    async def use() -> None:
        code, out, err = await run({}, tmp_path, *arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert len(err.strip().splitlines()) == 1, err

    use()


@pytest.mark.parametrize(
    "arguments",
    [("leaks",), ("status",), ("leaks", "--ack", "x"), ("node", "cordon", "box-c"),
     ("node", "drain", "box-c")],
)  # fmt: skip
def test_a_server_that_is_away_exits_3_and_a_pool_that_is_not_there_exits_1(
    valkey_url: str, namespace: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    @in_loop
    async def use() -> None:
        away = {"AIBS_VALKEY_URL": f"redis://127.0.0.1:{free_port()}"}
        code, out, err = await run(away, tmp_path, *arguments)
        assert (code, out) == (3, ""), err
        empty = {"AIBS_VALKEY_URL": valkey_url, "AIBS_MODEL_CLUSTER_NAMESPACE": namespace}
        code, out, err = await run(empty, tmp_path, *arguments)
        assert (code, out) == (1, ""), err
        assert f"There is no pool {namespace}" in err

    use()


@in_loop
async def test_leaks_and_status_execute_no_command_that_could_write(tmp_path: Path) -> None:
    with ValkeyServer() as server:
        async with scene(server.url, "trace", tmp_path) as pool:
            with _trace(server) as seen:
                await pool.leaks()
                await pool.status()
                await pool.run("leaks")
            names = {name.upper() for name in seen}
            assert "HGETALL" in names, "the trace saw nothing"
            assert not [name for name in names if any(word in name for word in WRITING)], names


@in_loop
async def test_a_drain_that_was_taken_away_by_hand_is_reported_and_fails_the_check(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as pool:
        gone = await pool.grant(8, ttl_ms=1)
        async with asyncio.timeout(ENDING_S):
            while not await pool.events("LeaseExpired"):
                await pool.pool.call("reap", ORDER)
        _, document = await pool.leaks()
        assert document["counts"]["draining"] == 1
        assert document["differences"] == []
        client = cast("Any", pool.pool.client)
        await client.delete(pool.pool.keys.key("drains"))
        status, document = await pool.leaks()
        assert status == 1
        assert document["differences"] == [
            f"The drain of lease {gone} is told by the log, and is not live."
        ]


@in_loop
async def test_a_live_key_changed_by_hand_is_reported_and_fails_the_check(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as pool:
        (lease,) = pool.leases
        keys, client = pool.pool.keys, cast("Any", pool.pool.client)
        heavier = dumps({**lease, "weight_bytes": 1})
        await client.hset(keys.key("leases"), lease["lease_id"], heavier)
        await client.zadd(keys.key("acks"), {"ghost": 1})
        await client.hdel(keys.key("cordons"), "box-e")
        status, document = await pool.leaks()
        assert status == 1
        assert document["consistent_with_live_state"] is False
        told = " ".join(document["differences"])
        name = lease["lease_id"]
        assert f"The lease {name} differs from what the log tells, in weight_bytes." in told
        assert "acknowledgement of lease ghost is live" in told
        assert "cordon of node box-e is told by the log, and is not live" in told
        code, out, _ = await pool.run("leaks")
        assert code == 1
        assert "someone else writes to this pool" in out


@in_loop
async def test_leases_and_residency_are_compared_both_ways(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as pool:
        _, document = await pool.leaks()
        (note,) = document["residency"]
        assert (note["kind"], note["node_id"]) == ("resident_unleased", "box-e")
        box_c = FLEET.nodes[0]
        empty = PollRecord(box_c.node_id, 1, 2, box_c.base_url, 1, True, "", 1, False, b"[]", b"")
        limits = ObserveLimits(2, 60_000, 30_000, 1_000, 600_000)
        await pool.pool.observe("owner", 1, FLEET.fingerprint, [empty], limits)
        status, document = await pool.leaks()
        kinds = {note["node_id"]: note["kind"] for note in document["residency"]}
        assert kinds == {"box-c": "leased_not_resident", "box-e": "resident_unleased"}
        assert status == 0, "a load takes its time: a note is no failure"


@pytest.mark.parametrize("command", ["leaks", "status"])
def test_watched_as_json_it_prints_a_document_a_line_until_ctrl_c(
    valkey_url: str, namespace: str, tmp_path: Path, command: str
) -> None:
    @in_loop
    async def watch() -> None:
        async with scene(valkey_url, namespace, tmp_path) as pool:
            settings = pool.settings
            process = await _start(settings, tmp_path, command, "--watch", "--json")
            assert process.stdout is not None
            for _ in range(2):
                line = await asyncio.wait_for(process.stdout.readline(), ENDING_S)
                assert loads(line)["schema"] == f"aibs.{command}/1"
            process.send_signal(signal.SIGINT)
            _, err = await asyncio.wait_for(process.communicate(), ENDING_S)
            assert process.returncode == 0, err
            assert b"Traceback" not in err

    watch()


@in_loop
async def test_the_status_tells_owner_nodes_leases_and_the_queue_with_its_places(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as pool:
        await pool.grant(1)
        for number in (2, 3):
            assert (await pool.acquire(number, wait_ms=600_000)).word == "queued"
        document = await pool.status()
        assert document["owner"]["owner"] == "owner"
        assert document["owner"]["lease_expires_in_ms"] > 0
        box_c, box_e = document["nodes"]
        assert (box_c["state"], box_c["slots_used"], box_c["slots"]) == ("ready", 2, 2)
        assert sorted(box_c["leases"]) == sorted(lease["lease_id"] for lease in pool.leases)
        assert box_c["budget_bytes"] - box_c["leased_bytes"] == box_c["free_bytes"]
        assert (box_e["state"], box_e["detail"]) == ("cordoned", "work (op)")
        places = [(one["request_id"], one["position"], one["reason"]) for one in document["queue"]]
        assert places == [("r2", 1, "no_slot"), ("r3", 2, "no_slot")]
        assert all(one["waiting_ms"] >= 0 for one in document["queue"])
        for width in ("60", "80", "140"):
            code, out, _ = await pool.run("status", COLUMNS=width)
            assert code == 0
            assert "cordoned: work (op)" in out
            assert "no slot" in out
            assert all(lease["lease_id"] in out for lease in pool.leases)
            assert max(map(len, out.splitlines()[2:])) <= int(width)
            assert not re.search(r"\bNone\b|no_slot", out), out


@in_loop
async def test_nodes_that_were_not_seen_lately_are_stale(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path, aged_ms=AGED_MS) as pool:
        document = await pool.status()
        assert [node["state"] for node in document["nodes"]] == ["stale", "cordoned"]


@in_loop
async def test_a_cordon_keeps_new_leases_off_and_opens_again_by_hand_or_in_time(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as pool:
        cordon = ("node", "cordon", "box-c", "--reason", "new fans")
        for word in ("is cordoned:", "is cordoned already:"):
            code, out, _ = await pool.run(*cordon)
            assert (code, word in out) == (0, True)
        (event,) = [one for one in await pool.events("NodeCordoned") if one.data["why"] != "work"]
        assert (event.data["why"], event.data["until_ms"]) == ("new fans", None)
        assert (await pool.acquire(5)).word == "denied"
        code, out, _ = await pool.run("node", "uncordon", "box-c")
        assert (code, out) == (0, "box-c takes leases again.\n")
        assert (await pool.acquire(6)).word == "granted"
        code, out, _ = await pool.run("node", "uncordon", "box-c")
        assert (code, out) == (0, "box-c was not cordoned.\n")
        code, out, _ = await pool.run(*cordon, "--for", "2h", "--json")
        assert (code, HandDocument.model_validate(loads(out)).changed) == (0, True)
        timed = (await pool.events("NodeCordoned"))[-1]
        assert 0 <= timed.data["until_ms"] - timed.at_ms - 7_200_000 + 5_000 <= 5_000
        code, out, _ = await pool.run("node", "forget", "box-c")
        assert (code, out) == (0, "Forgotten: 1 observed weight of box-c.\n")
        code, out, _ = await pool.run("node", "forget", "box-c")
        assert (code, "nothing to forget" in out) == (0, True)


BEHIND = """
import time
real = time.time_ns
time.time_ns = lambda: real() - 86_400_000_000_000
"""
"""This machine's clock a day behind, for a command's process."""


@pytest.mark.parametrize("verb", ["cordon", "drain"])
def test_a_hands_document_keeps_its_schema_and_tells_the_servers_time(
    valkey_url: str, namespace: str, tmp_path: Path, verb: str
) -> None:
    @in_loop
    async def use() -> None:
        async with scene(valkey_url, namespace, tmp_path) as pool:
            (tmp_path / "sitecustomize.py").write_text(BEHIND)
            wait = ["--timeout", "1ms"] if verb == "drain" else []
            for changed in (True, False):
                arguments = ("node", verb, "box-c", *wait, "--json")
                _, out, _ = await pool.run(*arguments, PYTHONPATH=str(tmp_path))
                told = HandDocument.model_validate(loads(out))
                event = (await pool.events("NodeCordoned"))[-1]
                assert told.generated_at >= rfc3339(event.at_ms), "this machine's clock, not its"
                assert (told.node_id, told.changed) == ("box-c", changed)
                assert told.leases_left == (1 if verb == "drain" else None)
                assert told.empty == (False if verb == "drain" else None)
            code, schema, _ = await pool.run("schema", "node-hand")
            assert code == 0
            assert set(loads(schema)["properties"]) == set(loads(out))
            assert loads(schema)["properties"]["schema"]["const"] == loads(out)["schema"]

    use()


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain", "forget"])
def test_a_node_that_is_not_declared_is_refused_with_the_names_of_those_that_are(
    valkey_url: str, namespace: str, tmp_path: Path, verb: str
) -> None:
    @in_loop
    async def use() -> None:
        async with scene(valkey_url, namespace, tmp_path) as pool:
            code, out, err = await pool.run("node", verb, "box-x")
            assert (code, out) == (1, "")
            said = "aibs: The declared fleet has no node box-x; its nodes are box-c, box-e."
            assert err.strip() == said
            code, out, _ = await pool.run("node", verb, "--help")
            assert f"Example: aibs node {verb} box-c" in out

    use()


def _runs(process: asyncio.subprocess.Process) -> bool:
    return process.returncode is None


async def _cordoned(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stderr.readline(), ENDING_S)
    assert line == b"box-c is cordoned; waiting for its leases to end.\n"


@in_loop
async def test_a_drain_waits_for_the_last_lease(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as pool:
        code, out, _ = await pool.run("node", "drain", "box-c", "--timeout", "1ms", "--json")
        told = HandDocument.model_validate(loads(out))
        assert (code, told.leases_left, told.empty) == (1, 1, False)
        process = await _start(pool.settings, tmp_path, "node", "drain", "box-c")
        await _cordoned(process)
        assert _runs(process), "it must not end before the lease does"
        assert await pool.release(pool.leases[0], "c") == "ok"
        out_bytes, _ = await asyncio.wait_for(process.communicate(), ENDING_S)
        assert process.returncode == 0
        assert out_bytes == b"box-c is cordoned, and no lease is left on it.\n"


@in_loop
async def test_ctrl_c_ends_a_drains_waiting_and_leaves_the_node_cordoned(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path) as pool:
        process = await _start(pool.settings, tmp_path, "node", "drain", "box-c")
        await _cordoned(process)
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), ENDING_S)
        assert process.returncode == 130
        assert b"box-c stays cordoned" in err
        assert b"Traceback" not in err
        assert (await pool.status())["nodes"][0]["state"] == "cordoned"
