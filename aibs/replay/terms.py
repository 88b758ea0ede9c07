"""Terms as the log tells them: fences only grow, and an owner's writes never interleave. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aibs.eventstore.events import Event
    from aibs.projections.coordination import Coordination

OWNERS_WRITES = frozenset(
    {"FleetDeclared", "ResidencyObserved", "NodeHealthChanged", "SnapshotTaken", "LogTrimmed"}
)
"""What only the holder of the term writes, under its fence."""

UNFENCED = frozenset(
    {
        "PoolCreated",
        "PoolSuspect",
        "PoolClosed",
        "LeaseQueued",
        "LeaseAcquired",
        "LeaseDenied",
        "DenialsCounted",
        "LeasesRenewed",
        "LeaseReleased",
        "LeaseExpired",
        "LeaseRevoked",
        "LeaseReaped",
        "LateRelease",
        "DoubleRelease",
        "LeakAcknowledged",
        "ModelLoading",
        "ModelLoaded",
        "ModelUnloaded",
        "WaitEnded",
        "NodeReserved",
        "NodeCordoned",
        "NodeUncordoned",
        "NodeTripped",
        "NodeRestored",
        "SessionOpened",
        "SessionEnded",
        "WeightsForgotten",
        "WarmupMeasured",
    }
)
"""What is written without a fence, whoever writes it."""


class Terms:
    """Feed it every readable event: the sentences of what cannot be."""

    def __init__(self) -> None:
        self._highest = 0
        self._owner: str | None = None
        self._named = True
        self._sure = True

    @classmethod
    def after(cls, start: Coordination | None) -> Self:
        """As a stored state left them."""
        terms = cls()
        if start is not None:
            terms._highest, terms._owner = start.ownership.fence, start.ownership.owner
        return terms

    def late(self) -> None:
        """The log began after its beginning: the first fence seen is taken as the term's."""
        self._sure = False

    def feed(self, event: Event) -> Iterator[str]:
        """What of this event's fence is wrong."""
        match event.type:
            case "OwnerElected":
                yield from self._elected(event)
            case "OwnerResigned" | "OwnerExpired":
                yield from self._ended(event)
            case "FencedWriteRejected":
                yield from self._differs(event, event.data["fence"])
            case _ if event.type in OWNERS_WRITES:
                yield from self._written(event)
            case _ if event.type in UNFENCED and event.fence is not None:
                yield f"A {event.type} has the fence {event.fence}, and is written without one."
            case _ if event.fence is not None and event.fence != self._highest and self._sure:
                yield self._not_this(event)

    def _elected(self, event: Event) -> Iterator[str]:
        fence = event.data["fence"]
        yield from self._differs(event, fence)
        if fence <= self._highest:
            yield f"The fence {fence} was given after {self._highest}: fences only grow."
        self._highest, self._owner = max(fence, self._highest), event.data["owner"]
        self._named = self._sure = True

    def _ended(self, event: Event) -> Iterator[str]:
        fence, owner = event.data["fence"], event.data["owner"]
        yield from self._differs(event, fence)
        known = (fence, owner) == (self._highest, self._owner)
        if self._sure and not known and (self._named or fence != self._highest):
            yield (
                f"The term of {owner} with fence {fence} ended, and the term was "
                f"{self._owner or 'nobody'}'s with fence {self._highest}."
            )
        self._highest = max(fence, self._highest)
        self._owner, self._named, self._sure = None, True, True

    def _written(self, event: Event) -> Iterator[str]:
        if not self._sure:
            self._highest = max(self._highest, event.fence or 0)
            self._owner, self._named, self._sure = "its owner", False, True
            return
        if event.fence != self._highest:
            yield self._not_this(event)
        elif self._owner is None:
            yield f"A {event.type} was written under fence {event.fence}, whose term was over."

    def _not_this(self, event: Event) -> str:
        return (
            f"A {event.type} was written under fence {event.fence}, and the term's fence was "
            f"{self._highest}."
        )

    def _differs(self, event: Event, told: int) -> Iterator[str]:
        if event.fence != told:
            yield f"The {event.type} has the fence {event.fence}, and tells of fence {told}."
