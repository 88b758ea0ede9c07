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
        raise CoordinationUnavailable(
            f"The coordination server did not answer for {what} ({error})."
        ) from error
