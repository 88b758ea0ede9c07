"""The past read on from a kept state is the past read from the beginning, and what was live."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aibs.codec import dumps
from aibs.replay.answers import to_json
from aibs.replay.as_of import as_of_document
from aibs.replay.export import export
from aibs.replay.points import Bound
from aibs.replay.source import FileSource, LiveSource
from aibs.replay.states import Past, fold_to
from aibs.settings import load
from tests.integration.in_loop import in_loop
from tests.kept_world import KeptWorld
from tests.recorded_pool import RecordedPool, tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aibs.replay.source import Source

LONG_MS = 600_000


def run(*arguments: str, **environment: str) -> Any:
    """What is printed; of a document, all but when it was made."""
    done = subprocess.run(
        [sys.executable, "-m", "aibs", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if "--json" not in arguments:
        return done.stdout
    document = json.loads(done.stdout)
    del document["generated_at"]
    return document


def room(document: Any, node_id: str = "box-c") -> tuple[Any, ...]:
    (node,) = (one for one in document["nodes"] if one["node_id"] == node_id)
    names = ("slots_draining", "slots_used", "leased_bytes", "free_bytes", "leases")
    return tuple(node[name] for name in names)


@asynccontextmanager
async def drained(url: str, namespace: str) -> AsyncIterator[tuple[RecordedPool, str]]:
    """One slot of box-c is leased, the other drains; a state is kept, and the log goes on."""
    pool = await RecordedPool.open(url, namespace)
    try:
        await pool.placed.open()
        await pool.expire(7, drain_ms=LONG_MS)
        info = await pool.keep("one")
        await pool.observe(tenant())
        yield pool, info.upto_id
    finally:
        await pool.close()


@in_loop
async def test_a_past_that_begins_with_a_kept_state_knows_the_slots_that_drained_then(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with drained(valkey_url, namespace) as (pool, kept_id):
        env = pool.settings(valkey_url)
        live = run("status", "--json", **env)
        assert room(live)[:2] == (1, 2)
        for moment in ("now", kept_id):
            assert room(run("replay", "--as-of", moment, "--json", **env))[:2] == (1, 2)
        assert room(run("replay", "--as-of", "now", "--json", **env)) == room(live)
        last_id = run("replay", "--as-of", "now", "--json", **env)["last_id"]
        told = run("replay", "--as-of", last_id, "--json", **env)
        # The whole log in a file is read from its beginning.
        whole, rest = tmp_path / "whole.ndjson", tmp_path / "rest.ndjson"
        run("replay", "--export", str(whole), **env)
        assert run("replay", "--from", str(whole), "--as-of", last_id, "--json") == told
        # A part of it begins with the state before.
        run("replay", "--export", str(rest), "--since", last_id, **env)
        assert json.loads(rest.read_bytes().splitlines()[0])["snapshot"]["id"] != "0-0"
        assert run("replay", "--from", str(rest), "--as-of", last_id, "--json") == told
        answer = run("replay", "--diff", kept_id, last_id, "--json", **env)
        assert answer == run("replay", "--from", str(whole), "--diff", kept_id, last_id, "--json")


@in_loop
async def test_a_trimmed_log_and_its_export_know_the_slots_that_drain(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with drained(valkey_url, namespace) as (pool, _):
        env = pool.settings(valkey_url)
        last_id = run("replay", "--as-of", "now", "--json", **env)["last_id"]
        await pool.release(pool.placed.leases[0])
        await pool.observe()
        before = run("replay", "--as-of", last_id, "--json", **env)
        assert room(before)[0] == 1
        info = await pool.keep("two")
        assert await pool.let_go(info)
        last_id = run("replay", "--as-of", "now", "--json", **env)["last_id"]
        told = run("replay", "--as-of", last_id, "--json", **env)
        assert room(told)[:2] == (1, 1)
        path = tmp_path / "log.ndjson.zst"
        run("replay", "--export", str(path), **env)
        assert run("replay", "--from", str(path), "--as-of", last_id, "--json") == told


def abandon_some(kept: KeptWorld) -> None:
    """Requests are granted where there is room, and their holders are gone."""
    world = kept.world
    world.observe_all()
    for _ in range(3):
        kept.walk.acquire()
        world.check()
    deadlines = [one.deadline_ms for one in world.folded.leases.living.values()]
    world.clock.set(max([world.clock.now_ms, *deadlines]))
    kept.walk.reap()
    world.check()


@pytest.mark.parametrize("seed", range(2))
def test_every_past_moment_is_the_same_from_any_kept_state_and_from_the_beginning(
    valkey_url: str, seed: int, tmp_path: Path
) -> None:
    kept, chance = KeptWorld(valkey_url, seed), random.Random(seed)
    world = kept.world
    try:
        moments: list[tuple[str, int]] = []
        for _ in range(60):
            kept.walk.take(1)
            moments.append((world.folded.last_id, world.clock.now_ms))
            if chance.random() < 0.2:
                abandon_some(kept)
                kept.take()
                world.check()
        configured = load({"AIBS_MODEL_CLUSTER_NAMESPACE": world.namespace}, None)
        live = LiveSource(world.client, configured, world.folded.identity.pool_id)
        world.run(export(live, tmp_path / "log.ndjson"))
        whole = FileSource(tmp_path / "log.ndjson")

        async def told(source: Source, last_id: str, at_ms: int) -> tuple[bytes, str | None, int]:
            folded, partial = await fold_to(source, Bound(id=last_id))
            past = Past(folded, at_ms, partial)
            document = as_of_document(past, source.timing, source.namespace, generated_ms=at_ms)
            state = folded.coordination
            return dumps(to_json(document)), state.began, len(state.drains.held)

        began, drained = set(), 0
        for last_id, at_ms in moments:
            from_kept, base, held = world.run(told(live, last_id, at_ms))
            from_beginning, none, _ = asyncio.run(told(whole, last_id, at_ms))
            assert none is None
            assert from_kept == from_beginning, (last_id, base)
            began.add(base)
            drained += base is not None and held > 0
        assert len(began) > 3
        assert drained > 3, "hardly a slot drained"
    finally:
        kept.close()
