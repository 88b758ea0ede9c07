"""Who asks: the caller of an API key.

A presented key is hashed and compared with every known digest, each in constant time, so that the
time of an answer tells nothing of how near a guess came or whose key it was. In memory there are
only digests.

Keys that came from a file are read anew when it changes and when `reload` is called. Failure: a
file that is gone, unreadable or wrong leaves the keys of before in force, and the log says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from aibs import logs
from aibs.clock import SystemClock
from aibs.gateway.context import Caller
from aibs.settings.api_keys import InvalidKeys, KeySource, read_keys_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aibs.clock import Clock
    from aibs.settings import Settings
    from aibs.settings.api_keys import ApiKey

LOOK_EVERY_S: Final = 2.0
"""How often the file is looked at."""

PRESENTED_MAX: Final = 4
"""So many keys may a request present: clients send the same one by several headers."""

_BEARER: Final = b"bearer "

_Seen = tuple[int, int, int] | None
"""What tells that a file is another one than before."""


class KeyRing:
    """The keys of a running gateway. `required` is False where none are set."""

    def __init__(self, source: KeySource, clock: Clock | None = None) -> None:
        self._path = source.path
        self._clock = clock or SystemClock()
        self._keys: tuple[tuple[bytes, Caller], ...] = ()
        self._log = logs.get("aibs.gateway.keys")
        self._seen = _seen(self._path)
        self._take(source.keys)

    @classmethod
    def of(cls, settings: Settings, clock: Clock | None = None) -> KeyRing:
        """The keys of the settings."""
        return cls(settings.key_source(), clock)

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._keys)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keys, in their order."""
        return tuple(caller.name or "" for _, caller in self._keys)

    def caller_of(self, presented: Iterable[bytes]) -> Caller | None:
        """Whose key one of the header values is; None where none of them is a key.

        Values of `Authorization` as well as of headers that hold the bare key.
        """
        found: Caller | None = None
        for value in list(presented)[:PRESENTED_MAX]:
            bare = value.strip()
            if bare[: len(_BEARER)].lower() == _BEARER:
                bare = bare[len(_BEARER) :].strip()
            digest = hashlib.sha256(bare).digest()
            for known, caller in self._keys:
                if hmac.compare_digest(known, digest):
                    # No early end: the time must not tell which one it was.
                    found = caller
        return found

    def reload(self) -> bool:
        """Read the file anew, as after SIGHUP; whether new keys are in force. Raises nothing."""
        if self._path is None:
            return False
        seen = _seen(self._path)
        try:
            source = read_keys_file(self._path)
        except InvalidKeys as error:
            self._seen = seen
            self._log.error(
                "api_keys_kept", why=f"AIBS_API_KEYS {error.problem}. {error.mend}", keys=self.names
            )
            return False
        self._seen = seen
        before = set(self.names)
        self._take(source.keys)
        for warning in source.warnings:
            self._log.warning("api_keys_odd", why=warning)
        self._log.info(
            "api_keys_read",
            keys=self.names,
            added=sorted(set(self.names) - before),
            removed=sorted(before - set(self.names)),
        )
        return True

    async def watch(self) -> None:
        """Read the file anew whenever it changes, until cancelled. Ends at once without a file."""
        while self._path is not None:
            await self._clock.sleep(LOOK_EVERY_S)
            # Apart: the file may lie on another machine.
            if await asyncio.to_thread(_seen, self._path) != self._seen:
                self.reload()

    def _take(self, keys: tuple[ApiKey, ...]) -> None:
        self._keys = tuple((key.digest, Caller(key.name, key.max_class)) for key in keys)


def _seen(path: Path | None) -> _Seen:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
