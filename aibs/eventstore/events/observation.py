"""What polls saw of the nodes."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from aibs.eventstore.events.envelope import EventData


class ObservedModel(BaseModel):
    """One resident model. Sizes in bytes; `charge_bytes` is what the node's budget is charged."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: str
    key: str | None
    digest: str | None
    size_bytes: int | None
    size_vram_bytes: int | None
    context_length: int | None
    placement: str
    ownership: str
    worker_ids: list[str]
    keeps_forever: bool
    expires_at_ms: int | None
    charge_bytes: int | None


class ResidencyObserved(EventData):
    """What a node held. The poll began at `observed_at_ms` by the server's clock, `elapsed_ms`
    before it was recorded. `foreign_bytes` is null where an entry could not be accounted for.
    `busy` has the keys of own models that others use: they are charged as foreign.
    """

    TYPE: ClassVar[str] = "ResidencyObserved"

    node_id: str
    base_url: str
    fingerprint: str
    observed_at_ms: int
    elapsed_ms: int
    latency_ms: int
    own_bytes: int | None
    foreign_bytes: int | None
    unaccounted: bool
    healthy: bool
    reason: str
    models: list[ObservedModel]
    busy: list[str] = Field(default_factory=list)


class NodeHealthChanged(EventData):
    """A node became healthy or unhealthy. `reason` is the last failed poll's reason code."""

    TYPE: ClassVar[str] = "NodeHealthChanged"

    node_id: str
    base_url: str
    healthy: bool
    reason: str
    failed_in_row: int
