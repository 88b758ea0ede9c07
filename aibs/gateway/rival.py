"""Whether a shared pool already schedules the nodes that a gateway would serve by itself.

Two schedulers of the same boxes overcommit them, whatever each one counts: so a gateway with local
admission does not start beside a live fleet, nor where it cannot be known, unless told to.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from aibs.errors import CoordinationUnavailable, Refused
from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.state import LiveState

if TYPE_CHECKING:
    from aibs.settings import Settings

ANSWER_S: Final = 5.0
MEND: Final = (
    "Set AIBS_MODEL_CLUSTER_ENABLED=true to place requests in that pool, or start with "
    "--local-anyway if these are other nodes."
)


async def require_no_rival(settings: Settings) -> None:
    """Raises Refused beside a live fleet, CoordinationUnavailable where it cannot be known."""
    if settings.coordination_backend == "memory":
        return
    try:
        owner = await _owner(settings)
    except (CoordinationUnavailable, OSError) as error:
        if settings.model_pool_url == "embedded":
            # None runs here, so nobody schedules through it.
            return
        raise CoordinationUnavailable(
            f"Whether another scheduler serves these nodes cannot be known: {error}",
            mend="Start the coordination server, or start with --local-anyway.",
        ) from error
    if owner is not None:
        raise Refused(
            f"A live fleet is declared in the pool {settings.model_cluster_namespace} (its owner "
            f"is {owner}), and this gateway would admit requests to its nodes without it.",
            mend=MEND,
        )


async def _owner(settings: Settings) -> str | None:
    """Who holds the term of a pool with a fleet."""
    client = commands(
        await open_client(
            settings.model_pool_url,
            data_dir=Path(settings.data_dir),
            purpose="read",
            timeout_s=ANSWER_S,
        )
    )
    try:
        live = LiveState(client, Keys(settings.model_cluster_namespace))
        term, now_ms = await live.term(), await live.server_now_ms()
        if term is None or not term.alive(now_ms) or await live.fleet() is None:
            return None
        return term.owner
    finally:
        await client.aclose()
