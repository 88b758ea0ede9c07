"""Connections: which servers are taken, which are refused and why, and what is never lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from aibs.errors import ConfigurationError, CoordinationUnavailable, UnsupportedServer
from aibs.eventstore.cancellation import ValkeyClient
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.pool import CoordinationPool, ObserveLimits, PollRecord
from aibs.eventstore.replies import Elected
from aibs.eventstore.state import LiveState
from tests.integration.in_loop import in_loop
from tests.valkey_server import ValkeyServer, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

RUN_ID = "a" * 40
DOCUMENT = (
    b'{"nodes":[{"node_id":"box-c","base_url":"http://c:1","vram_budget_bytes":null,'
    b'"max_parallel_requests":1,"memory":"unified"}],"workers":[],"affinity":{}}'
)


@contextlib.asynccontextmanager
async def answering(info: str) -> AsyncIterator[str]:
    """A server that says this of itself, and OK to everything else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                await reader.readline()
                words.append((await reader.readline()).strip().lower())
            body = f"# Server\r\nrun_id:{RUN_ID}\r\n{info}\r\n".encode()
            bulk = b"$%d\r\n%s\r\n" % (len(body), body)
            writer.write(bulk if words[0] == b"info" else b"+OK\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ("redis_version:7.2.4", "Redis 7.2.4"),
        ("redis_version:8.2.0", "Redis 8.2.0"),
        ("redis_version:6.3.4\r\nkeydb_version:6.3.4", "Keydb 6.3.4"),
        ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:7.2.5", "Valkey 7.2.5"),
        ("redis_version:7.4.0\r\ndragonfly_version:df-v1.20", "Dragonfly df-v1.20"),
    ],
)
def test_a_server_that_is_not_valkey_8_is_refused_by_its_name(
    tmp_path: Path, info: str, said: str
) -> None:
    @in_loop
    async def drill() -> None:
        async with answering(info) as url:
            with pytest.raises(UnsupportedServer) as raised:
                await open_client(url, data_dir=tmp_path, purpose="write")
            assert said in str(raised.value)
            assert raised.value.exit_status == 2

    drill()


@in_loop
async def test_a_server_that_is_not_there_is_unavailable_and_shows_no_password(
    tmp_path: Path,
) -> None:
    url = f"redis://user:hidden@127.0.0.1:{free_port()}"
    with pytest.raises(CoordinationUnavailable) as raised:
        await open_client(url, data_dir=tmp_path, purpose="write")
    assert "hidden" not in str(raised.value)


@in_loop
async def test_a_wrong_password_is_a_fault_of_the_settings(tmp_path: Path) -> None:
    with ValkeyServer() as server:
        with contextlib.closing(server.client()) as client:
            client.config_set("requirepass", "right")
        url = f"redis://:wrong@127.0.0.1:{server.port}"
        with pytest.raises(ConfigurationError) as raised:
            await open_client(url, data_dir=tmp_path, purpose="write")
        assert "wrong" not in str(raised.value)
        good = await open_client(
            f"valkey://:right@127.0.0.1:{server.port}/0", data_dir=tmp_path, purpose="write"
        )
        await good.aclose()


@in_loop
async def test_a_socket_and_a_database_number_are_taken(tmp_path: Path) -> None:
    with ValkeyServer(options=("--unixsocket", str(tmp_path / "s"))) as server:
        for url in (f"unix://{tmp_path / 's'}?db=3", f"valkey://127.0.0.1:{server.port}/3"):
            client = cast("Any", await open_client(url, data_dir=tmp_path, purpose="write"))
            await client.set("mark", url)
            await client.aclose()
        with contextlib.closing(server.client()) as plain:
            plain.select(3)
            assert plain.get("mark") == url.encode()


@in_loop
async def test_the_scripts_run_on_a_cluster_which_refuses_keys_that_were_not_declared(
    tmp_path: Path,
) -> None:
    with ValkeyServer(cluster=True) as server:
        client = commands(await open_client(server.url, data_dir=tmp_path, purpose="write"))
        pool = CoordinationPool(client, Keys("fleet"), "a", recovery_ms=1)
        term = await pool.elect("1", "a", ttl_ms=60_000, mono_ms=1)
        assert isinstance(term, Elected)
        await pool.declare(
            "a", term.fence, revision=0, fingerprint="f", document=DOCUMENT, changes=b"[]"
        )
        poll = PollRecord("box-c", 1, 1, "http://c:1", 5, True, "", 3, False, b"[]", b"{}")
        limits = ObserveLimits(2, 20_000, 30_000, 100, 60_000)
        observed = await pool.observe("a", term.fence, "f", [poll], limits)
        assert observed.words == ("ok",)
        await pool.renew("a", term.fence, ttl_ms=60_000, mono_ms=2)
        await pool.resign("a", term.fence)
        events = [event.type async for event in Log(client, pool.keys).read()]
        assert events[-1] == "OwnerResigned"
        assert (await LiveState(client, pool.keys).nodes()).keys() == {"box-c"}
        await client.aclose()


@contextlib.asynccontextmanager
async def _tls_in_front_of(port: int, directory: Path) -> AsyncIterator[tuple[int, Path]]:
    """A port that speaks TLS for a plain server, and the certificate to trust."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    await asyncio.to_thread(
        subprocess.run,
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                sink.write(data)
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], certificate


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_tls_is_spoken_and_a_stranger_is_not_trusted(
    own_valkey: ValkeyServer, tmp_path: Path, scheme: str
) -> None:
    @in_loop
    async def drill() -> None:
        async with _tls_in_front_of(own_valkey.port, tmp_path) as (port, certificate):
            url = f"{scheme}://localhost:{port}/0"
            trusted = f"{url}?ssl_ca_certs={certificate}"
            client = cast("Any", await open_client(trusted, data_dir=tmp_path, purpose="write"))
            await client.set("x", "1")
            await client.aclose()
            with pytest.raises(CoordinationUnavailable, match=r"(?i)certificate"):
                await open_client(url, data_dir=tmp_path, purpose="write")

    drill()


CANCELLATIONS = 150


async def _lost(client: Any) -> int:
    """Whether one of many cancellations at random moments is swallowed by the client."""
    lost = 0
    for _ in range(CANCELLATIONS):
        if lost:
            break

        async def calls() -> None:
            while True:
                await client.get("x")
                await asyncio.sleep(0)

        task = asyncio.ensure_future(calls())
        await asyncio.sleep(random.random() * 0.002)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=0.1)
        while not task.done():
            lost += not done
            done = {task}
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)
    return lost


@in_loop
async def test_a_cancellation_is_never_lost_in_a_call(own_valkey: ValkeyServer) -> None:
    ours = ValkeyClient(port=own_valkey.port, socket_timeout=None, protocol=2)
    assert await _lost(ours) == 0
    await ours.aclose()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 mended asyncio.wait_for")
@in_loop
async def test_the_library_alone_still_loses_cancellations(own_valkey: ValkeyServer) -> None:
    """When this fails, `eventstore/cancellation.py` is needed no more."""
    plain = Redis(port=own_valkey.port, socket_timeout=5, protocol=2)
    assert await _lost(plain) > 0
    await plain.aclose()


@in_loop
async def test_a_server_that_stops_answering_is_given_up_at_the_deadline(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    client = cast(
        "Any",
        await open_client(own_valkey.url, data_dir=tmp_path, purpose="write", timeout_s=0.3),
    )
    own_valkey.pause()
    with pytest.raises(RedisTimeoutError, match=r"0\.3 s"):
        await client.get("x")
    own_valkey.resume()
    await client.set("x", "1")
    assert await client.get("x") == b"1", "the late answer went to nobody"
    await client.aclose()


@in_loop
async def test_a_cancelled_call_leaves_no_answer_for_the_next_one(own_valkey: ValkeyServer) -> None:
    client = cast("Any", ValkeyClient(port=own_valkey.port, socket_timeout=None, protocol=2))
    for number in range(100):
        await client.set("k", number)
        task = asyncio.ensure_future(client.blpop("nothing", timeout=5))
        await asyncio.sleep(random.random() * 0.003)
        task.cancel()
        await asyncio.wait({task})
        assert await client.get("k") == str(number).encode()
    await client.aclose()


def test_help_starts_without_the_heavy_libraries() -> None:
    """The commands' imports are lazy: what `--help` needs is typer alone."""
    code = (
        "import sys; sys.argv=['aibs','--help']\n"
        "from aibs.cli import main\n"
        "try:\n main()\nexcept SystemExit: pass\n"
        "heavy = {'redis','httpx','pydantic','orjson','structlog','yaml'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
