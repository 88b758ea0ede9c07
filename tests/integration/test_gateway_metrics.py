"""The metrics of a gateway: the table of names, what vanishes, what only grows, several workers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from aibs import logs
from aibs.codec import dumps
from aibs.errors import Fenced
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.pool import ObserveLimits, PollRecord
from aibs.fleet import Fleet, Node
from aibs.gateway.control.follower import Follower
from aibs.gateway.control.names import ModelNames
from aibs.gateway.control.watch import READ_EVERY_S
from aibs.lanes import lane_arguments
from tests.control_plane import environ_of, instance
from tests.integration.in_loop import in_loop
from tests.placement_desk import FRESH_MS, GB, MODEL, WORKER, desk
from tests.placement_scene import until_true
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from aibs.eventstore.pool import CoordinationPool
    from tests.control_plane import Instance
    from tests.placement_desk import Desk
    from tests.valkey_server import ValkeyServer

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]

TABLE = {
    name: (kind, frozenset(labels.split(",")) - {""})
    for name, kind, labels in (
        line.split("\t")
        for line in (Path(__file__).parent.parent / "data" / "metrics.tsv")
        .read_text()
        .splitlines()[1:]
    )
}
"""By the name that a series carries: type, labels."""

LIMITS = ObserveLimits(2, FRESH_MS, 30_000, 1_000, 600_000)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Lines of a test's own gateways are no news."""
    logs.configure("error", "json")
    yield
    structlog.reset_defaults()


def parse(text: str) -> Iterable[Metric]:
    return text_string_to_metric_families(text)


def _openmetrics(text: str) -> Iterable[Metric]:
    return openmetrics_families(text)  # type: ignore[no-untyped-call,no-any-return]


async def families(one: Instance) -> dict[str, Metric]:
    """By the name in the table."""
    answer = await one.client.get("/metrics")
    assert answer.status_code == 200
    found = {}
    for family in parse(answer.text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name not in found, f"{name} twice"
        found[name] = family
    return found


async def values(one: Instance) -> Values:
    """Every series."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in (await families(one)).values()
        for sample in family.samples
    }


def of(found: Values, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


async def until_value(one: Instance, wanted: float | None, name: str, **labels: str) -> None:
    async def so() -> bool:
        return of(await values(one), name, **labels) == wanted

    await until_true(so, f"{name} {labels} {wanted}")


async def owner_pool(table: Desk) -> CoordinationPool:
    return (await table.backend(holder="owner"))._pool


def resident(name: str, key: str | None, ownership: str, size: int) -> dict[str, Any]:
    return {
        "name": name,
        "key": key,
        "digest": "d" * 64,
        "size_bytes": size,
        "size_vram_bytes": size,
        "context_length": 4096,
        "placement": "gpu",
        "ownership": ownership,
        "worker_ids": [],
        "keeps_forever": False,
        "expires_at_ms": None,
        "charge_bytes": size,
        "roster_keys": [key] if ownership == "own" else [],
    }


async def observe(table: Desk, seq: int, *, good: bool = True, models: Any = ()) -> None:
    pool = await owner_pool(table)
    url = table.fleet.nodes[0].base_url
    poll = PollRecord(
        "box-c",
        1,
        seq,
        url,
        1,
        good,
        "" if good else "timeout",
        30,
        False,
        dumps(list(models)),
        b"",
    )
    await pool.observe("owner", 1, table.fleet.fingerprint, [poll], LIMITS)


async def make_everything_happen(table: Desk, one: Instance) -> None:
    """Something under every name of the table."""
    models = [
        resident(MODEL, WORKER.key, "own", 8 * GB),
        resident("theirs:1b", "x/y/theirs:1b", "foreign", 2 * GB),
    ]
    await observe(table, 2, models=models)
    pool = await owner_pool(table)
    with pytest.raises(Fenced):
        await pool.renew("somebody", 0, ttl_ms=1000, mono_ms=1)
    body = {"request_id": "gone", "model": MODEL, "ttl_seconds": 1.0}
    assert (await one.client.post("/placements", json=body)).status_code == 201
    await asyncio.sleep(1.1)
    await pool.call("reap", {"staleness_ms": FRESH_MS, "swap_min_ms": 0, "swap_max_ms": 1})
    # The slot of the one that expired is free when its node was seen since.
    await observe(table, 3, models=models)
    body = {"request_id": "r1", "model": MODEL}
    lease = (await one.client.post("/placements", json=body)).json()
    for kind, outcome in (("loading", ""), ("loaded", "ok")):
        await pool.call(
            "model",
            {
                "lease_id": lease["lease_id"],
                "token": lease["token"],
                "kind": kind,
                "model": MODEL,
                "ms": 1500,
                "outcome": outcome,
            },
        )
    await observe(table, 4, good=False)
    meter = one.control.meter
    meter.first_byte(MODEL, 0.2)
    meter.tokens(MODEL, "output", 12)
    meter.upstream_failed("box-c", "connect")
    meter.client_left("streaming")


# --- the table


@in_loop
async def test_every_metric_of_the_table_is_served_with_its_type_and_labels(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path, slots=1) as table,
        instance(environ_of(table)) as one,
    ):
        await make_everything_happen(table, one)
        asking = asyncio.create_task(
            one.client.post(
                "/placements", json={"request_id": "r2", "model": MODEL, "wait_seconds": 60}
            )
        )
        await until_value(one, 1, "aibs_queue_depth", model=MODEL, priority="normal")
        found = await families(one)
        assert {name: family.type for name, family in found.items()} == {
            name: kind for name, (kind, _) in TABLE.items()
        }
        for name, family in found.items():
            assert family.samples, f"nothing under {name}"
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == TABLE[name][1], sample
                assert sample.value == sample.value, f"{sample} is no number"
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@in_loop
async def test_both_formats_are_well_formed(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        plain = await one.client.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        answer = await one.client.get("/metrics", headers=accept)
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        names = {family.name for family in _openmetrics(answer.text)}
        assert {name.removesuffix("_total") for name in TABLE} == names
        assert "_created" not in plain.text + answer.text


@in_loop
async def test_the_values_are_the_pools(valkey_url: str, namespace: str, tmp_path: Path) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path, slots=1) as table,
        instance(environ_of(table)) as one,
    ):
        await make_everything_happen(table, one)
        await until_value(one, 1, "aibs_leases_active", node="box-c", model=MODEL)
        await until_value(one, 0, "aibs_node_up", node="box-c")
        await until_value(one, 4, "aibs_node_poll_duration_seconds_count", node="box-c")
        loads = {"node": "box-c", "model": MODEL, "outcome": "ok"}
        await until_value(one, 1, "aibs_model_loads_total", **loads)
        found = await values(one)
        box = {"node": "box-c"}
        assert of(found, "aibs_node_up", **box) == 0
        assert of(found, "aibs_node_healthy", **box) == 1
        assert of(found, "aibs_node_budget_bytes", **box) == 80 * GB
        assert of(found, "aibs_node_slots", **box) == 1
        assert of(found, "aibs_node_slots_used", **box) == 1
        assert of(found, "aibs_node_foreign_bytes", **box) == 2 * GB
        assert of(found, "aibs_node_own_resident_bytes", **box) == 8 * GB
        assert of(found, "aibs_model_resident_bytes", **box, model=MODEL, ownership="own") == 8 * GB
        theirs = of(found, "aibs_model_resident_bytes", **box, model="other", ownership="foreign")
        assert theirs == 2 * GB
        assert of(found, "aibs_node_poll_failures_total", **box, reason="timeout") == 1
        assert of(found, "aibs_node_poll_duration_seconds_count", **box) == 4
        assert of(found, "aibs_owner_elections_total", reason="vacant") == 1
        assert of(found, "aibs_fenced_writes_rejected_total", script="renew") == 1
        assert of(found, "aibs_leases_total", end="expired") == 1
        assert of(found, "aibs_leases_leaked_total", state="expired_unreleased") == 1
        assert of(found, "aibs_model_load_duration_seconds_sum", **loads) == 1.5
        assert of(found, "aibs_log_events_total", type="LeaseAcquired") == 2
        assert of(found, "aibs_placements_total", outcome="granted", reason="") == 2
        length = of(found, "aibs_log_length")
        assert length == sum(v for (name, _), v in found.items() if name == "aibs_log_events_total")


# --- what vanishes


@pytest.mark.parametrize("left", [(Node("box-z", "http://box-z:11434", GB, 1),), ()])
@in_loop
async def test_a_node_that_leaves_takes_all_its_values_along(
    valkey_url: str, namespace: str, tmp_path: Path, left: tuple[Node, ...]
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        lease = (
            await one.client.post("/placements", json={"request_id": "r", "model": MODEL})
        ).json()
        pool = await owner_pool(table)
        for kind, outcome in (("loading", ""), ("loaded", "ok")):
            told = {"lease_id": lease["lease_id"], "token": lease["token"], "kind": kind}
            await pool.call("model", {**told, "model": MODEL, "ms": 1500, "outcome": outcome})
        path = f"/placements/{lease['lease_id']}"
        await one.client.request("DELETE", path, json={"token": lease["token"]})
        one.control.meter.upstream_failed("box-c", "connect")
        await observe(table, 2, good=False)
        loads = {"node": "box-c", "model": MODEL, "outcome": "ok"}
        await until_value(one, 1, "aibs_model_loads_total", **loads)
        await until_value(one, 1, "aibs_node_poll_failures_total", node="box-c", reason="timeout")
        failures = {"node": "box-c", "kind": "connect"}
        await until_value(one, 1, "aibs_gateway_upstream_failures_total", **failures)
        await declare(table, Fleet(1, left, (WORKER,)))

        async def gone() -> bool:
            found = await values(one)
            return not any(("node", "box-c") in labels for _, labels in found)

        await until_true(gone, "no value of the node that left")
        # It came back: what this process counted of it goes on, as counters do.
        one.control.meter.upstream_failed("box-c", "connect")
        await declare(table, replace(table.fleet, revision=2))
        await until_value(one, 2, "aibs_gateway_upstream_failures_total", **failures)


@in_loop
async def test_a_node_that_leaves_takes_its_values_along(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        await observe(table, 2, good=False)
        await until_value(one, 1, "aibs_node_poll_failures_total", node="box-c", reason="timeout")
        await declare(table, Fleet(1, (Node("box-z", "http://box-z:11434", GB, 1),), (WORKER,)))

        async def gone() -> bool:
            found = await values(one)
            return not any(("node", "box-c") in labels for _, labels in found)

        await until_true(gone, "no value of the node that left")
        found = await values(one)
        assert of(found, "aibs_node_slots", node="box-z") == 1
        # What is not known of the new one is left out, and not shown as nothing.
        for name in ("up", "healthy", "stamp_age_seconds", "foreign_bytes", "own_resident_bytes"):
            assert of(found, f"aibs_node_{name}", node="box-z") is None


@in_loop
async def test_another_server_under_an_old_name_has_nothing_of_its_predecessors(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        await until_value(one, 1, "aibs_node_up", node="box-c")
        (node,) = table.fleet.nodes
        moved = replace(node, base_url="http://elsewhere:11434")
        await declare(table, replace(table.fleet, revision=1, nodes=(moved,)))
        await until_value(one, None, "aibs_node_up", node="box-c")


async def declare(table: Desk, fleet: Fleet) -> None:
    pool = await owner_pool(table)
    declared = await pool.declare(
        "owner",
        1,
        revision=fleet.revision,
        fingerprint=fleet.fingerprint,
        document=dumps(fleet.document()),
        changes=b"[]",
        lanes=lane_arguments(fleet),
    )
    assert declared.word == "ok"


@in_loop
async def test_while_the_pool_is_away_nothing_of_now_is_told_and_counters_stay(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with (
        TcpProxy(own_valkey.port) as proxy,
        desk(own_valkey.url, "metrics", tmp_path) as table,
        instance(environ_of(table, proxy.url)) as one,
    ):
        await until_value(one, 1, "aibs_owner_elections_total", reason="vacant")
        before = await values(one)
        proxy.mode = "hold"
        await until_value(one, 0, "aibs_coordination_up", pool="metrics")
        found = await values(one)
        kept = ("_total", "_count", "_sum", "_bucket")
        shown = {name for name, _ in found if not name.endswith(kept)}
        assert shown == {
            "aibs_build_info",
            "aibs_coordination_up",
            "aibs_gateway_requests_in_flight",
        }
        for key, value in before.items():
            if key[0].endswith(kept):
                assert found[key] >= value, key
        proxy.mode = "pass"
        await until_value(one, 1, "aibs_coordination_up", pool="metrics")


@in_loop
async def test_the_log_is_read_for_the_first_scrape_and_for_nobody_before(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        watch = one.control._watch
        assert watch is not None
        await asyncio.sleep(1.5 * READ_EVERY_S)
        assert watch.follower.folded is None
        assert of(await values(one), "aibs_owner_elections_total", reason="vacant") == 1


@in_loop
async def test_labels_are_names_of_the_fleet_and_never_a_clients_text(
    valkey_url: str, namespace: str, tmp_path: Path
) -> None:
    async with (
        desk(valkey_url, namespace, tmp_path) as table,
        instance(environ_of(table)) as one,
    ):
        meter = one.control.meter
        for name in ("Zqmodel", "Zq model", "Zq:Zq:Zq", "\ud800Zq"):
            meter.ended(f"/Zq/{name}", 200, name, 0.1)
            meter.began(f"/Zq/{name}")
            meter.waited(name, 0.1)
            meter.placed("denied", name, 0.1)
            body = {"request_id": f"{name}".encode("utf-8", "replace").decode(), "model": "Zq"}
            await one.client.post("/placements", json=body)
        await one.client.get("/Zqpath")
        await asyncio.sleep(1.1)
        text = (await one.client.get("/metrics")).text
        assert "Zq" not in text
        found = await values(one)
        assert of(found, "aibs_placements_total", outcome="denied", reason="other") == 4
        # The roster's own, by whichever spelling.
        meter.waited(MODEL.upper(), 0.1)
        await until_value(one, 1, "aibs_queue_wait_seconds_count", model=MODEL)


# --- what only grows


@in_loop
async def test_counters_never_go_back_when_the_log_is_read_anew(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    async with desk(own_valkey.url, "metrics", tmp_path) as table:
        client = commands(
            await open_client(own_valkey.url, data_dir=tmp_path, purpose="read", timeout_s=5)
        )
        try:
            follower = Follower(table.keys, ModelNames(table.fleet))
            await follower.turn(client)
            before = dict(follower.totals.events.items())
            assert before[("OwnerElected",)] == 1
            await follower.turn(client)
            assert dict(follower.totals.events.items()) == before
            plain = own_valkey.client()
            plain.flushall()
            plain.close()
            # The same pool is made anew: its history is another one.
            pool = await owner_pool(table)
            await pool.open()
            await follower.turn(client)
            assert follower.current
            assert dict(follower.totals.events.items()) == before
            await pool.elect("again", "owner", ttl_ms=60_000, mono_ms=1)
            await follower.turn(client)
            after = dict(follower.totals.events.items())
            assert after[("OwnerElected",)] == 2
            assert all(after[key] >= value for key, value in before.items())
        finally:
            await client.aclose()


# --- several workers

WORKER_PROCESS = """
import sys
from aibs.fleet import Fleet
from aibs.gateway.control.meter import GatewayMeter
from aibs.gateway.control.names import ModelNames
from prometheus_client import generate_latest
meter = GatewayMeter(ModelNames(Fleet()))
for _ in range(int(sys.argv[1])):
    meter.began('/api/chat')
    meter.ended('/api/chat', 200, None, 0.1)
meter.began('/api/chat')
if sys.argv[2] == 'closes':
    meter.close()
class Collected:
    def collect(self):
        return meter.collect()
sys.stdout.write(generate_latest(Collected()).decode())
"""


def test_counts_of_several_workers_are_one_sum(tmp_path: Path) -> None:
    import os

    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def run(count: int, way: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", WORKER_PROCESS, str(count), way],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    run(3, "closes")
    run(4, "dies")
    text = run(5, "dies")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }
    route = ("route", "/api/chat")
    assert found["aibs_gateway_requests_total", route, ("status_class", "2xx")] == 12
    assert found["aibs_gateway_request_duration_seconds_count", ("model", "other"), route] == 12
    # One that ended in good order has nothing under way; the dead are struck off by their keeper.
    assert found["aibs_gateway_requests_in_flight", route] == 2
    served = {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in parse(text)
    }
    assert served == {
        name: kind
        for name, (kind, _) in TABLE.items()
        if name.startswith(("aibs_gateway_", "aibs_placement", "aibs_queue_wait"))
    }
