"""What a real monitor makes of nodes that answer, lie, hang and come back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import httpx
from redis import Redis

from aibs.eventstore.keys import Keys
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from tests.integration.in_loop import in_loop
from tests.monitor_process import (
    STALENESS_MS,
    MonitorProcess,
    Pool,
    assert_safe,
    environment,
    watch,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from aibs.eventstore.events.envelope import Event

GB = 10**9
FAULTS = (
    "hang",
    "error_500",
    "html",
    "garbage",
    "truncated",
    "empty",
    "not_found",
    "huge",
    "stalled",
    "cut",
    "reset",
)
GOOD = "good"


def _spec(name: str) -> SimSpec:
    return SimSpec(
        name,
        90 * GB,
        (SimModel("llama3:8b", 7 * GB, loaded=True), SimModel("stranger:1b", GB)),
        load_seconds=0.0,
    )


@contextlib.asynccontextmanager
async def scene(
    url: str, namespace: str, tmp_path: Path, names: tuple[str, ...]
) -> AsyncIterator[tuple[Pool, Callable[..., MonitorProcess], SimServer]]:
    """Nodes, a watched pool and monitors of them; `urls` and other settings may be replaced."""
    async with SimServer([_spec(name) for name in names]) as nodes:
        pool, close = await watch(url, namespace, tmp_path)

        def monitor(name: str, **settings: str) -> MonitorProcess:
            wanted = environment(url, namespace, dict(zip(names, nodes.urls, strict=True)))
            return MonitorProcess({**wanted, **settings}, tmp_path, name)

        try:
            yield pool, monitor, nodes
        finally:
            await close()


def _newest(events: list[Event], node_id: str, *types: str) -> Event | None:
    found = [e for e in events if e.type in types and e.data.get("node_id") == node_id]
    return found[-1] if found else None


def _health(events: list[Event], node_id: str) -> bool | None:
    event = _newest(events, node_id, "NodeHealthChanged", "ResidencyObserved")
    return None if event is None else event.data["healthy"]


@in_loop
async def test_nodes_that_fail_in_every_way_delay_no_other_and_cost_no_term(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    names = (*FAULTS, GOOD)
    async with scene(valkey_url, namespace, tmp_path, names) as (pool, monitor, nodes):
        for number, fault in enumerate(FAULTS):
            nodes.node(number).inject(answer=fault)
        with monitor("a") as process:
            events = await pool.until(
                lambda es: all(_health(es, fault) is False for fault in FAULTS),
                "every faulty node is unhealthy",
            )
            # Never seen: no residency is made up for them.
            assert {e.data["node_id"] for e in events if e.type == "ResidencyObserved"} == {GOOD}
            for _ in range(20):
                stamp = (await pool.live.stamps())[GOOD]
                age_ms = stamp.age_ms(await pool.live.server_now_ms())
                assert age_ms is not None
                assert age_ms < STALENESS_MS
                await asyncio.sleep(0.05)
            for number in range(len(FAULTS)):
                nodes.node(number).heal()
            events = await pool.until(
                lambda es: all(_health(es, fault) is True for fault in FAULTS),
                "every healed node is healthy",
            )
            assert len([e for e in events if e.type == "OwnerElected"]) == 1
            assert process.running
            assert_safe(events)


@in_loop
async def test_a_node_turns_unhealthy_at_the_threshold_and_returns_after_two_good_polls(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path, (GOOD,)) as (pool, monitor, nodes):
        with monitor("a"):
            await pool.until(lambda es: _health(es, GOOD) is True, "healthy at first")
            nodes.node().inject(answer="error_500")
            events = await pool.until(lambda es: _health(es, GOOD) is False, "unhealthy")
            turned = _newest(events, GOOD, "NodeHealthChanged")
            assert turned is not None
            assert turned.data["failed_in_row"] == 2
            stamp = (await pool.live.stamps())[GOOD]
            assert stamp.observed_at_ms < turned.at_ms, "a failed poll must not freshen the stamp"
            nodes.node().heal()
            events = await pool.until(lambda es: _health(es, GOOD) is True, "healthy again")
            samples = _samples(valkey_url, namespace)
            last_bad = max(n for n, (outcome, _) in enumerate(samples) if outcome != "ok")
            after = [healthy for _, healthy in samples[last_bad + 1 :]]
            assert after[:2] == ["0", "1"], "one good poll is not enough"


def _samples(url: str, namespace: str) -> list[tuple[str, str]]:
    with contextlib.closing(Redis.from_url(url, decode_responses=True)) as client:
        entries: Any = client.xrange(Keys(namespace).key("samples"))
        return [(fields["outcome"], fields["healthy"]) for _, fields in entries]


@in_loop
async def test_a_node_that_is_loading_is_not_taken_for_unreachable(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path, (GOOD,)) as (pool, monitor, nodes):
        nodes.node().inject(answer="hang", paths=("/api/ps",))
        with monitor("a"):
            events = await pool.until(lambda es: _health(es, GOOD) is False, "unhealthy")
            turned = _newest(events, GOOD, "NodeHealthChanged")
            assert turned is not None
            assert turned.data["reason"] == "loading"


@in_loop
async def test_a_change_of_residency_is_an_event_and_calm_is_none(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path, (GOOD,)) as (pool, monitor, nodes):
        with monitor("a"):
            events = await pool.until(lambda es: _health(es, GOOD) is True, "observed")
            calm = len(events)
            await _polls(valkey_url, namespace, 4)
            assert len(await pool.events()) == calm
            async with httpx.AsyncClient() as client:
                await client.post(f"{nodes.url()}/api/generate", json={"model": "stranger:1b"})
            events = await pool.until(
                lambda es: (
                    (_newest(es, GOOD, "ResidencyObserved") or es[0]).data.get("foreign_bytes")
                    == GB
                ),
                "the stranger is seen",
            )
            seen = _newest(events, GOOD, "ResidencyObserved")
            assert seen is not None
            assert {m["name"]: m["ownership"] for m in seen.data["models"]} == {
                "llama3:8b": "own",
                "stranger:1b": "foreign",
            }
            telemetry = await pool.live.telemetry(GOOD)
            assert telemetry is not None
            assert telemetry["foreign_bytes"] == GB


async def _polls(url: str, namespace: str, count: int) -> None:
    """Wait for so many more polls to be recorded."""
    with contextlib.closing(Redis.from_url(url)) as client:
        key = Keys(namespace).key("samples")
        wanted = client.xlen(key) + count
        while client.xlen(key) < wanted:  # noqa: ASYNC110 - the count is in Valkey
            await asyncio.sleep(0.05)


@in_loop
async def test_a_model_without_a_plausible_size_makes_the_node_unaccounted(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path, (GOOD,)) as (pool, monitor, nodes):
        nodes.node().inject(ps_body=b'{"models":[{"name":"x:1b","size":-5,"size_vram":-5}]}')
        with monitor("a"):
            events = await pool.until(lambda es: _health(es, GOOD) is not None, "observed")
            seen = _newest(events, GOOD, "ResidencyObserved")
            assert seen is not None
            assert seen.data["unaccounted"] is True
            assert seen.data["foreign_bytes"] is None


@in_loop
async def test_a_fleet_changes_only_by_a_higher_revision(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with scene(valkey_url, namespace, tmp_path, ("box-c", "box-e")) as (pool, monitor, nodes):
        with monitor("a"):
            await pool.until(lambda es: _health(es, "box-e") is True, "both observed")
        only_c = {
            "AIBS_MODEL_CLUSTER_NODE_IDS": "box-c",
            "AIBS_MODEL_CLUSTER_NODE_URLS": nodes.url(0),
        }
        with monitor("b", **only_c) as differing:
            elected = await pool.owner_of(differing)
            # It polls the declared fleet, and says that its settings are another.
            events = await pool.observed_under(elected.fence or 0, ("box-c", "box-e"))
            assert "fleet_mismatch" in differing.output()
            assert len([e for e in events if e.type == "FleetDeclared"]) == 1
        with monitor("c", **only_c, AIBS_MODEL_CLUSTER_FLEET_REVISION="1") as changing:
            elected = await pool.owner_of(changing)
            events = await pool.observed_under(elected.fence or 0, ("box-c",))
            declared = [e for e in events if e.type == "FleetDeclared"]
            assert declared[-1].data["changes"] == ["node box-e removed"]
            assert set(await pool.live.nodes()) == {"box-c"}


@in_loop
async def test_the_same_weights_under_another_name_are_own_and_charged_once(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    aliased = SimSpec(
        "box-c",
        90 * GB,
        (
            SimModel("someone/alias:x", 7 * GB, weights="w", loaded=True),
            SimModel("llama3:8b", 7 * GB, weights="w"),
        ),
    )
    async with SimServer([aliased]) as nodes:
        pool, close = await watch(valkey_url, namespace, tmp_path)
        settings = environment(valkey_url, namespace, {"box-c": nodes.url()})
        with MonitorProcess(settings, tmp_path, "a"):
            events = await pool.until(lambda es: _health(es, "box-c") is True, "observed")
            seen = _newest(events, "box-c", "ResidencyObserved")
            assert seen is not None
            assert (seen.data["own_bytes"], seen.data["foreign_bytes"]) == (7 * GB, 0)
        await close()
