"""What the owner declared the fleet to be."""

from __future__ import annotations

from typing import Any, ClassVar

from aibs.eventstore.events.envelope import EventData


class FleetDeclared(EventData):
    """Nodes, roster and affinity from now on. `fleet` is the document that `Fleet` reads back;
    `changes` says in sentences what differs from the one before.
    """

    TYPE: ClassVar[str] = "FleetDeclared"

    revision: int
    fingerprint: str
    fleet: dict[str, Any]
    changes: list[str]
