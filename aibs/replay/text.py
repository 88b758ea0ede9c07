"""States, differences and verdicts for a terminal. Text from the log passes `printable`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from aibs.audit.wording import age, gb, plural, printable
from aibs.replay.what_if.report import agreement_of, rows_of
from aibs.reports.text import STATE_STYLES, bar, moment_ms

if TYPE_CHECKING:
    from rich.console import Console

    from aibs.replay.as_of import AsOfDocument, AsOfFleet, AsOfOwner
    from aibs.replay.diff import DiffDocument, NodeChange
    from aibs.replay.story import ExplainDocument
    from aibs.replay.verify import VerifyDocument
    from aibs.replay.what_if.report import WhatIfDocument
    from aibs.reports.leaks import LeaseReport
    from aibs.reports.status import NodeReport, WaiterReport

BYTES = "_bytes"


def render_as_of(document: AsOfDocument, console: Console) -> None:
    """One screen of then."""
    plain = not console.encoding.lower().replace("-", "").startswith("utf")
    pool = document.pool
    _say(
        console,
        f"As of {document.as_of}, after event {document.last_id} (number {document.seq}): "
        f"pool {pool.namespace} ({pool.pool_id}) {pool.state}; {_fleet(document.fleet)}; "
        f"owner: {_owner(document.owner)}",
    )
    if document.nodes:
        console.print(_nodes(document.nodes, plain=plain))
    if document.inferred_fresh:
        _say(
            console,
            "Fresh by inference, for a poll that changes nothing is told once a minute: "
            f"{', '.join(map(printable, document.inferred_fresh))}.",
            "dim",
        )
    now_ms = moment_ms(document.as_of)
    leases = [*document.leases, *document.other_leases]
    if leases:
        console.print(_leases(leases, now_ms))
    if document.queue:
        console.print(_queue(document.queue))
    if not leases and not document.queue:
        _say(console, "No lease, nobody waits.", "dim")
    _notes(document.notes, console)


def _say(console: Console, sentence: str, style: str = "") -> None:
    console.print(Text(sentence, style=style), soft_wrap=True)


def _notes(notes: list[str], console: Console) -> None:
    for note in notes:
        _say(console, f"note: {printable(note)}", "yellow")


def _fleet(fleet: AsOfFleet | None) -> str:
    if fleet is None:
        return "no fleet declared"
    return f"fleet revision {fleet.revision}, {fleet.fingerprint[:12]}"


def _owner(owner: AsOfOwner | None) -> str:
    return "none" if owner is None else f"{printable(owner.owner)}, fence {owner.fence}"


def _nodes(nodes: list[NodeReport], *, plain: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("node", "state", "memory", "foreign", "leased", "free", "slots"):
        table.add_column(column, overflow="fold")
    for node in nodes:
        state = node.state if node.detail is None else f"{node.state}: {printable(node.detail)}"
        table.add_row(
            printable(node.node_id),
            Text(state, style=STATE_STYLES.get(node.state, "red")),
            bar(node, plain=plain),
            "?" if node.foreign_bytes is None else gb(node.foreign_bytes),
            gb(node.leased_bytes),
            "?" if node.free_bytes is None else gb(node.free_bytes),
            f"{node.slots_used}/{'?' if node.slots is None else node.slots}"
            + (f" ({node.slots_draining} draining)" if node.slots_draining else ""),
        )
    return table


def _leases(leases: list[LeaseReport], now_ms: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("lease", "state", "node", "model", "request", "holder", "held"):
        table.add_column(column, overflow="fold", no_wrap=column == "lease")
    for lease in leases:
        table.add_row(
            printable(lease.lease_id),
            Text(lease.state, style=STATE_STYLES.get(lease.state, "red")),
            printable(lease.node_id),
            printable(lease.model),
            printable(lease.request_id),
            printable(lease.holder),
            age(max(0, now_ms - moment_ms(lease.acquired_at))),
        )
    return table


def _queue(queue: list[WaiterReport]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("place", "request", "model", "class", "waits", "why", "reserves"):
        table.add_column(column, overflow="fold")
    for waiter in queue:
        table.add_row(
            str(waiter.position),
            printable(waiter.request_id),
            printable(waiter.model),
            waiter.priority,
            age(waiter.waiting_ms),
            waiter.reason,
            waiter.reserves or "",
        )
    return table


def render_diff(document: DiffDocument, console: Console) -> None:
    """What changed, a line each."""
    before, after = document.before, document.after
    _say(
        console,
        f"From {before.at} (number {before.seq}) to {after.at} (number {after.seq}): "
        f"{plural(document.events, 'event')}.",
    )
    lines = []
    if document.pool is not None:
        lines.append(f"pool: {document.pool.before} → {document.pool.after}")
    if document.owner is not None:
        lines.append(f"owner: {_owner(document.owner.before)} → {_owner(document.owner.after)}")
    if document.fleet is not None:
        lines.append(f"fleet: {_fleet(document.fleet.before)} → {_fleet(document.fleet.after)}")
        lines += [f"fleet: {change}" for change in document.fleet.changes]
    for node in document.nodes:
        lines += _node_lines(node)
    lines += [
        f"lease {lease.lease_id}: begun, {lease.model} on {lease.node_id} for {lease.request_id}"
        for lease in document.leases.begun
    ]
    lines += [
        f"lease {ended.lease_id}: {ended.end} at {ended.ended_at}, "
        f"{ended.model or 'a model'} on {ended.node_id} for {ended.request_id or 'a request'}"
        + (" (begun in between)" if ended.began_between else "")
        for ended in document.leases.ended
    ]
    lines += [
        f"queue: {one.request_id} waits for {one.model}, place {one.position}"
        for one in document.queue.joined
    ]
    lines += [
        f"queue: {one.request_key} waits no longer ({one.how}) after {age(one.waited_ms)}"
        for one in document.queue.left
    ]
    for line in lines or ["Nothing changed but time."]:
        _say(console, printable(line))
    _notes(document.notes, console)


def _node_lines(node: NodeChange) -> list[str]:
    lines = []
    if node.change != "changed":
        lines.append(f"node {node.node_id}: {node.change}")
    for change in node.changes:
        name = change.what.removesuffix(BYTES).replace("_", " ")
        sized = change.what.endswith(BYTES)
        lines.append(
            f"node {node.node_id}: {name} {_shown(change.before, sized=sized)} → "
            f"{_shown(change.after, sized=sized)}"
        )
    lines += [f"node {node.node_id}: {model} is there now" for model in node.models_loaded]
    lines += [f"node {node.node_id}: {model} is gone" for model in node.models_gone]
    return lines


def _shown(value: str | int | None, *, sized: bool) -> str:
    if value is None:
        return "none" if not sized else "unknown"
    return gb(value) if sized and isinstance(value, int) else str(value)


def render_what_if(document: WhatIfDocument, console: Console) -> None:
    """Recorded, before and after side by side, and what that rests on."""
    _say(console, f"What if {', '.join(printable(text) for text in document.changes)}:")
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("recorded", "simulated before", "simulated after"):
        table.add_column(name, justify="right")
    for row in rows_of(document):
        table.add_row(*(printable(cell) for cell in row))
    console.print(table)
    _say(console, agreement_of(document))
    for sentence in document.assumptions:
        _say(console, sentence, "dim")


def render_verify(document: VerifyDocument, console: Console) -> None:
    """The problems, and the verdict last, where the eye ends."""
    for problem in document.problems:
        where = "" if problem.id is None else f"{problem.id} "
        _say(console, f"{where}{problem.kind}: {printable(problem.detail)}", "red")
    span = "no event" if document.first_id is None else f"{document.first_id} to {document.last_id}"
    live = ", compared with the live state" if document.compared_with_live_state else ""
    start = "" if document.snapshot_id is None else f", from the state after {document.snapshot_id}"
    _say(console, f"{plural(document.events, 'event')} ({span}){start}{live}.")
    if document.truncated and document.ok:
        _say(console, "The log begins after its beginning: what is there is sound.", "yellow")
    elif document.ok:
        _say(console, "The log is whole and adds up.", "green")
    else:
        _say(console, f"{plural(len(document.problems), 'problem')} found.", "bold red")


def render_explain(document: ExplainDocument, console: Console) -> None:
    """The story line by line, and what came of it."""
    subject = document.subject
    _say(
        console,
        printable(
            f"{subject.request_key}: {subject.asked_for}, class {subject.priority or 'unknown'}, "
            f"held by {subject.holder}"
        ),
        "bold",
    )
    for step in document.story:
        _say(console, f"{step.at} {step.seq:>7}  {step.text}")
    for grant in document.grants:
        beats = grant.heartbeats
        _say(
            console,
            f"lease {grant.lease_id}: {plural(beats.count, 'heartbeat')} heard, "
            f"{beats.missed} missed; deadline {grant.deadline}",
            "dim",
        )
    _notes(document.notes, console)
    _say(console, printable(document.summary), "bold")
