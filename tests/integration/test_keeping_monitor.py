"""A real monitor on a long log: it keeps a state and trims, and no term and no poll suffers."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING, Any

from aibs.codec import dumps
from aibs.eventstore.anchor import log_ends
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.pool import CoordinationPool
from aibs.eventstore.snapshots import Snapshots
from aibs.history import catch_up
from aibs.history.agreement import differences_of
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from aibs.reports.moment import PoolReader
from tests.integration.in_loop import in_loop, until
from tests.monitor_process import MonitorProcess, environment, watch

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

    from tests.valkey_server import ValkeyServer

GB = 10**9
NODES = ("box-c", "box-e")
SPECS = tuple(
    SimSpec(name, 90 * GB, (SimModel("llama3:8b", 7 * GB, loaded=True),)) for name in NODES
)
LONG = 50_050
PIPELINED = 5_000
LOG_MAX_BYTES = 1_000_000
"""As small as the settings allow."""


def _lengthen(plain: Redis, keys: Keys) -> None:
    """So many events of the past as no test has the time to make by the scripts."""
    stream, pool = keys.key("log"), keys.key("pool")
    held: Any = plain.hget(pool, "seq")
    seq, at_ms = int(held), int(time.time() * 1000)
    fields: dict[Any, Any] = {"type": "SessionEnded", "v": 1, "actor": "past", "fence": ""}
    last: Any = None
    for begun in range(0, LONG, PIPELINED):
        pipeline = plain.pipeline(transaction=False)
        for _ in range(min(PIPELINED, LONG - begun)):
            seq += 1
            data = dumps({"holder": f"holder-{seq}", "why": "gone"})
            told = {**fields, "seq": seq, "at_ms": at_ms, "token": "", "data": data}
            pipeline.xadd(stream, told)
        last = pipeline.execute()[-1]
    plain.hset(pool, mapping={"seq": seq, "last_id": last})


def _size(plain: Redis, keys: Keys) -> int:
    found: Any = plain.memory_usage(keys.key("log"))
    return int(found)


@in_loop
async def test_a_monitor_on_a_long_log_keeps_a_state_trims_and_is_never_late(
    own_valkey: ValkeyServer, namespace: str, tmp_path: Path
) -> None:
    keys = Keys(namespace)
    client = commands(await open_client(own_valkey.url, data_dir=tmp_path, purpose="write"))
    await CoordinationPool(client, keys, "first", recovery_ms=1).open()
    plain = own_valkey.client()
    _lengthen(plain, keys)
    assert _size(plain, keys) > LOG_MAX_BYTES * 2
    async with contextlib.aclosing(client), SimServer(SPECS) as nodes:
        urls = dict(zip(NODES, nodes.urls, strict=True))
        settings = {
            **environment(own_valkey.url, namespace, urls),
            "AIBS_MODEL_CLUSTER_LOG_MAX_BYTES": str(LOG_MAX_BYTES),
        }
        pool, close = await watch(own_valkey.url, namespace, tmp_path)
        snapshots = Snapshots(client, keys)
        try:
            with MonitorProcess(settings, tmp_path, "a") as first:
                owner = await pool.owner_of(first)
                await until(lambda: _size(plain, keys) < LOG_MAX_BYTES * 1.1)
                (info,) = await snapshots.list()
                ends = await log_ends(client, keys)
                assert 1 < ends.first_seq < info.upto_seq
                events = [event for event in await pool.log.newest(1000) if first.owns(event)]
                assert {event.fence for event in events} == {owner.fence}
                kinds = {event.type for event in events}
                assert {"SnapshotTaken", "LogTrimmed"} <= kinds
                assert "NodeHealthChanged" not in kinds, "no poll was late"
                assert [e.type for e in events].count("OwnerElected") == 1, "nor a renewal"
                moment = await PoolReader(client, keys).moment(3_600_000)
                assert differences_of(moment.live, moment.folded) == []
                first.signal(signal.SIGKILL)
                with MonitorProcess(settings, tmp_path, "b") as second:
                    later = await pool.owner_of(second, above=owner.fence or 0)
                    await pool.observed_under(later.fence or 0, NODES)
                    state = await catch_up(pool.log, snapshots)
                    assert state.began == info.upto_id
                    assert state.holes == 0
                    assert "keeping_failed" not in second.output() + first.output()
        finally:
            await close()
            plain.close()
