"""The few server commands that aibs sends, typed as the answers come: bytes, undecoded.

redis-py types every answer for every option of its clients; this names what our clients give,
which are pinned to RESP2 and do not decode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

Entry = tuple[bytes, dict[bytes, bytes]]
"""A stream entry: ID and fields."""


class Commands(Protocol):
    """What `eventstore` needs of a client."""

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: str | int | bytes) -> Any: ...
    async def eval(self, script: str, numkeys: int, *keys_and_args: str | int | bytes) -> Any: ...
    async def xrange(self, name: str, min: str, max: str, count: int | None) -> list[Entry]: ...  # noqa: A002 - redis-py's names
    async def xrevrange(self, name: str, max: str, min: str, count: int | None) -> list[Entry]: ...  # noqa: A002 - redis-py's names
    async def xlen(self, name: str) -> int: ...
    async def xread(self, streams: dict[str, str], count: int | None, block: int | None) -> Any: ...
    async def hgetall(self, name: str) -> dict[bytes, bytes]: ...
    async def zrange(self, name: str, start: int, end: int, withscores: bool = False) -> Any: ...
    def pipeline(self, transaction: bool = True) -> Any: ...
    async def get(self, name: str) -> bytes | None: ...
    async def scan(self, cursor: int, match: str, count: int) -> tuple[int, list[bytes]]: ...
    async def time(self) -> tuple[int, int]: ...
    async def aclose(self) -> None: ...


def commands(client: Redis | RedisCluster) -> Commands:
    """A redis-py client, seen as the commands that we send."""
    return cast("Commands", client)
