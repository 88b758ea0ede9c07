"""Which types there are, and how an older version of one is read as the newest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from aibs.eventstore.events.fleet import FleetDeclared
from aibs.eventstore.events.leases import (
    DenialsCounted,
    DoubleRelease,
    LateRelease,
    LeakAcknowledged,
    LeaseAcquired,
    LeaseDenied,
    LeaseExpired,
    LeaseReaped,
    LeaseReleased,
    LeaseRevoked,
    LeasesRenewed,
    ModelLoaded,
    ModelLoading,
    ModelUnloaded,
)
from aibs.eventstore.events.nodes import (
    NodeCordoned,
    NodeRestored,
    NodeTripped,
    NodeUncordoned,
    SessionEnded,
    SessionOpened,
    WarmupMeasured,
    WeightsForgotten,
)
from aibs.eventstore.events.observation import NodeHealthChanged, ResidencyObserved
from aibs.eventstore.events.ownership import (
    ClockStepped,
    FencedWriteRejected,
    OwnerElected,
    OwnerExpired,
    OwnerResigned,
)
from aibs.eventstore.events.pool import PoolClosed, PoolCreated, PoolReopened, PoolSuspect
from aibs.eventstore.events.queue import (
    LeaseQueued,
    NodeReserved,
    ReservationEnded,
    WaitEnded,
)
from aibs.eventstore.events.snapshots import LogTrimmed, SnapshotTaken

if TYPE_CHECKING:
    from aibs.eventstore.events.envelope import Event, EventData

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

EVENT_TYPES: dict[str, type[EventData]] = {
    event.TYPE: event
    for event in (
        PoolCreated,
        PoolSuspect,
        PoolReopened,
        PoolClosed,
        FleetDeclared,
        OwnerElected,
        OwnerResigned,
        OwnerExpired,
        FencedWriteRejected,
        ClockStepped,
        ResidencyObserved,
        NodeHealthChanged,
        DenialsCounted,
        DoubleRelease,
        LateRelease,
        LeakAcknowledged,
        LeaseAcquired,
        LeaseDenied,
        LeaseExpired,
        LeaseReaped,
        LeaseReleased,
        LeaseRevoked,
        LeasesRenewed,
        ModelLoaded,
        ModelLoading,
        ModelUnloaded,
        LeaseQueued,
        NodeReserved,
        ReservationEnded,
        WaitEnded,
        NodeCordoned,
        NodeRestored,
        NodeTripped,
        NodeUncordoned,
        SessionEnded,
        SessionOpened,
        WeightsForgotten,
        WarmupMeasured,
        SnapshotTaken,
        LogTrimmed,
    )
}

UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""(type, version) → how that version's data becomes the next version's."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An event whose data this release cannot read as its type: kept, shown, not folded.

    `why` is unknown_type, newer_version or invalid_data; `detail` is a clause for a person.
    """

    event: Event
    why: str
    detail: str


def lift(event: Event, upcasters: dict[tuple[str, int], Upcaster] | None = None) -> Any:
    """A known type's data, lifted to its newest version and not looked at; or, as text, why not."""
    steps = UPCASTERS if upcasters is None else upcasters
    data = event.data
    for version in range(event.version, EVENT_TYPES[event.type].VERSION):
        upcast = steps.get((event.type, version))
        if upcast is None:
            return f"no way to lift {event.type} from version {version}"
        try:
            data = upcast(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return f"{event.type} of version {version} is damaged: {error!r}"
    return data


def decode(
    event: Event, upcasters: dict[tuple[str, int], Upcaster] | None = None
) -> EventData | Unreadable:
    """An event's data as its type's newest version, or why that cannot be had."""
    known = EVENT_TYPES.get(event.type)
    if known is None:
        return Unreadable(event, "unknown_type", f"no type {event.type} in this release")
    if event.version > known.VERSION:
        return Unreadable(
            event,
            "newer_version",
            f"{event.type} version {event.version}, this release reads up to {known.VERSION}",
        )
    data = lift(event, upcasters)
    if isinstance(data, str):
        return Unreadable(event, "invalid_data", data)
    try:
        return known.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return Unreadable(event, "invalid_data", f"{where}: {first['msg']}")
