"""The document for a terminal: the verdict, then nodes, workers, gates, what to paste.

Everything that a node or a server said passes `printable`, so that no escape sequence in a model's
name reaches the terminal.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aibs.audit.suggestions import weight_gb
from aibs.audit.wording import age, gb, plural, printable
from aibs.codec import dumps_text

if TYPE_CHECKING:
    from typing import TextIO

    from aibs.audit.document import (
        AuditDocument,
        Gate,
        ModelReport,
        NodeReport,
        WorkerReport,
    )

ROSTER = "AIBS_MODEL_ADMISSION_WORKER_ROSTER"
UNKNOWN = "?"

WIDTH_OF_FILES = 140


@dataclass(frozen=True, slots=True)
class Marks:
    """Signs that the terminal's encoding has."""

    good: str
    bad: str
    fix: str
    indent: str


def console_for(out: TextIO) -> Console:
    """A console that takes our text as it is, without colours where it is no terminal."""
    # Outside a terminal there is no width to keep to; COLUMNS still sets one.
    width = None if out.isatty() or os.environ.get("COLUMNS") else WIDTH_OF_FILES
    return Console(file=out, width=width, markup=False, highlight=False, emoji=False)


def marks_for(console: Console) -> Marks:
    """Signs for this console: plain words where it is not UTF-8."""
    if console.encoding.lower().replace("-", "").startswith("utf"):
        return Marks("✓", "✗", "→", "└")
    return Marks("ok", "NO", "->", "-")


def render(document: AuditDocument, console: Console) -> None:
    """Print the document."""
    marks = marks_for(console)
    _verdict(document, console)
    if document.nodes:
        console.print(_nodes(document), _resident(document, marks))
    if document.workers:
        console.print(_workers(document, marks))
    if document.warmup is not None:
        console.print(_warmup(document))
    console.print(_gates(document.gates, marks))
    if document.information:
        console.print(_information(document))
    _suggestions(document, console)


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(
        title=_heading(title),
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _verdict(document: AuditDocument, console: Console) -> None:
    failed = [gate for gate in document.gates if not gate.passed]
    if document.ready_to_enable_global_scheduler:
        verdict = Text("READY", style="bold green")
        why = "every gate passed"
    else:
        verdict = Text("NOT READY", style="bold red")
        why = f"{len(failed)} of {plural(len(document.gates), 'gate')} failed"
    state = "enabled" if document.cluster_enabled else "not enabled"
    console.print(Text.assemble(verdict, f" for the global scheduler: {why}. It is {state} now."))
    coordination = document.coordination
    server = f"{coordination.server or 'server'} {coordination.version or ''}".strip()
    where = f"{server} at {coordination.url}" if coordination.reachable else "not reached"
    console.print(
        Text(f"Pool {coordination.namespace}, {printable(where)}. {document.generated_at}")
    )


def _size(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else gb(size_bytes)


def _nodes(document: AuditDocument) -> Table:
    table = _table(
        "Nodes",
        "node", "state", "ollama", "budget", "own", "foreign", "slots", "stamp", "url",
        right=("budget", "own", "foreign", "slots"),
    )  # fmt: skip
    for node in document.nodes:
        style = "" if node.state == "ok" else "red"
        budget, slots = node.vram_budget_gb, node.max_parallel_requests
        table.add_row(
            node.node_id,
            Text(node.state.replace("_", " "), style=style),
            printable(node.ollama_version or UNKNOWN),
            UNKNOWN if budget is None else f"{budget:.12g} GB",
            _size(node.own_resident_bytes),
            _size(node.foreign_resident_bytes),
            UNKNOWN if slots is None else str(slots),
            _stamp(node),
            printable(node.base_url),
        )
    return table


def _stamp(node: NodeReport) -> Text:
    stamp = node.stamp
    if stamp is None:
        return Text("none" if node.configured else "-", style="dim")
    when = "in the future" if stamp.age_ms < 0 else f"{age(stamp.age_ms)} old"
    if not stamp.fresh:
        return Text(f"stale, {when}", style="yellow")
    if not stamp.healthy:
        return Text(f"unhealthy, {when}", style="yellow")
    return Text(f"fresh, {when}")


def _resident(document: AuditDocument, marks: Marks) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for node in document.nodes:
        for model in node.resident_models:
            table.add_row(f"{marks.indent} {node.node_id}", _model(model))
        if node.error:
            table.add_row(
                f"{marks.indent} {node.node_id}", Text(printable(node.error), style="red")
            )
        for warning in node.warnings:
            table.add_row(
                f"{marks.indent} {node.node_id}", Text(printable(warning), style="yellow")
            )
        if node.host_telemetry and not node.host_telemetry.available:
            table.add_row(
                f"{marks.indent} {node.node_id}",
                Text(f"host telemetry unavailable: {printable(node.host_telemetry.error or '')}"),
            )
    return table


def _model(model: ModelReport) -> str:
    size = max(model.size_bytes or 0, model.size_vram_bytes or 0)
    parts = [
        printable(model.name),
        model.ownership,
        gb(size) if size else "size unknown",
        f"on {model.placement}" if model.placement in ("gpu", "cpu") else model.placement,
    ]
    if model.context_length:
        parts.append(f"context {model.context_length}")
    if model.keeps_forever:
        parts.append("kept forever")
    if model.worker_ids:
        parts.append(f"worker {', '.join(model.worker_ids)}")
    return ", ".join(parts)


def _workers(document: AuditDocument, marks: Marks) -> Table:
    table = _table(
        "Workers",
        "worker", "model", "weight", "active", "fits on", "loaded on", "problems",
        right=("weight", "active"),
    )  # fmt: skip
    for worker in document.workers:
        weight, active = worker.resident_weight_gb, worker.active_parameter_billions
        table.add_row(
            worker.worker_id,
            printable(worker.model),
            UNKNOWN if weight is None else f"{weight:.12g} GB",
            UNKNOWN if active is None else f"{active:.12g} B",
            ", ".join(worker.fits_on) or "-",
            ", ".join(worker.loaded_on) or "-",
            _problems(worker, marks),
        )
    return table


def _problems(worker: WorkerReport, marks: Marks) -> Text:
    if not worker.problems:
        return Text(marks.good, style="green")
    return Text("\n".join(printable(problem) for problem in worker.problems), style="yellow")


def _warmup(document: AuditDocument) -> Table:
    table = _table(
        "Warm-up",
        "node", "worker", "status", "load", "size", "unloaded", "evicted", "error",
        right=("load", "size"),
    )  # fmt: skip
    for report in document.warmup or ():
        sizes = (report.size_bytes, report.size_vram_bytes)
        known = [size for size in sizes if size is not None]
        unloaded = {True: "yes", False: "NO", None: "-"}[report.unloaded]
        table.add_row(
            report.node_id,
            report.worker_id,
            report.status.replace("_", " "),
            "-" if report.load_ms is None else age(report.load_ms),
            gb(max(known)) if known else UNKNOWN,
            Text(unloaded, style="red" if report.unloaded is False else ""),
            printable(", ".join(report.evicted)) or "-",
            printable(report.error or ""),
        )
    return table


def _gates(gates: list[Gate], marks: Marks) -> Table:
    table = Table(
        title=_heading("Gates"),
        title_justify="left",
        box=None,
        show_header=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for gate in gates:
        mark = Text(marks.good, "green") if gate.passed else Text(marks.bad, "bold red")
        table.add_row(mark, gate.name, printable_lines(gate.detail))
        if gate.fix:
            table.add_row("", "", Text(f"{marks.fix} {gate.fix}", style="bold"))
    return table


def printable_lines(text: str) -> str:
    """A sentence of ours that may hold names from outside; whole, as it is bounded already."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _information(document: AuditDocument) -> Table:
    table = Table(
        title=_heading("Information"),
        title_justify="left",
        box=None,
        show_header=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for told in document.information:
        style = "yellow" if told.level == "warning" else ""
        table.add_row(Text(told.name, style=style), printable_lines(told.detail))
    return table


def _suggestions(document: AuditDocument, console: Console) -> None:
    """Lines for `.env`, each unbroken whatever the width, so that they can be pasted."""
    suggested = [worker for worker in document.workers if worker.suggestion]
    news = [worker for worker in suggested if _differs(worker)]
    if not news:
        return
    console.print(_heading("Suggested weights, to paste into .env (a comment a worker)"))
    for worker in news:
        assert worker.suggestion is not None
        size = max(worker.suggestion.size_bytes, worker.suggestion.size_vram_bytes)
        declared = worker.resident_weight_gb
        was = "not set" if declared is None else f"{declared:.12g}"
        _unbroken(
            console,
            f"# {worker.worker_id}: {weight_gb(size):.12g} GB as seen on "
            f"{worker.suggestion.node_id} ({worker.suggestion.source}); declared: {was}",
        )
    _unbroken(console, f"{ROSTER}={dumps_text(document.suggested_roster)}")


def _differs(worker: WorkerReport) -> bool:
    assert worker.suggestion is not None
    return worker.suggestion.resident_weight_gb != worker.resident_weight_gb


def _unbroken(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True, no_wrap=True, overflow="ignore", crop=False)
