"""Clients for every form of endpoint, with one policy: a writer's library never repeats a call.

A script that ran and whose answer was lost must be repeated by the caller, who knows its call id,
and by nobody else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, cast

from redis.asyncio import BlockingConnectionPool, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from aibs.errors import AibsError, ConfigurationError, CoordinationUnavailable
from aibs.eventstore.cancellation import ValkeyClient, ValkeyClusterClient
from aibs.eventstore.embedded import find
from aibs.eventstore.endpoint import Endpoint, parse_url
from aibs.eventstore.server_check import ServerInfo, require_supported, server_info

if TYPE_CHECKING:
    from pathlib import Path

Purpose = Literal["write", "read", "follow"]
Client = ValkeyClient | ValkeyClusterClient

POOL_CONNECTIONS = 4
"""A process has few calls under way at once; more wait for a connection rather than fail."""

FOLLOW_TIMEOUT_S = 15.0
"""A blocking read must end well before the socket gives up: callers block for at most half."""

READ_RETRIES = 2


def _retry(purpose: Purpose) -> Retry:
    if purpose == "write":
        return Retry(NoBackoff(), 0)
    return Retry(ExponentialBackoff(cap=0.5, base=0.05), READ_RETRIES)


def _options(endpoint: Endpoint, timeout_s: float) -> dict[str, Any]:
    return {
        "username": endpoint.username,
        "password": endpoint.password,
        # The client has a deadline of its own, over the whole call: see its module.
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        # RESP2: the answers' shapes do not change with the library's default.
        "protocol": 2,
        "decode_responses": False,
        # A check before a call would be a second call of which the caller knows nothing.
        "health_check_interval": 0,
    }


def _tls_options(endpoint: Endpoint) -> dict[str, Any]:
    return dict(endpoint.tls_options)


def build_client(endpoint: Endpoint, *, purpose: Purpose, timeout_s: float) -> Client:
    """A client for an endpoint other than `embedded`, not yet connected."""
    client = _unbounded_client(endpoint, purpose, timeout_s)
    client.answer_timeout_s = FOLLOW_TIMEOUT_S if purpose == "follow" else timeout_s
    client.turns = asyncio.Semaphore(POOL_CONNECTIONS)
    return client


def _unbounded_client(endpoint: Endpoint, purpose: Purpose, timeout_s: float) -> Client:
    options = _options(endpoint, timeout_s)
    if endpoint.kind == "cluster":
        tls = {"ssl": True, **_tls_options(endpoint)} if endpoint.tls else {}
        return ValkeyClusterClient(
            startup_nodes=[ClusterNode(host, port) for host, port in endpoint.hosts],
            retry=_retry(purpose),
            max_connections=POOL_CONNECTIONS,
            **options,
            **tls,
        )
    options["retry"] = _retry(purpose)
    if endpoint.kind == "sentinel":
        return _sentinel_client(endpoint, options, timeout_s)
    options["db"] = endpoint.db
    connection_class: type[Any] = Connection
    if endpoint.kind == "unix":
        connection_class = UnixDomainSocketConnection
        options["path"] = endpoint.path
    else:
        options["host"], options["port"] = endpoint.hosts[0]
        if endpoint.tls:
            connection_class = SSLConnection
            options.update(_tls_options(endpoint))
    pool = BlockingConnectionPool(
        max_connections=POOL_CONNECTIONS,
        timeout=timeout_s,
        connection_class=connection_class,
        **options,
    )
    client = cast("ValkeyClient", ValkeyClient.from_pool(pool))
    client.set_retry(options["retry"])
    return client


def _sentinel_client(endpoint: Endpoint, options: dict[str, Any], timeout_s: float) -> ValkeyClient:
    tls = {"ssl": True, **_tls_options(endpoint)} if endpoint.tls else {}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated
        list(endpoint.hosts),
        sentinel_kwargs={
            "username": endpoint.sentinel_username,
            "password": endpoint.sentinel_password,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "protocol": 2,
        },
    )
    client: ValkeyClient = sentinel.master_for(
        endpoint.service,
        redis_class=ValkeyClient,
        connection_pool_class=SentinelConnectionPool,
        db=endpoint.db,
        **options,
        **tls,
    )
    client.set_retry(options["retry"])
    client.companions = tuple(sentinel.sentinels)
    return client


async def open_client(
    url: str, *, data_dir: Path, purpose: Purpose, timeout_s: float = 5.0
) -> Client:
    """A client whose server answered and is Valkey 8 or newer.

    `embedded` finds the server of `data_dir` and never starts one. Raises ConfigurationError (the
    URL, the password), UnsupportedServer, CoordinationUnavailable.
    """
    client, _ = await open_verified(url, data_dir=data_dir, purpose=purpose, timeout_s=timeout_s)
    return client


async def open_verified(
    url: str, *, data_dir: Path, purpose: Purpose, timeout_s: float = 5.0
) -> tuple[Client, ServerInfo]:
    """As `open_client`, with what the server says of itself."""
    endpoint = parse_url(url)
    if endpoint.kind == "embedded":
        socket = await find(data_dir)
        if socket is None:
            raise CoordinationUnavailable(
                f"No embedded Valkey runs for {data_dir}.",
                mend="Start `aibs monitor` there, or set AIBS_VALKEY_URL to a running server.",
            )
        endpoint = Endpoint("unix", f"embedded ({socket})", path=str(socket))
    client = build_client(endpoint, purpose=purpose, timeout_s=timeout_s)
    try:
        info = await _verify(client, endpoint, timeout_s)
    except BaseException:
        await client.aclose()
        raise
    return client, info


async def _verify(client: Client, endpoint: Endpoint, timeout_s: float) -> ServerInfo:
    where = endpoint.display
    try:
        # Sentinels, then the master, then a handshake: a few answers, each with its own timeout.
        async with asyncio.timeout(3 * timeout_s):
            if isinstance(client, RedisCluster):
                await client.initialize()
                target = client.get_default_node()
                raw = await client.execute_command("INFO", "server", target_nodes=target)
                raw = next(iter(raw.values())) if len(raw) == 1 else raw
            else:
                raw = await client.info("server")
    except AibsError:
        raise
    except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
        raise ConfigurationError(
            f"{where} refuses the credentials: {error}.",
            mend="Correct the user and password in the URL; the user needs +info and the "
            "commands of the scripts.",
        ) from error
    except ResponseError as error:
        if str(error).startswith(("NOAUTH", "WRONGPASS", "invalid password")):
            raise ConfigurationError(
                f"{where} refuses the credentials: {error}.",
                mend="Correct the user and password in the URL.",
            ) from error
        raise CoordinationUnavailable(f"{where} does not serve now: {error}.") from error
    except (
        MasterNotFoundError,
        RedisClusterException,
        RedisError,
        OSError,
        TimeoutError,
        ValueError,
        AttributeError,
    ) as error:
        raise CoordinationUnavailable(
            f"{where} cannot be reached: {str(error) or type(error).__name__}.",
            mend="Check that the server runs there and that this machine may reach it.",
        ) from error
    info = server_info(raw)
    require_supported(info, where)
    return info
