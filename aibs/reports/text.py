"""Leaks and status for a terminal. Text from outside passes `printable`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from aibs.audit.wording import age, gb, plural, printable

if TYPE_CHECKING:
    from rich.console import Console

    from aibs.reports.leaks import LeaksDocument, LeaseReport
    from aibs.reports.status import NodeReport, StatusDocument, WaiterReport

BAR_WIDTH = 24
TABLES_FROM = 110
"""Columns below which a table would break its words: lines are printed instead."""

FOREIGN, LEASED, FREE = "▒", "█", "·"
PLAIN = {FOREIGN: "x", LEASED: "#", FREE: "."}

STATE_STYLES = {
    "active": "green",
    "late": "yellow",
    "ready": "green",
    "stale": "yellow",
    "loading": "cyan",
    "cordoned": "yellow",
}


def render_leaks(document: LeaksDocument, console: Console, *, now_ms: int) -> None:
    """Print the leases, what leaked, and the verdict last, where the eye ends."""
    _print_leases(document.leases, console, now_ms)
    groups = [group for group in document.groups if group.leaked or group.late]
    for group in groups:
        console.print(
            Text(
                f"{group.by} {printable(group.name)}: {plural(group.leaked, 'leak')}, "
                f"{group.late} late, {group.living} living",
                style="yellow",
            ),
            soft_wrap=True,
        )
    for note in document.residency:
        console.print(Text(f"note: {printable(note.detail)}", style="dim"), soft_wrap=True)
    for difference in document.differences:
        console.print(Text(f"differs: {printable(difference)}", style="red"), soft_wrap=True)
    console.print(_counts(document), soft_wrap=True)
    console.print(_verdict(document), soft_wrap=True)


def _print_leases(leases: list[LeaseReport], console: Console, now_ms: int) -> None:
    if leases and console.width >= TABLES_FROM:
        console.print(_leases(leases, now_ms))
        return
    for lease in leases:
        text = Text(f"lease {lease.lease_id}: ")
        text.append(_lease_state(lease), style=_lease_style(lease))
        text.append(
            f", {printable(lease.model)} on {lease.node_id} for {printable(lease.holder)} of "
            f"{printable(lease.environment)}, {age(_held_ms(lease, now_ms))}"
        )
        console.print(text)


def _lease_state(lease: LeaseReport) -> str:
    state = lease.state.replace("_", ", ")
    return f"{state} (acknowledged)" if lease.acknowledged else state


def _lease_style(lease: LeaseReport) -> str:
    return "dim" if lease.acknowledged else STATE_STYLES.get(lease.state, "red")


def _held_ms(lease: LeaseReport, now_ms: int) -> int:
    held = lease.held_ms if lease.held_ms is not None else now_ms - moment_ms(lease.acquired_at)
    return max(0, held)


def _leases(leases: list[LeaseReport], now_ms: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("lease", "state", "node", "model", "environment", "holder", "age"):
        table.add_column(column, overflow="fold", no_wrap=column == "lease")
    for lease in leases:
        table.add_row(
            lease.lease_id,
            Text(_lease_state(lease), style=_lease_style(lease)),
            lease.node_id,
            printable(lease.model),
            printable(lease.environment),
            printable(lease.holder),
            age(_held_ms(lease, now_ms)),
        )
    return table


def moment_ms(timestamp: str) -> int:
    """A document's time in milliseconds since the epoch."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


def _counts(document: LeaksDocument) -> Text:
    counts = document.counts
    unlisted = f" ({counts.unlisted} too old to be listed)" if counts.unlisted else ""
    return Text(
        f"{counts.active} active, {counts.late} late, {counts.expired_unreleased} expired without "
        f"release{unlisted}, {counts.draining} draining now; since {document.since}: "
        f"{counts.revoked} revoked, {counts.reaped} reaped, "
        f"{plural(counts.late_releases, 'late release')}, "
        f"{plural(counts.double_releases, 'double release')}"
    )


def _verdict(document: LeaksDocument) -> Text:
    if document.differences:
        return Text(
            "The live state differs from what the log tells: someone else writes to this pool, "
            "or the server lost writes.",
            style="bold red",
        )
    if document.leaking:
        return Text(
            "Leases leak. Look at their holders; `--reap LEASE` frees one that is stuck, "
            "`--ack LEASE` says that it is known.",
            style="bold red",
        )
    return Text("No lease leaks.", style="green")


def render_status(document: StatusDocument, console: Console) -> None:
    """Print one screen of now."""
    plain = not console.encoding.lower().replace("-", "").startswith("utf")
    console.print(_head(document), soft_wrap=True)
    console.print(_owner(document), soft_wrap=True)
    wide = console.width >= TABLES_FROM
    if document.nodes and wide:
        console.print(_nodes(document.nodes, plain=plain))
    elif document.nodes:
        for node in document.nodes:
            console.print(*_node_lines(node, plain=plain), sep="\n")
    leases = [*document.leases, *document.other_leases]
    _print_leases(leases, console, moment_ms(document.generated_at))
    if document.queue and wide:
        console.print(_queue(document))
    else:
        for waiter in document.queue:
            console.print(_waiter_line(waiter))
    if not leases and not document.queue:
        console.print(Text("No lease, nobody waits.", style="dim"))


def _head(document: StatusDocument) -> Text:
    pool = document.pool
    text = Text(f"pool {pool.namespace} ({pool.pool_id}): ")
    text.append(pool.state, style="green" if pool.state == "open" else "bold red")
    text.append(f"; cluster scheduling {'on' if document.cluster_enabled else 'off'}")
    if document.fleet is None:
        text.append("; no fleet is declared", style="yellow")
        return text
    text.append(f"; fleet revision {document.fleet.revision}, {document.fleet.fingerprint[:12]}")
    if not document.fleet.matches_settings:
        text.append(", which these settings do not say", style="yellow")
    return text


def _owner(document: StatusDocument) -> Text:
    owner = document.owner
    if owner is None:
        return Text("owner: none. Start `aibs monitor`.", style="bold red")
    standing = f"; standing by: {', '.join(document.standbys)}" if document.standbys else ""
    return Text(
        f"owner: {owner.owner}, fence {owner.fence}, term ends in "
        f"{age(max(0, owner.lease_expires_in_ms))}{standing}"
    )


def bar(node: NodeReport, *, plain: bool) -> str:
    """The budget: foreign, leased, free. Empty where the budget is unknown."""
    if not node.budget_bytes:
        return ""
    foreign = _cells(node.foreign_bytes or 0, node.budget_bytes)
    leased = min(BAR_WIDTH - foreign, _cells(node.leased_bytes, node.budget_bytes))
    text = FOREIGN * foreign + LEASED * leased + FREE * (BAR_WIDTH - foreign - leased)
    return "".join(PLAIN[char] for char in text) if plain else text


def _cells(size: int, budget: int) -> int:
    """Whole cells, rounded up: what is there must be seen."""
    return min(BAR_WIDTH, -(-size * BAR_WIDTH // budget))


def _nodes(nodes: list[NodeReport], *, plain: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("node", "state", "seen", "memory", "foreign", "leased", "free", "slots"):
        table.add_column(column, overflow="fold")
    for node in nodes:
        table.add_row(
            node.node_id,
            Text(_node_state(node), style=STATE_STYLES.get(node.state, "red")),
            "never" if node.stamp is None else f"{age(max(0, node.stamp.age_ms))} ago",
            bar(node, plain=plain),
            "?" if node.foreign_bytes is None else gb(node.foreign_bytes),
            gb(node.leased_bytes),
            "?" if node.free_bytes is None else gb(node.free_bytes),
            _slots(node),
        )
    return table


def _node_lines(node: NodeReport, *, plain: bool) -> tuple[Text, Text]:
    first = Text(f"{node.node_id}: ")
    first.append(_node_state(node), style=STATE_STYLES.get(node.state, "red"))
    first.append(f"; {_seen(node)}, slots {_slots(node)}")
    second = Text(f"  {bar(node, plain=plain)}".rstrip())
    second.append(
        f" foreign {_size(node.foreign_bytes)}, leased {gb(node.leased_bytes)}, "
        f"free {_size(node.free_bytes)}"
    )
    return first, second


def _node_state(node: NodeReport) -> str:
    return node.state if node.detail is None else f"{node.state}: {printable(node.detail)}"


def _seen(node: NodeReport) -> str:
    return "never seen" if node.stamp is None else f"seen {age(max(0, node.stamp.age_ms))} ago"


def _size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else gb(size_bytes)


def _slots(node: NodeReport) -> str:
    draining = f" ({node.slots_draining} draining)" if node.slots_draining else ""
    return f"{node.slots_used}/{'?' if node.slots is None else node.slots}{draining}"


def _reason(code: str) -> str:
    """A denial's code as words: `no slot`, `cordoned`."""
    return code.removeprefix("node_").replace("_", " ")


def _waiter_line(waiter: WaiterReport) -> Text:
    kept = f"; {waiter.reserves} is reserved for it" if waiter.reserves else ""
    return Text(
        f"place {waiter.position}: {printable(waiter.request_id)} waits {age(waiter.waiting_ms)} "
        f"for {printable(waiter.model)} ({waiter.priority}): {_reason(waiter.reason)}{kept}"
    )


def _queue(document: StatusDocument) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("place", "request", "model", "class", "waits", "why", "reserves"):
        table.add_column(column, overflow="fold")
    for waiter in document.queue:
        table.add_row(
            str(waiter.position),
            printable(waiter.request_id),
            printable(waiter.model),
            waiter.priority,
            age(waiter.waiting_ms),
            _reason(waiter.reason),
            waiter.reserves or "",
        )
    return table
