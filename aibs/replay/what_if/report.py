"""`aibs replay --what-if`: before and after side by side, and what was recorded. Pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from aibs.audit.wording import plural
from aibs.codec import rfc3339
from aibs.reports.part import Part, Timestamp, schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aibs.fleet import Fleet
    from aibs.replay.what_if.changes import Change
    from aibs.replay.what_if.recorded import Agreement, Recorded, Tally

SCHEMA: Final = "aibs.replay.what-if/1"

ASSUMPTIONS = (
    "Requests come when they came, and work as long as they worked: those that would have come, "
    "asked again or given up otherwise are not known.",
    "What was held or waited for when the range began is placed anew, and is in no figure.",
    "A request that was granted at once would wait as long as the longest limit that was told.",
    "A request that was denied would work as long as the median of its lane.",
    "Equal denials that were counted and not logged are left out.",
    "A load takes the median of that model's recorded loads there, else elsewhere, else no time; "
    "models stay until they are unloaded for another.",
    "A model weighs what it was seen to weigh where that is more than declared, unless its weight "
    "is changed.",
    "Nodes are always freshly seen, and no process falls silent: moments without an owner are left "
    "out.",
    "Simulated requests that wait when the range ends are followed to their end.",
    "Trips of nodes are left out, and so is which nodes a request would not have, because they had "
    "just failed it.",
)


class NodePeak(Part):
    """The most that was leased at one moment."""

    node_id: str
    leased_bytes: int
    slots_used: int


class Outcome(Part):
    """What became of the requests."""

    requests: int
    granted: int
    denied: dict[str, int]
    """By reason."""
    gave_up: int
    wait_median_ms: int | None
    wait_p95_ms: int | None
    wait_longest_ms: int | None
    """Waits of granted requests; null where none was granted."""
    loads: int
    """Grants of models that were not resident."""
    unloads: int
    """Idle models that made room for them."""
    peaks: list[NodePeak]


class Agreed(Part):
    """How far `before` agrees with the log, request by request."""

    compared: int
    """Requests whose end the log tells."""
    ended_alike: int
    """Granted, denied or given up in both."""
    granted_in_both: int
    on_the_same_node: int
    """Of those that were granted in both."""


class WhatIfDocument(Part):
    """The whole answer, of the range from `since` to its last event at `until`."""

    schema_: Literal["aibs.replay.what-if/1"] = Field(SCHEMA, alias="schema")
    generated_at: Timestamp
    since: Timestamp
    until: Timestamp
    changes: list[str]
    recorded: Outcome
    before: Outcome
    """Simulated with the recorded fleet."""
    after: Outcome
    """Simulated with the changed fleet."""
    agreement: Agreed
    assumptions: list[str]


def document_of(
    recorded: Recorded,
    changes: Sequence[Change],
    before: Tally,
    after: Tally,
    agreement: Agreement,
    *,
    generated_ms: int,
) -> WhatIfDocument:
    """The document, made at `generated_ms`."""
    names = _names([fleet for _, fleet in recorded.fleets])
    return WhatIfDocument(
        schema=SCHEMA,
        generated_at=rfc3339(generated_ms),
        since=rfc3339(recorded.begins_ms),
        until=rfc3339(recorded.ends_ms),
        changes=[change.text for change in changes],
        recorded=_outcome(recorded.tally, names),
        before=_outcome(before, names),
        after=_outcome(after, names),
        agreement=Agreed(
            compared=agreement.compared,
            ended_alike=agreement.ended_alike,
            granted_in_both=agreement.granted_in_both,
            on_the_same_node=agreement.on_the_same_node,
        ),
        assumptions=list(ASSUMPTIONS),
    )


def _names(fleets: Sequence[Fleet]) -> list[str]:
    return sorted({node.node_id for fleet in fleets for node in fleet.nodes})


def _outcome(tally: Tally, names: Sequence[str]) -> Outcome:
    waits = sorted(tally.waits_ms)
    return Outcome(
        requests=tally.requests,
        granted=tally.granted,
        denied=dict(sorted(tally.denied.items())),
        gave_up=tally.gave_up,
        wait_median_ms=round(statistics.median(waits)) if waits else None,
        # The nearest rank: of twenty waits the nineteenth.
        wait_p95_ms=waits[(95 * len(waits) + 99) // 100 - 1] if waits else None,
        wait_longest_ms=waits[-1] if waits else None,
        loads=tally.loads,
        unloads=tally.unloads,
        peaks=[
            NodePeak(
                node_id=name,
                leased_bytes=tally.peak_leased.get(name, 0),
                slots_used=tally.peak_slots.get(name, 0),
            )
            for name in names
        ],
    )


def rows_of(document: WhatIfDocument) -> list[tuple[str, str, str, str]]:
    """The table: what, recorded, before, after."""
    columns = (document.recorded, document.before, document.after)
    rows: list[tuple[str, str, str, str]] = [
        _row("requests", columns, lambda one: str(one.requests)),
        _row("granted", columns, lambda one: str(one.granted)),
    ]
    for reason in sorted({reason for one in columns for reason in one.denied}):
        label = f"denied: {reason.replace('_', ' ')}"
        rows.append(_row(label, columns, lambda one, reason=reason: str(one.denied.get(reason, 0))))
    rows += [
        _row("gave up", columns, lambda one: str(one.gave_up)),
        _row("wait, median", columns, lambda one: _s(one.wait_median_ms)),
        _row("wait, 95 of 100", columns, lambda one: _s(one.wait_p95_ms)),
        _row("wait, longest", columns, lambda one: _s(one.wait_longest_ms)),
        _row("loads", columns, lambda one: str(one.loads)),
        _row("unloads for them", columns, lambda one: str(one.unloads)),
    ]
    for place, peak in enumerate(document.recorded.peaks):
        rows.append(
            _row(
                f"{peak.node_id}, most leased",
                columns,
                lambda one, place=place: (
                    f"{one.peaks[place].leased_bytes / 1e9:.12g} GB, "
                    f"{plural(one.peaks[place].slots_used, 'slot')}"
                ),
            )
        )
    return rows


def agreement_of(document: WhatIfDocument) -> str:
    """How far the simulation may be believed, in a sentence or two."""
    told = document.agreement
    sentence = (
        f"Simulated before, {told.ended_alike} of {plural(told.compared, 'request')} ended as "
        f"recorded; of {told.granted_in_both} granted in both, {told.on_the_same_node} went to the "
        "same node."
    )
    if told.ended_alike * 10 < told.compared * 9:
        sentence += " That is far from what was recorded: take the difference for a hint at most."
    return sentence


def _row(label: str, columns: Sequence[Outcome], shown: Any) -> tuple[str, str, str, str]:
    first, second, third = (shown(one) for one in columns)
    return (label, first, second, third)


def _s(duration_ms: int | None) -> str:
    return "-" if duration_ms is None else f"{duration_ms / 1000:.1f} s"


def json_schema() -> dict[str, Any]:
    """Its JSON Schema."""
    return schema_of(WhatIfDocument, SCHEMA)
