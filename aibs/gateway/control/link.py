"""The control plane's own way to the pool: one reading client, made anew where it fails.

Apart from the placer's, so that a question of health waits behind no request. Reads only.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aibs.errors import CoordinationUnavailable
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aibs.eventstore.commands import Commands
    from aibs.settings import Settings

ANSWER_S: Final = 2.0
"""How long one answer may take. What hangs longer is away, as far as a question of health goes."""


class _Held:
    """A client and how many use it now. A retired one is closed by its last user: a call that is
    still under way would open its connection anew.
    """

    def __init__(self, client: Commands) -> None:
        self.client = client
        self.users = 0
        self.retired = False

    async def close(self) -> None:
        """Give its connections back."""
        with contextlib.suppress(Exception):
            await self.client.aclose()


class PoolLink:
    """The client, while there is one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.keys = Keys(settings.model_cluster_namespace)
        self._held: _Held | None = None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Commands]:
        """The client. Raises CoordinationUnavailable where there is none: nobody waits here."""
        held = self._held
        if held is None:
            raise CoordinationUnavailable("The coordination server is not reached.")
        held.users += 1
        try:
            yield held.client
        finally:
            held.users -= 1
            if held.retired and held.users == 0:
                await held.close()

    async def open(self) -> None:
        """Connect, unless there is a client. Raises CoordinationUnavailable, ConfigurationError."""
        if self._held is not None:
            return
        try:
            async with asyncio.timeout(ANSWER_S):
                client = await open_client(
                    self._settings.model_pool_url,
                    data_dir=Path(self._settings.data_dir),
                    purpose="read",
                    timeout_s=ANSWER_S,
                )
        except TimeoutError as error:
            raise CoordinationUnavailable(
                f"The coordination server did not answer within {ANSWER_S:g} s."
            ) from error
        self._held = _Held(commands(client))

    async def drop(self) -> None:
        """Give the client up: after a failure its connections may be of a server that is gone."""
        held, self._held = self._held, None
        if held is None:
            return
        held.retired = True
        if held.users == 0:
            await held.close()
