"""The control plane's own way to the pool: one reading client, made anew where it fails.

Apart from the placer's, so that a question of health waits behind no request. Reads only.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aibs.errors import CoordinationUnavailable
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys

if TYPE_CHECKING:
    from aibs.eventstore.commands import Commands
    from aibs.settings import Settings

ANSWER_S: Final = 2.0
"""How long one answer may take. What hangs longer is away, as far as a question of health goes."""


class PoolLink:
    """The client, while there is one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.keys = Keys(settings.model_cluster_namespace)
        self._client: Commands | None = None

    @property
    def client(self) -> Commands:
        """Raises CoordinationUnavailable where there is none now: nobody waits for one here."""
        if self._client is None:
            raise CoordinationUnavailable("The coordination server is not reached.")
        return self._client

    async def open(self) -> Commands:
        """The client, connected. Raises CoordinationUnavailable, ConfigurationError."""
        if self._client is None:
            try:
                async with asyncio.timeout(ANSWER_S):
                    self._client = commands(
                        await open_client(
                            self._settings.model_pool_url,
                            data_dir=Path(self._settings.data_dir),
                            purpose="read",
                            timeout_s=ANSWER_S,
                        )
                    )
            except TimeoutError as error:
                raise CoordinationUnavailable(
                    f"The coordination server did not answer within {ANSWER_S:g} s."
                ) from error
        return self._client

    async def drop(self) -> None:
        """Give the client up: after a failure its connections may be of a server that is gone."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.aclose()
