"""A pool behind sentinels: found by its service's name."""

from __future__ import annotations

import contextlib
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from redis import Redis
from redis.exceptions import RedisError

from aibs.errors import CoordinationUnavailable
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.embedded_binary import find_binary
from aibs.eventstore.keys import Keys
from aibs.eventstore.pool import CoordinationPool
from aibs.eventstore.replies import Elected
from tests.integration.in_loop import in_loop
from tests.valkey_server import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.valkey_server import ValkeyServer


@pytest.fixture
def sentinel_port(own_valkey: ValkeyServer, tmp_path: Path) -> Iterator[int]:
    """A sentinel that watches the test's own server as `fleet`."""
    port = free_port()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n"
        f"sentinel monitor fleet 127.0.0.1 {own_valkey.port} 1\n"
    )
    process = subprocess.Popen(
        [str(find_binary()), str(configuration), "--sentinel"], stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 20
    with contextlib.closing(Redis(port=port)) as client:
        while True:
            try:
                client.ping()
                break
            except RedisError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    yield port
    process.kill()
    process.wait()


@in_loop
async def test_a_pool_is_found_by_its_service(sentinel_port: int, tmp_path: Path) -> None:
    url = f"redis+sentinel://127.0.0.1:{sentinel_port}/fleet/0"
    client = commands(await open_client(url, data_dir=tmp_path, purpose="write"))
    pool = CoordinationPool(client, Keys("fleet"), "a", recovery_ms=1)
    assert isinstance(await pool.elect("1", "a", ttl_ms=5000, mono_ms=1), Elected)
    await client.aclose()


@in_loop
async def test_a_service_that_no_sentinel_knows_is_a_sentence(
    sentinel_port: int, tmp_path: Path
) -> None:
    url = f"redis+sentinel://127.0.0.1:{sentinel_port}/nobody/0"
    with pytest.raises(CoordinationUnavailable, match="nobody"):
        await open_client(url, data_dir=tmp_path, purpose="write")
