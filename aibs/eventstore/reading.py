"""What a failed read means to its caller: the server is not there. Reads may be repeated."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from aibs.errors import CoordinationUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def answered(what: str) -> Iterator[None]:
    """Raises CoordinationUnavailable in place of the library's errors."""
    try:
        yield
    except (RedisError, OSError) as error:
        why = str(error)
        if "EXEC without MULTI" in why:
            # What was refused was the MULTI, of which the library does not tell.
            why = "the user has no permissions to run the 'multi' command"
        raise CoordinationUnavailable(
            f"The coordination server did not answer for {what} ({why})."
        ) from error
