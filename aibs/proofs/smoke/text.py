"""The test for a terminal: the verdict, each step, each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from aibs.audit.text import marks_for
from aibs.audit.wording import printable
from aibs.proofs.smoke.verdict import NOT_RUN

if TYPE_CHECKING:
    from rich.console import Console

    from aibs.audit.text import Marks
    from aibs.proofs.smoke.document import SmokeDocument, SmokeStep

UNKNOWN = "?"


def render(document: SmokeDocument, console: Console) -> None:
    """Print the document."""
    marks = marks_for(console)
    console.print(_steps(document, marks))
    if any(step.requests for step in document.steps):
        console.print(_requests(document))
    console.print(_verdict(document))


def _verdict(document: SmokeDocument) -> Text:
    failed = [
        step.name
        for step in document.steps
        if not step.passed and not step.detail.startswith(NOT_RUN)
    ]
    if document.passed:
        return Text.assemble(
            ("\nPASSED", "bold green"),
            f": requests through {document.url} are placed by the pool {document.namespace}, and "
            "give back what they took.",
        )
    return Text.assemble(
        ("\nFAILED", "bold red"), f" at {', '.join(failed)}: do not send users there yet."
    )


def _table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
        show_header=bool(any(columns)),
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _steps(document: SmokeDocument, marks: Marks) -> Table:
    table = _table("Smoke test", "", "step", "what was seen")
    for step in document.steps:
        good = step.passed
        mark = Text(marks.good if good else marks.bad, style="green" if good else "bold red")
        table.add_row(mark, step.name, _detail(step))
    return table


def _detail(step: SmokeStep) -> Text:
    told = printable(step.detail)
    return Text(told if step.passed else told.replace("; ", "\n"))


def _requests(document: SmokeDocument) -> Table:
    table = _table(
        "\nRequests",
        *("step", "asked", "outcome", "node", "URL", "waited", "took", "request"),
        right=("waited", "took"),
    )
    for step in document.steps:
        for one in step.requests:
            table.add_row(
                step.name,
                printable(one.asked),
                one.outcome,
                printable(one.node_id or UNKNOWN),
                printable(one.node_base_url or UNKNOWN),
                UNKNOWN if one.queue_ms is None else _s(one.queue_ms),
                _s(one.duration_ms),
                printable(one.request_id or UNKNOWN),
            )
    return table


def _s(duration_ms: int) -> str:
    return f"{duration_ms / 1000:.2f} s"
