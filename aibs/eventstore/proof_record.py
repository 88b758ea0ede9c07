"""What the newest takeover proof of a pool showed: kept beside the pools, for the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from aibs.codec import loads
from aibs.eventstore.reading import answered

if TYPE_CHECKING:
    from aibs.eventstore.commands import Commands

LAST_PROOFS = "{aibs-proofs}:last"
"""A hash: the pool's namespace → what `aibs prove-takeover` showed last, as JSON."""


async def last_proof(client: Commands, namespace: str) -> dict[str, Any] | None:
    """The newest proof with that pool's settings; None where there was none, and for a user who may
    read that pool's keys alone.

    Raises CoordinationUnavailable.
    """
    with answered("the last proof"):
        try:
            text = await client.hget(LAST_PROOFS, namespace)
        except NoPermissionError:
            return None
    if text is None:
        return None
    found = loads(text)
    return found if isinstance(found, dict) else None
