"""What the coordination server and the pool say, by read commands alone: no script, no write."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from redis.exceptions import NoPermissionError, RedisError

from aibs.audit.facts import LogFacts, OtherPool, PoolFacts, ServerSettings
from aibs.audit.wording import printable
from aibs.errors import (
    AibsError,
    Broken,
    CoordinationUnavailable,
    CorruptLog,
    TruncatedLog,
    UnsupportedServer,
)
from aibs.eventstore.commands import Commands
from aibs.eventstore.connection import build_client, open_client
from aibs.eventstore.endpoint import parse_url
from aibs.eventstore.keys import POOL_KEY_PATTERN, Keys, namespace_of_pool_key
from aibs.eventstore.log import Log
from aibs.eventstore.placement_state import PlacementState
from aibs.eventstore.proof_record import last_proof
from aibs.eventstore.server_check import server_info
from aibs.eventstore.snapshots import Snapshots
from aibs.eventstore.state import FleetState, LiveState
from aibs.fleet import Fleet
from aibs.history import catch_up_all
from aibs.history.agreement import differences_of
from aibs.projections.capacity import Capacity
from aibs.projections.coordination import Coordination

if TYPE_CHECKING:
    from pathlib import Path

    from aibs.eventstore.placement_state import LiveParts

CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 10.0

SCAN_COUNT = 1000
SCANS_MAX = 100
"""Looks through at most about 100,000 keys for other pools: the server may hold other things."""

OTHER_POOLS_MAX = 32


class Reader(Commands, Protocol):
    """The read commands beside those of `Commands`."""

    async def info(self, section: str, **where: Any) -> dict[str, Any]: ...
    async def config_get(self, *patterns: str, **where: Any) -> dict[Any, Any]: ...
    async def scan(self, cursor: int, match: str, count: int, **where: Any) -> Any: ...


async def read_pool(url: str, namespace: str, data_dir: Path) -> PoolFacts:
    """Everything at once. A server that cannot be reached or read is an `error`, never raised.

    Never starts an embedded server. Raises ConfigurationError for a URL that cannot be used.
    """
    shown = parse_url(url).display
    try:
        client = await open_client(
            url, data_dir=data_dir, purpose="read", timeout_s=CONNECT_TIMEOUT_S
        )
    except UnsupportedServer as error:
        return await _unsupported(url, shown, error)
    except AibsError as error:
        return PoolFacts(shown, error=str(error))
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await _read(cast("Reader", client), shown, Keys(namespace))
    except TimeoutError:
        return PoolFacts(shown, error=f"{shown} did not answer within {READ_TIMEOUT_S:g} s.")
    except (RedisError, OSError, CoordinationUnavailable) as error:
        return PoolFacts(shown, error=f"{shown} could not be read: {printable(str(error))}.")
    except (Broken, KeyError, ValueError, TypeError) as error:
        return PoolFacts(
            shown,
            error=f"The pool {namespace} on {shown} cannot be read ({type(error).__name__}): "
            "another release may have written it.",
        )
    finally:
        await client.aclose()


async def _unsupported(url: str, shown: str, refusal: UnsupportedServer) -> PoolFacts:
    """What the server is that is not Valkey 8 or newer: it was reached, and nothing is read."""
    client = build_client(parse_url(url), purpose="read", timeout_s=CONNECT_TIMEOUT_S)
    try:
        info = server_info(await cast("Reader", client).info("server"))
    except (RedisError, OSError):
        return PoolFacts(shown, error=str(refusal))
    finally:
        await client.aclose()
    return PoolFacts(shown, server=info.name, version=info.version, run_id=info.run_id or None)


async def _read(client: Reader, shown: str, keys: Keys) -> PoolFacts:
    where = _where(client, keys)
    server = server_info(await client.info("server", **where))
    parts = await PlacementState(client, keys).read_all()
    facts = PoolFacts(
        shown,
        server=server.name,
        version=server.version,
        supported=server.supported,
        run_id=server.run_id or None,
        pool=parts.pool,
        term=parts.term,
        fleet=parts.fleet,
        stamps=parts.stamps,
    )
    if parts.pool is not None:
        facts = await _as_the_log_tells(facts, client, keys, parts)
    # After the stamps, so that none of them seems to lie in the future.
    seconds, micros = await _time(client, where)
    settings = await _settings(client, where)
    facts = replace(facts, last_proof=await last_proof(client, keys.namespace))
    others, complete = await _other_pools(client, keys.namespace)
    return replace(
        facts,
        now_ms=int(seconds) * 1000 + int(micros) // 1000,
        settings=settings,
        other_pools=others,
        other_pools_complete=complete,
    )


async def _as_the_log_tells(
    facts: PoolFacts, client: Reader, keys: Keys, parts: LiveParts
) -> PoolFacts:
    """The fleet, the owner and each node's leases by the fold of the log; what passes with time
    alone (a deadline, a stamp's age) by the live state.
    """
    assert parts.pool is not None
    last_id = parts.pool.last_id
    try:
        reading = await catch_up_all(
            Log(client, keys), Snapshots(client, keys), (Coordination, Capacity), until=last_id
        )
    except (CorruptLog, TruncatedLog) as error:
        return replace(facts, log=LogFacts(last_id, error=str(error)))
    folded, capacity = reading.folds
    assert isinstance(folded, Coordination)
    assert isinstance(capacity, Capacity)
    owner, declared = folded.ownership, folded.declared
    polled = {node_id: stamp.observed_at_ms for node_id, stamp in parts.stamps.items()}
    return replace(
        facts,
        term=facts.term
        and replace(
            facts.term, owner=owner.owner, fence=owner.fence, elected_at_ms=owner.elected_at_ms
        ),
        fleet=None
        if declared.document is None
        else FleetState(
            declared.revision or 0,
            declared.fingerprint or "",
            declared.document,
            declared.event_id or "",
        ),
        log=LogFacts(
            last_id,
            folded.seq,
            None if reading.began is None else reading.began.upto_id,
            {node.node_id: node for node in capacity.at(parts.now_ms, polled)},
            tuple(differences_of(parts, folded)),
        ),
    )


def _where(client: Reader, keys: Keys) -> dict[str, Any]:
    """On a cluster, the node that holds the pool: its clock and its settings count."""
    find = getattr(client, "get_node_from_key", None)
    return {} if find is None else {"target_nodes": find(keys.key("pool"))}


async def _time(client: Reader, where: dict[str, Any]) -> tuple[int, int]:
    return await client.time(**where)


async def _settings(client: Reader, where: dict[str, Any]) -> ServerSettings:
    """The settings on which leases depend; what may not be asked is looked for in INFO."""
    try:
        found = await client.config_get("maxmemory*", "append*", **where)
    except RedisError:
        return await _settings_of_info(client, where)
    values = {_text(name): _text(value) for name, value in found.items()}
    maxmemory = values.get("maxmemory", "")
    appendonly = values.get("appendonly")
    return ServerSettings(
        maxmemory_bytes=int(maxmemory) if maxmemory.isdigit() else None,
        maxmemory_policy=values.get("maxmemory-policy"),
        appendonly=None if appendonly is None else appendonly == "yes",
        appendfsync=values.get("appendfsync"),
    )


async def _settings_of_info(client: Reader, where: dict[str, Any]) -> ServerSettings:
    try:
        memory = await client.info("memory", **where)
        persistence = await client.info("persistence", **where)
    except RedisError:
        return ServerSettings()
    policy, aof = memory.get("maxmemory_policy"), persistence.get("aof_enabled")
    return ServerSettings(
        maxmemory_bytes=memory.get("maxmemory"),
        maxmemory_policy=None if policy is None else str(policy),
        appendonly=None if aof is None else bool(aof),
    )


async def _other_pools(client: Reader, ours: str) -> tuple[tuple[OtherPool, ...], bool]:
    namespaces, complete = await _namespaces(client)
    found: list[OtherPool] = []
    for namespace in sorted(namespaces - {ours})[:OTHER_POOLS_MAX]:
        live = LiveState(client, Keys(namespace))
        try:
            declared, term = await live.fleet(), await live.term()
            urls = Fleet.from_document(declared.document).nodes if declared else ()
        except (Broken, KeyError, ValueError, TypeError):
            # Another release's pool is no fault of ours.
            continue
        except CoordinationUnavailable as error:
            if not isinstance(error.__cause__, NoPermissionError):
                raise
            # A user who may read its own pool's keys alone is told that there are others.
            complete = False
            continue
        owner = term.owner if term and term.alive(await live.server_now_ms()) else None
        found.append(OtherPool(namespace, tuple(node.base_url for node in urls), owner))
    return tuple(found), complete and len(namespaces) <= OTHER_POOLS_MAX


async def _namespaces(client: Reader) -> tuple[set[str], bool]:
    """The namespaces of the pools on the server, and whether all keys were looked at."""
    found: set[str] = set()
    try:
        if hasattr(client, "get_node_from_key"):
            return await _cluster_namespaces(client)
        cursor = 0
        for _ in range(SCANS_MAX):
            cursor, keys = await client.scan(cursor, match=POOL_KEY_PATTERN, count=SCAN_COUNT)
            found |= _named(keys)
            if int(cursor) == 0:
                return found, True
    except RedisError:
        # A user who may not SCAN has this pool alone to look at.
        return found, False
    return found, False


async def _cluster_namespaces(client: Reader) -> tuple[set[str], bool]:
    found: set[str] = set()
    complete = True
    for node in client.get_primaries():  # type: ignore[attr-defined] # a cluster's client only
        cursor = 0
        for _ in range(SCANS_MAX):
            cursors, keys = await client.scan(
                cursor, match=POOL_KEY_PATTERN, count=SCAN_COUNT, target_nodes=node
            )
            found |= _named(keys)
            cursor = int(next(iter(cursors.values())))
            if cursor == 0:
                break
        complete = complete and cursor == 0
    return found, complete


def _named(keys: list[bytes]) -> set[str]:
    return {name for key in keys if (name := namespace_of_pool_key(key)) is not None}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
