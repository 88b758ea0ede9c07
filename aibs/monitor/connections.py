"""The monitor's connections: made when the server can be reached, remade by the client itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aibs import logs
from aibs.errors import Unreachable
from aibs.eventstore.commands import Commands, commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.embedded import EmbeddedValkey

if TYPE_CHECKING:
    from pathlib import Path

    from aibs.clock import Clock

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 5.0


class Connections:
    """Opens clients to one coordination server, and holds the embedded server where that is it.

    `timeout_s` bounds every answer: a quarter of the lease TTL, so that a hung connection leaves
    time for another within the term.
    """

    def __init__(self, url: str, data_dir: Path, clock: Clock, *, timeout_s: float) -> None:
        self._url = url
        self._data_dir = data_dir
        self._clock = clock
        self._timeout_s = timeout_s
        self._embedded: EmbeddedValkey | None = None
        self._clients: list[Commands] = []
        self._log = logs.get("aibs.monitor.connections")

    @property
    def embedded(self) -> bool:
        """Whether the server is one that aibs starts itself."""
        return self._url == "embedded"

    async def writer(self) -> Commands:
        """A client for scripts. Waits, with backoff, until the server can be reached.

        Raises UnsupportedServer and ConfigurationError at once: waiting would not mend them.
        """
        return await self._open("write")

    async def follower(self) -> Commands:
        """A client that may wait long for the log's next event."""
        return await self._open("follow")

    async def revive(self) -> None:
        """Start the embedded server again where it died; other servers come back by themselves."""
        if self.embedded:
            try:
                await self._hold_embedded()
            except Unreachable as error:
                self._log.warning("embedded_valkey_unavailable", error=str(error))

    async def close(self) -> None:
        """Close every client, and the embedded server where nobody else holds it."""
        for client in self._clients:
            await client.aclose()
        self._clients.clear()
        if self._embedded is not None:
            await self._embedded.close()
            self._embedded = None

    async def _hold_embedded(self) -> None:
        if self._embedded is None:
            self._embedded = await EmbeddedValkey.ensure(self._data_dir)
        else:
            await self._embedded.revive()

    async def _open(self, purpose: Literal["write", "follow"]) -> Commands:
        backoff_s = BACKOFF_FIRST_S
        told = False
        while True:
            try:
                if self.embedded:
                    await self._hold_embedded()
                client = commands(
                    await open_client(
                        self._url,
                        data_dir=self._data_dir,
                        purpose=purpose,
                        timeout_s=self._timeout_s,
                    )
                )
            except Unreachable as error:
                if not told:
                    self._log.warning("coordination_unreachable", error=str(error))
                    told = True
                await self._clock.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            self._clients.append(client)
            return client
