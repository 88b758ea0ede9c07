"""One readable clause for each event. Pure; what it does not know it shows as it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aibs.codec import bytes_to_gb, dumps_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.eventstore.events.envelope import Event

UNKNOWN_SHOWN_MAX = 120


def describe(event: Event) -> str:
    """The event as a clause, without its time and actor."""
    wording = _WORDING.get(event.type)
    if wording is None:
        return _as_stored(event)
    try:
        return wording(event.data)
    except (KeyError, TypeError, ValueError, AttributeError):
        # Another version's fields, or a damaged entry: shown, never a crash.
        return _as_stored(event)


def _as_stored(event: Event) -> str:
    text = dumps_text(event.data)
    return text if len(text) <= UNKNOWN_SHOWN_MAX else f"{text[:UNKNOWN_SHOWN_MAX]}…"


def _gb(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{bytes_to_gb(size_bytes):.12g} GB"


def _elected(data: dict[str, Any]) -> str:
    who = f"{data['owner']} holds the term with fence {data['fence']}"
    return who if data["follows"] is None else f"{who}, after {data['follows']}: {data['because']}"


def _observed(data: dict[str, Any]) -> str:
    models = ", ".join(f"{m['name']} ({m['ownership']})" for m in data["models"]) or "nothing"
    state = "" if data["healthy"] else f", unhealthy: {data['reason']}"
    return (
        f"{data['node_id']} holds {models}: own {_gb(data['own_bytes'])}, "
        f"foreign {_gb(data['foreign_bytes'])}{state}"
    )


def _health(data: dict[str, Any]) -> str:
    if data["healthy"]:
        return f"{data['node_id']} is healthy again"
    return f"{data['node_id']} is unhealthy: {data['reason']}, {data['failed_in_row']} in a row"


_WORDING: dict[str, Callable[[dict[str, Any]], str]] = {
    "PoolCreated": lambda d: f"pool {d['pool_id']} begins",
    "PoolSuspect": lambda d: f"the pool is suspect: {d['why']}",
    "PoolReopened": lambda d: f"the pool is open again: {d['why']}",
    "PoolClosed": lambda _: "the server was stopped in good order",
    "FleetDeclared": lambda d: (
        f"revision {d['revision']}: {len(d['fleet']['nodes'])} nodes, "
        f"{len(d['fleet']['workers'])} workers, fingerprint {d['fingerprint'][:12]}"
    ),
    "OwnerElected": _elected,
    "OwnerResigned": lambda d: f"{d['owner']} gave back fence {d['fence']}",
    "OwnerExpired": lambda d: f"{d['owner']} let fence {d['fence']} expire",
    "FencedWriteRejected": lambda d: (
        f"{d['script']} of {d['owner']} refused: fence {d['fence']}, current {d['current_fence']}"
    ),
    "ClockStepped": lambda d: f"the server's clock moved by {d['delta_ms']} ms",
    "ResidencyObserved": _observed,
    "NodeHealthChanged": _health,
}
