"""The status line that `aibs monitor` keeps at the bottom of a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def live_line() -> Iterator[Callable[[str], None]]:
    """A function that shows its argument as the last line; log lines scroll above it."""
    with Live(Text(""), console=Console(stderr=True), refresh_per_second=2, transient=True) as live:
        yield lambda text: live.update(Text(text, style="dim"))
