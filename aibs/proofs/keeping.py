"""`--keep-log`: the proof's log in a file, so that the proof can be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.replay.export import export
from aibs.replay.source import LiveSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aibs.settings import Settings

    Keep = Callable[[Any, Settings, str], Awaitable[None]]


def keep_log(path: Path | None, number: int, total: int) -> Keep | None:
    """What writes the log of one run's namespace; of several runs each gets its number."""
    if path is None:
        return None
    place = path if total == 1 else _numbered(path, number)

    async def keep(client: Any, settings: Settings, namespace: str) -> None:
        there = settings.model_copy(update={"model_cluster_namespace": namespace})
        await export(LiveSource(client, there, None), place)

    return keep


def _numbered(path: Path, number: int) -> Path:
    stem, dot, endings = path.name.partition(".")
    return path.with_name(f"{stem}-{number}{dot}{endings}")
