"""A server clock that a test sets: in place of TIME, the scripts read it from a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis import Redis


class ServerClock:
    """Give `overrides` to a CoordinationPool, and set `now_ms` as the test's world goes."""

    def __init__(self, client: Redis, namespace: str, now_ms: int) -> None:
        self._client = client
        self._key = f"{{aibs:{namespace}}}:test-clock"
        self._now_ms = now_ms
        self.set(now_ms)

    @property
    def now_ms(self) -> int:
        """The server's time."""
        return self._now_ms

    def set(self, now_ms: int) -> None:
        """Step or advance it."""
        self._now_ms = now_ms
        self._client.set(self._key, now_ms)

    @property
    def overrides(self) -> dict[str, str]:
        """The include that reads the time, replaced."""
        return {"clock": f"local now = tonumber(redis.call('GET', '{self._key}'))"}
