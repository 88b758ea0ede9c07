"""What `aibs node cordon|drain --json` prints: schema `aibs.node.hand/1`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from aibs.codec import rfc3339
from aibs.reports.part import Part, Timestamp, schema_of

SCHEMA: Final = "aibs.node.hand/1"


class HandDocument(Part):
    """The whole answer."""

    schema_: Literal["aibs.node.hand/1"] = Field(SCHEMA, alias="schema")
    generated_at: Timestamp
    """By the server's clock, which is the one of the event."""
    node_id: str
    cordoned: Literal[True]
    changed: bool
    """Whether this call cordoned it, or altered its reason or its end; else it was so already."""
    empty: bool | None
    """Whether no lease is left, draining ones among them; null where nobody waited (cordon)."""
    leases_left: Annotated[int, Field(ge=0)] | None
    """How many; null where nobody waited (cordon)."""


def hand_document(
    now_ms: int, node_id: str, *, changed: bool, leases_left: int | None = None
) -> HandDocument:
    """The document of a hand that has done its work."""
    return HandDocument(
        generated_at=rfc3339(now_ms),
        node_id=node_id,
        cordoned=True,
        changed=changed,
        empty=None if leases_left is None else not leases_left,
        leases_left=leases_left,
    )


def to_json(document: HandDocument) -> dict[str, Any]:
    """The document as printed."""
    return document.model_dump(mode="json", by_alias=True)


def json_schema() -> dict[str, Any]:
    """Its JSON Schema."""
    return schema_of(HandDocument, SCHEMA)
