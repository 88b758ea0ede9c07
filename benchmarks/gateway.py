"""What the gateway adds to a request: beside a bare streaming proxy of the same stack without
leases, and beside nginx where it is installed, in one run and in turns.

    added_median_ms_c1               median of small requests, one at a time, less the proxy's
    throughput_over_bare_proxy_c64   small requests a second with 64 at a time, over the proxy's
    stalled_streams                  of 100 streams of 50 tokens/s those with a gap over STALL_S

The bare proxy is a plain handler of starlette with a streaming response, on uvicorn, uvloop,
httptools and aiohttp (docs/decisions). The floor, whose figures are given beside it, is the least
that forwards on that server: bare ASGI that does not notice a client that leaves.

    python benchmarks/gateway.py [--quick] [--json] [--clients]

`--clients` compares the two HTTP clients behind the same proxy, at 50 connections.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from operator import sub, truediv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aibs.codec import dumps_pretty, dumps_text
from aibs.eventstore.embedded import EmbeddedValkey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTS = Path(__file__).with_name("gateway_parts.py")
MODEL = "llama3:8b"
SLOTS = 128
STREAMS = 100
STALL_S = 0.5
"""25 tokens: longer than any pause that a reader takes for the model's own."""

STARTED_S = 20.0
SMALL = dumps_text(
    {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": False}
).encode()
STREAMED = dumps_text({"model": MODEL, "messages": [{"role": "user", "content": "go"}]}).encode()


@dataclass(frozen=True, slots=True)
class Figures:
    """The three ratios, and what they were made of."""

    added_median_ms_c1: float
    throughput_over_bare_proxy_c64: float
    stalled_streams: int
    gateway_median_ms_c1: float
    bare_proxy_median_ms_c1: float
    floor_median_ms_c1: float
    nginx_median_ms_c1: float | None
    gateway_requests_per_second_c64: float
    bare_proxy_requests_per_second_c64: float
    floor_requests_per_second_c64: float
    throughput_over_floor_c64: float
    streams: int
    longest_gap_ms: float
    leases_left: int


class Connection:
    """A keep-alive connection that costs the client little: it knows the answers' shape."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> Connection:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=1 << 20
        )
        return self

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()

    def _send(self, body: bytes) -> None:
        self._writer.write(
            b"POST /api/chat HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )

    async def small(self) -> None:
        """One answer in one piece."""
        self._send(SMALL)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"not served: {head!r} {await self._reader.read(500)!r}")
        lower = head.lower()
        if b"content-length:" in lower:
            length = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
            await self._reader.readexactly(length)
            return
        while (await self._reader.readline()) != b"0\r\n":
            await self._reader.readline()
        await self._reader.readline()

    async def stream(self) -> float:
        """One streamed answer; the longest gap between two tokens in seconds."""
        self._send(STREAMED)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"not served: {head!r}")
        last, longest = time.perf_counter(), 0.0
        while size := int(await self._reader.readline(), 16):
            await self._reader.readexactly(size + 2)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        await self._reader.readline()
        return longest


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def _process(arguments: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdout=out, stderr=out, cwd=log.parent
        )
    try:
        yield
        if child.poll() is not None:
            raise RuntimeError(f"{arguments} ended: {_end_of(log)}")
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _end_of(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-2000:]


async def _answers(port: int, log: Path) -> None:
    """Wait until a small request is served there."""
    deadline = time.monotonic() + STARTED_S
    while True:
        try:
            connection = await Connection(port).open()
            await connection.small()
        except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{error}; {_end_of(log)}") from error
            await asyncio.sleep(0.1)
        else:
            connection.close()
            return


def _environment(directory: Path, nodes: list[int], port: int) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIBS_")}
    roster = [
        {
            "worker_id": "answer",
            "model": MODEL,
            "roles": ["answer"],
            "kind": "chat",
            "resident_weight_gb": 7,
            "active_parameter_billions": 8,
        }
    ]
    ids = [f"box-{number}" for number in range(len(nodes))]
    return {
        **inherited,
        "AIBS_DATA_DIR": str(directory / "data"),
        "AIBS_API_PORT": str(port),
        "AIBS_MODEL_ADMISSION_WORKER_ROSTER": dumps_text(roster),
        "AIBS_MODEL_CLUSTER_ENABLED": "true",
        "AIBS_MODEL_CLUSTER_SINGLE_HOST": "true",
        "AIBS_MODEL_CLUSTER_NODE_IDS": ",".join(ids),
        "AIBS_MODEL_CLUSTER_NODE_URLS": ",".join(f"http://127.0.0.1:{node}" for node in nodes),
        "AIBS_MODEL_CLUSTER_NODE_VRAM_GB": ",".join("90" for _ in nodes),
        "AIBS_MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": ",".join(str(SLOTS) for _ in nodes),
    }


async def _latencies(connection: Connection, count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await connection.small()
        found.append(time.perf_counter() - began)
    return found


async def _medians_by_turn(ports: dict[str, int], turns: int, count: int) -> dict[str, list[float]]:
    """Of each, by turns, in milliseconds."""
    connections = {name: await Connection(port).open() for name, port in ports.items()}
    found: dict[str, list[float]] = {name: [] for name in ports}
    for connection in connections.values():
        await _latencies(connection, 50)
    for _ in range(turns):
        for name, connection in connections.items():
            found[name].append(statistics.median(await _latencies(connection, count)) * 1000)
    for connection in connections.values():
        connection.close()
    return found


async def _rate(port: int, at_once: int, seconds: float) -> float:
    connections = [await Connection(port).open() for _ in range(at_once)]
    ends = time.perf_counter() + seconds
    served = 0

    async def work(connection: Connection) -> None:
        nonlocal served
        while time.perf_counter() < ends:
            await connection.small()
            served += 1

    began = time.perf_counter()
    await asyncio.gather(*(work(one) for one in connections))
    took = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return served / took


async def _rates(
    ports: dict[str, int], turns: int, at_once: int, s: float
) -> dict[str, list[float]]:
    """Of each, by turns, in an order that rotates; a first one, unmeasured, warms all of them."""
    found: dict[str, list[float]] = {name: [] for name in ports}
    names = list(ports)
    for name in names:
        await _rate(ports[name], at_once, s / 2)
    for turn in range(turns):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            found[name].append(await _rate(ports[name], at_once, s))
    return found


def _turn_by_turn(
    compared: Callable[[float, float], float], values: list[float], others: list[float]
) -> float:
    """The median of what neighbouring turns give: a machine's change of pace meets both alike."""
    return round(statistics.median(map(compared, values, others)), 3)


async def _gaps(port: int) -> list[float]:
    connections = [await Connection(port).open() for _ in range(STREAMS)]
    gaps = await asyncio.gather(*(one.stream() for one in connections))
    for connection in connections:
        connection.close()
    return list(gaps)


async def _leases_left(environment: dict[str, str]) -> int:
    from aibs.eventstore.commands import commands
    from aibs.eventstore.connection import open_client
    from aibs.eventstore.keys import Keys
    from aibs.eventstore.placement_state import PlacementState

    data_dir = Path(environment["AIBS_DATA_DIR"])
    client = commands(await open_client("embedded", data_dir=data_dir, purpose="read"))
    try:
        return len(await PlacementState(client, Keys("fleet")).leases())
    finally:
        await client.aclose()


NGINX = """
daemon off; pid {directory}/nginx.pid; error_log {directory}/nginx.log;
events {{ worker_connections 1024; }}
http {{ access_log off; upstream node {{ server 127.0.0.1:{node}; keepalive 128; }}
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://node; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_buffering off; }} }} }}
"""


@contextlib.contextmanager
def _nginx(directory: Path, node: int) -> Iterator[int | None]:
    program = shutil.which("nginx")
    if program is None:
        yield None
        return
    port, config = _free_port(), directory / "nginx.conf"
    config.write_text(NGINX.format(directory=directory, node=node, port=port))
    child = subprocess.Popen([program, "-c", str(config), "-p", str(directory)])
    try:
        yield port
    finally:
        child.terminate()
        child.wait()


async def measure(*, quick: bool) -> Figures:
    """Every figure, once."""
    turns, count, seconds = (4, 150, 0.6) if quick else (10, 300, 1.5)
    with tempfile.TemporaryDirectory(prefix="aibs-bench-gateway-") as name:
        directory = Path(name)
        nodes, gateway = [_free_port(), _free_port()], _free_port()
        proxy, floor = _free_port(), _free_port()
        environment = _environment(directory, nodes, gateway)
        embedded = await EmbeddedValkey.ensure(directory / "data")
        try:
            with contextlib.ExitStack() as stack:
                for what, arguments in (
                    ("node 0", [str(PARTS), "node", str(nodes[0])]),
                    ("node 1", [str(PARTS), "node", str(nodes[1])]),
                    ("proxy", [str(PARTS), "proxy", str(proxy), f"http://127.0.0.1:{nodes[0]}"]),
                    ("floor", [str(PARTS), "floor", str(floor), f"http://127.0.0.1:{nodes[0]}"]),
                    ("monitor", ["-m", "aibs", "monitor"]),
                    ("gateway", ["-m", "aibs", "serve"]),
                ):
                    log = directory / f"{what}.log"
                    stack.enter_context(_process(arguments, environment, log))
                nginx = stack.enter_context(_nginx(directory, nodes[0]))
                ports = {"gateway": gateway, "proxy": proxy, "floor": floor}
                for what, port in ports.items():
                    await _answers(port, directory / f"{what}.log")
                more = {"nginx": nginx} if nginx is not None else {}
                by_turn = await _medians_by_turn({**ports, **more}, 3 * turns, count // 3)
                medians = {name: statistics.median(values) for name, values in by_turn.items()}
                rates = await _rates(ports, 2 * turns, 64, seconds)
                gaps = await _gaps(gateway)
                await asyncio.sleep(0.5)
                left = await _leases_left(environment)
        finally:
            await embedded.close()
    return Figures(
        added_median_ms_c1=_turn_by_turn(sub, by_turn["gateway"], by_turn["proxy"]),
        throughput_over_bare_proxy_c64=_turn_by_turn(truediv, rates["gateway"], rates["proxy"]),
        stalled_streams=sum(gap > STALL_S for gap in gaps),
        gateway_median_ms_c1=round(medians["gateway"], 3),
        bare_proxy_median_ms_c1=round(medians["proxy"], 3),
        floor_median_ms_c1=round(medians["floor"], 3),
        nginx_median_ms_c1=round(medians["nginx"], 3) if "nginx" in medians else None,
        gateway_requests_per_second_c64=round(statistics.median(rates["gateway"]), 1),
        bare_proxy_requests_per_second_c64=round(statistics.median(rates["proxy"]), 1),
        floor_requests_per_second_c64=round(statistics.median(rates["floor"]), 1),
        throughput_over_floor_c64=_turn_by_turn(truediv, rates["gateway"], rates["floor"]),
        streams=len(gaps),
        longest_gap_ms=round(max(gaps) * 1000, 1),
        leases_left=left,
    )


async def compare_clients() -> dict[str, Any]:
    """aiohttp and httpx behind the same server: small requests and streams a second."""
    with tempfile.TemporaryDirectory(prefix="aibs-bench-clients-") as name:
        directory, node = Path(name), _free_port()
        ports = {"proxy": _free_port(), "httpx": _free_port()}
        with contextlib.ExitStack() as stack:
            arguments = [str(PARTS), "node", str(node)]
            stack.enter_context(_process(arguments, dict(os.environ), directory / "node.log"))
            for kind, port in ports.items():
                arguments = [str(PARTS), kind, str(port), f"http://127.0.0.1:{node}"]
                log = directory / f"{kind}.log"
                stack.enter_context(_process(arguments, dict(os.environ), log))
                await _answers(port, log)
            rates = await _rates(ports, 3, 50, 2.0)
    return {
        "aiohttp_requests_per_second_c50": round(statistics.median(rates["proxy"]), 1),
        "httpx_requests_per_second_c50": round(statistics.median(rates["httpx"]), 1),
        "aiohttp_over_httpx": _turn_by_turn(truediv, rates["proxy"], rates["httpx"]),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="shorter turns")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--clients", action="store_true", help="compare the HTTP clients instead")
    options = parser.parse_args()
    if options.clients:
        found: dict[str, Any] = asyncio.run(compare_clients())
    else:
        found = asdict(asyncio.run(measure(quick=options.quick)))
    if options.json:
        print(dumps_pretty(found))
        return
    for name, value in found.items():
        print(f"{name:36} {value}")


if __name__ == "__main__":
    main()
