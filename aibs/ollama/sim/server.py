"""The sockets: one process, one port, any number of nodes by path."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING, Self

from aibs.ollama.sim.connection import Connection
from aibs.ollama.sim.node import SimNode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from aibs.ollama.sim.spec import SimSpec

BACKLOG = 4096
"""A thousand polls may arrive in one burst."""

_NODE_PATH = "/n/"


class SimServer:
    """Serves nodes while the block runs. One node has the root path, several have `/n/<i>`.

    `on_die` is called when a node's fault `die` strikes; without it the server closes its port and
    resets its connections. Raises OSError where the port cannot be had.
    """

    def __init__(
        self,
        specs: Sequence[SimSpec],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        on_die: Callable[[], None] | None = None,
    ) -> None:
        if not specs:
            raise ValueError("a server needs a node")
        self.on_loopback = host == "localhost" or _is_loopback(host)
        self._specs = tuple(specs)
        self._host = host
        self._port = port
        self._on_die = on_die
        self._nodes: tuple[SimNode, ...] = ()
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), self._host, self._port, backlog=BACKLOG
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self._nodes = tuple(SimNode(spec) for spec in self._specs)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = [connection.task for connection in self._connections if connection.task]
        self._drop_all()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._empty.wait()
        for node in self._nodes:
            await node.scheduler.close()

    @property
    def port(self) -> int:
        """The port in use."""
        return self._port

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URL of each node."""
        return tuple(self.url(index) for index in range(len(self._specs)))

    def url(self, index: int = 0) -> str:
        """The base URL of a node, without a last slash."""
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        shown = f"[{host}]" if ":" in host else host
        path = f"{_NODE_PATH}{index}" if len(self._specs) > 1 else ""
        return f"http://{shown}:{self._port}{path}"

    def node(self, index: int = 0) -> SimNode:
        """A node, alive."""
        return self._nodes[index]

    def locate(self, target: str) -> tuple[SimNode, str] | None:
        """The node that a request's target names, and the path there; None where there is none."""
        path = target.partition("?")[0]
        if len(self._nodes) == 1:
            return self._nodes[0], path
        index, _, rest = path.removeprefix(_NODE_PATH).partition("/")
        if not path.startswith(_NODE_PATH) or not index.isdecimal() or len(index) > 9:
            return None
        number = int(index)
        return (self._nodes[number], f"/{rest}") if number < len(self._nodes) else None

    def joined(self, connection: Connection) -> None:
        """A connection was made."""
        self._connections.add(connection)
        self._empty.clear()

    def left(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def die(self) -> None:
        """Gone from one moment to the next, with every node."""
        if self._on_die is not None:
            self._on_die()
        self._drop_all()

    def _drop_all(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.abort()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
