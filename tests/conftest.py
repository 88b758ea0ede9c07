"""The servers and namespaces that tests use: all their own, all gone afterwards."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

import hypothesis
import pytest
from redis import Redis

from aibs.eventstore.keys import Keys
from tests.valkey_server import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator


if os.environ.get("CI"):
    # A history that fails is printed at once, to be shrunk on a desk: shrinking takes longer than a
    # test may.
    hypothesis.settings.register_profile(
        "ci",
        parent=hypothesis.settings.get_profile("ci"),
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )
    hypothesis.settings.load_profile("ci")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Tests wait for processes as often as they work: half as many again as there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(2, (cores or 1) * 3 // 2)


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own AIBS_* variables decide nothing here, but for the tests' own."""
    for name in list(os.environ):
        if name.startswith("AIBS_") and not name.startswith("AIBS_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """A Valkey shared by the tests of one worker: given, in a container, or started here."""
    given = os.environ.get("AIBS_TEST_VALKEY_URL") or os.environ.get("AIBS_TEST_REDIS_URL")
    if given:
        yield given
    elif os.environ.get("AIBS_TEST_VALKEY") == "container":
        with _container() as url:
            yield url
    else:
        with ValkeyServer() as server:
            yield server.url


@contextlib.contextmanager
def _container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    with DockerContainer("valkey/valkey:8-alpine").with_exposed_ports(6379) as container:
        wait_for_logs(container, "Ready to accept connections")
        yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"


@pytest.fixture
def namespace(valkey_url: str) -> Iterator[str]:
    """A namespace of this test alone, deleted afterwards."""
    name = f"test-{secrets.token_hex(6)}"
    yield name
    with contextlib.closing(Redis.from_url(valkey_url)) as client:
        for key in client.scan_iter(match=Keys(name).pattern, count=1000):
            client.unlink(key)


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """A server of this test alone, to be killed, paused and set back."""
    with ValkeyServer() as server:
        yield server
