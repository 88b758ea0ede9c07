"""Fixtures of the gateway's tests, over the `world` that each module makes for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import ollama
    import openai

    from tests.gateway_world import RawNode, World


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    """A gateway of the module; at its end no lease is left, and each grant had one end."""
    with world.serve() as gateway:
        world.wait_seen()
        yield gateway.url
        world.wait_idle()
        world.evidence.assert_one_end_a_grant()


@pytest.fixture
def raw(world: World) -> RawNode:
    """The scripted node, with no call so far."""
    node = world.scripted("box-raw")
    world.yard.call(node.calls.clear)
    return node


@pytest.fixture
def native(url: str) -> Iterator[ollama.Client]:
    """The official client of Ollama's own API. Imported here: most tests need it not."""
    import ollama

    client = ollama.Client(host=url, timeout=20)
    yield client
    client._client.close()


@pytest.fixture
def compatible(url: str) -> Iterator[openai.OpenAI]:
    """The official client of OpenAI's API."""
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=20, max_retries=0) as client:
        yield client


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    """A plain client."""
    with httpx.Client(base_url=url, timeout=20) as client:
        yield client
