"""The events: one envelope for all, one frozen model for each type, and the registry of both.

An event's data is read as its type says. Older versions are lifted by upcasters first; unknown
types and newer versions are kept as they are and shown, and a fold that cannot do without them
stops and says so.
"""

from aibs.eventstore.events.envelope import Event, EventData
from aibs.eventstore.events.fleet import FleetDeclared
from aibs.eventstore.events.leases import (
    DenialsCounted,
    DoubleRelease,
    Evidence,
    LateRelease,
    LeakAcknowledged,
    LeaseAcquired,
    LeaseDenied,
    LeaseDocument,
    LeaseExpired,
    LeaseReaped,
    LeaseReleased,
    LeaseRevoked,
    LeasesRenewed,
    ModelLoaded,
    ModelLoading,
    ModelUnloaded,
    NodeRefusal,
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
from aibs.eventstore.events.observation import (
    NodeHealthChanged,
    ObservedModel,
    ResidencyObserved,
)
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
    WaiterDocument,
)
from aibs.eventstore.events.registry import EVENT_TYPES, Unreadable, decode
from aibs.eventstore.events.snapshots import LogTrimmed, SnapshotFold, SnapshotTaken

__all__ = [
    "EVENT_TYPES",
    "ClockStepped",
    "DenialsCounted",
    "DoubleRelease",
    "Event",
    "EventData",
    "Evidence",
    "FencedWriteRejected",
    "FleetDeclared",
    "LateRelease",
    "LeakAcknowledged",
    "LeaseAcquired",
    "LeaseDenied",
    "LeaseDocument",
    "LeaseExpired",
    "LeaseQueued",
    "LeaseReaped",
    "LeaseReleased",
    "LeaseRevoked",
    "LeasesRenewed",
    "LogTrimmed",
    "ModelLoaded",
    "ModelLoading",
    "ModelUnloaded",
    "NodeCordoned",
    "NodeHealthChanged",
    "NodeRefusal",
    "NodeReserved",
    "NodeRestored",
    "NodeTripped",
    "NodeUncordoned",
    "ObservedModel",
    "OwnerElected",
    "OwnerExpired",
    "OwnerResigned",
    "PoolClosed",
    "PoolCreated",
    "PoolReopened",
    "PoolSuspect",
    "ReservationEnded",
    "ResidencyObserved",
    "SessionEnded",
    "SessionOpened",
    "SnapshotFold",
    "SnapshotTaken",
    "Unreadable",
    "WaitEnded",
    "WaiterDocument",
    "WarmupMeasured",
    "WeightsForgotten",
    "decode",
]
