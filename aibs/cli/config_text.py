"""`aibs config check` for a person."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.text import Text

from aibs.audit.text import console_for
from aibs.audit.wording import plural, printable

if TYPE_CHECKING:
    from rich.console import Console

    from aibs.settings.document import ConfigDocument

STYLES = {"default": "dim", "environment": "", ".env": ""}


def render(document: ConfigDocument, *, show_defaults: bool) -> None:
    """Print the settings, then faults and warnings, then the verdict, where the eye ends."""
    console = console_for(sys.stdout)
    rows: list[tuple[str, str, str, str]] = []
    hidden = 0
    for setting in document.settings:
        if setting.provenance == "default" and not setting.faulty and not show_defaults:
            hidden += 1
            continue
        style = "red" if setting.faulty else STYLES[setting.provenance]
        came_from = f"{setting.provenance} (faulty)" if setting.faulty else setting.provenance
        rows.append((setting.variable, came_from, printable(setting.value), style))
    _print_rows(console, rows)
    if hidden:
        console.print(f"{plural(hidden, 'setting')} at the default: --all shows them.", style="dim")
    for fault in document.faults:
        console.print(
            Text(f"fault: {fault.variable} {fault.problem}. {fault.mend}", style="red"),
            soft_wrap=True,
        )
    for warning in document.warnings:
        console.print(Text(f"warning: {printable(warning)}", style="yellow"), soft_wrap=True)
    console.print(_verdict(document))


def _print_rows(console: Console, rows: list[tuple[str, str, str, str]]) -> None:
    if not rows:
        return
    # Not a table of rich: on a narrow terminal it folds names in the middle, and none is found.
    rows = [("setting", "from", "value", "bold"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, came_from, value, style in rows:
        line = f"{name:<{widths[0]}}  {came_from:<{widths[1]}}  {value}".rstrip()
        console.print(Text(line, style=style), soft_wrap=True)


def _verdict(document: ConfigDocument) -> Text:
    faults = len(document.faults) + (len(document.warnings) if document.strict else 0)
    if faults:
        return Text(f"The settings cannot be used: {plural(faults, 'fault')}.", style="bold red")
    return Text(
        f"The settings can be used: {plural(document.node_count, 'node')}, "
        f"{plural(document.worker_count, 'worker')}; after an owner's death every node that "
        f"answers is fresh again within {document.takeover_bound_ms / 1000:.12g} s.",
        style="green",
    )
