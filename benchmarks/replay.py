"""What reading the past costs: folding a log against reading its raw stream with the same client,
a file folded by every projection, a past state from a snapshot, and the bytes of an event.

Ratios within one run, taken in turns so that a busy machine slows both sides alike.

    python benchmarks/replay.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from generated_log import write
from redis import Redis

from aibs.codec import dumps, dumps_pretty
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.embedded import EmbeddedValkey
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import BATCH, Log, after
from aibs.eventstore.snapshots import Snapshots, digest_of, pack
from aibs.history import catch_up, catch_up_all
from aibs.projections import Coordination, Engine, digest
from aibs.projections.capacity import Capacity
from aibs.projections.catalogue import all_folds
from aibs.replay.archive import ArchiveReader, ArchiveWriter
from aibs.replay.entries import event_of, read_entry
from aibs.replay.header import LogHeader, Timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aibs.eventstore.commands import Commands

EVENTS = 1_000_000
EVENTS_QUICK = 100_000
SNAPSHOT_EVERY = 50_000


@dataclass(frozen=True, slots=True)
class Figures:
    """Rates in events a second, on one core; the others say what they are in their names."""

    fold_over_raw_read: float
    file_events_per_second: int
    peak_rss_mb: int
    events: int
    raw_read_events_per_second: int
    fold_events_per_second: int
    file_fold_over_raw_read: float
    export_events_per_second: int
    as_of_ms: int
    snapshot_bytes: int
    valkey_bytes_per_event: int
    file_bytes_per_event: int
    gzip_bytes_per_event: int


@contextlib.contextmanager
def _server(directory: Path) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(EmbeddedValkey.ensure(directory))
    try:
        yield f"unix://{server.socket_path}"
    finally:
        loop.run_until_complete(server.close())
        loop.close()


async def _raw(client: Commands, keys: Keys) -> float:
    """Seconds to read every entry and do nothing with it."""
    begun, start = time.perf_counter(), "-"
    while True:
        entries = await client.xrange(keys.key("log"), start, "+", count=BATCH)
        if len(entries) < BATCH:
            return time.perf_counter() - begun
        start = after(entries[-1][0].decode())


async def _folded(log: Log) -> tuple[float, Engine]:
    """Seconds to read every event and fold capacity and leases."""
    begun = time.perf_counter()
    engine = Engine.joining((Capacity(), Coordination()))
    async for entries in log.batches():
        engine.apply_entries(entries)
    return time.perf_counter() - begun, engine


async def _export(log: Log, path: Path) -> float:
    begun = time.perf_counter()
    with ArchiveWriter(path) as writer:
        async for entry in log.entries():
            writer.add(read_entry(*entry))
        writer.finish(
            LogHeader(
                schema="aibs.log/1",
                pool_id="bench",
                namespace="bench",
                timing=Timing(staleness_ms=20_000, heartbeat_ms=30_000, swap_max_ms=60_000),
                snapshot=None,
                fleet=None,
                count=writer.count,
                first_id=writer.first_id,
                last_id=writer.last_id,
            )
        )
    return time.perf_counter() - begun


def _from_file(path: Path) -> tuple[float, Engine]:
    """Seconds to read a file and fold every projection."""
    begun = time.perf_counter()
    engine = Engine.joining(all_folds())
    for item in ArchiveReader(path).items():
        event = event_of(item)
        assert event is not None
        engine.apply(event)
    return time.perf_counter() - begun, engine


async def _keep(plain: Redis, log: Log, snapshots: Snapshots) -> int:
    """A snapshot each so many events, as the owner would have taken them: the bytes of the last."""
    engine, size = Engine.joining(all_folds()), 0
    async for event in log.read():
        engine.apply(event)
        if engine.position.seq % SNAPSHOT_EVERY == 0:
            size = _store(plain, snapshots.keys, engine)
    return size


def _store(plain: Redis, keys: Keys, engine: Engine) -> int:
    packed = [pack(fold.document()) for fold in engine.folds]
    position, snapshot_id = engine.position, f"s{engine.position.seq}"
    for one in packed:
        for name, body in zip(one.stored.part_names(), one.parts, strict=True):
            plain.hset(keys.key("snapshot_parts"), f"{snapshot_id}|{name}", body)
    record = {
        "snapshot_id": snapshot_id,
        "pool_id": "bench",
        "upto_id": position.last_id,
        "upto_seq": position.seq,
        "upto_at_ms": position.at_ms,
        "anchor": position.last_hash,
        "digest": digest_of((one.stored.name, one.stored.sha256) for one in packed),
        "event_id": position.last_id,
        "folds": [one.stored.document() for one in packed],
    }
    plain.hset(keys.key("snapshots"), snapshot_id, dumps(record))
    return sum(one.stored.bytes for one in packed)


async def _as_of(log: Log, snapshots: Snapshots, until: str) -> float:
    begun = time.perf_counter()
    await catch_up(log, snapshots, until)
    return time.perf_counter() - begun


async def _measure(url: str, plain: Redis, keys: Keys, directory: Path, *, turns: int) -> Figures:
    client = commands(await open_client(url, data_dir=directory, purpose="read"))
    log, snapshots = Log(client, keys), Snapshots(client, keys)
    try:
        count = await log.length()
        raws, folds, ratios = [], [], []
        for _ in range(turns):
            before = await _raw(client, keys)
            taken, engine = await _folded(log)
            raw = (before + await _raw(client, keys)) / 2
            raws.append(raw)
            folds.append(taken)
            ratios.append(raw / taken)
        exported = directory / "log.ndjson"
        export_s = await _export(log, exported)
        await _export(log, directory / "log.ndjson.gz")
        from_file = [_from_file(exported) for _ in range(turns)]
        file_s = statistics.median(seconds for seconds, _ in from_file)
        assert digest(from_file[0][1].folds[0]) == digest(engine.folds[1]), "one log, one state"
        log_bytes = plain.memory_usage(keys.key("log")) or 0
        snapshot_bytes = await _keep(plain, log, snapshots)
        # The worst moment: right before the next snapshot.
        entries = await client.xrange(keys.key("log"), "-", "+", count=1)
        worst = await _id_of(log, min(count, 2 * SNAPSHOT_EVERY) - 1, entries[0][0].decode())
        as_of_s = await _as_of(log, snapshots, worst)
        latest = await catch_up_all(log, snapshots, (Coordination,))
        assert digest(latest.folds[0]) == digest(engine.folds[1]), "a snapshot leads there too"
        return Figures(
            fold_over_raw_read=round(statistics.median(ratios), 3),
            file_events_per_second=round(count / file_s),
            peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            events=count,
            raw_read_events_per_second=round(count / statistics.median(raws)),
            fold_events_per_second=round(count / statistics.median(folds)),
            file_fold_over_raw_read=round(statistics.median(raws) / file_s, 3),
            export_events_per_second=round(count / export_s),
            as_of_ms=round(as_of_s * 1000),
            snapshot_bytes=snapshot_bytes,
            valkey_bytes_per_event=round(log_bytes / count),
            file_bytes_per_event=round(exported.stat().st_size / count),
            gzip_bytes_per_event=round((directory / "log.ndjson.gz").stat().st_size / count),
        )
    finally:
        await client.aclose()


async def _id_of(log: Log, seq: int, start: str) -> str:
    async for event in log.read(start):
        if event.seq == seq:
            return event.id
    raise AssertionError(seq)


def measure(*, quick: bool) -> Figures:
    """All figures in one run on one server."""
    keys = Keys("bench")
    with (
        tempfile.TemporaryDirectory(prefix="aibs-bench-") as name,
        _server(Path(name)) as url,
        contextlib.closing(Redis.from_url(url)) as plain,
    ):
        write(plain, keys, EVENTS_QUICK if quick else EVENTS, int(time.time() * 1000))
        return asyncio.run(_measure(url, plain, keys, Path(name), turns=3 if quick else 1))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 events")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    figures = measure(quick=options.quick)
    if options.json:
        sys.stdout.write(dumps_pretty(asdict(figures)) + "\n")
        return
    for name, value in asdict(figures).items():
        sys.stdout.write(f"{name:32} {value}\n")


if __name__ == "__main__":
    main()
