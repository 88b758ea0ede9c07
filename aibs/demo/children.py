"""The demo's children, and what they have told so far."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from aibs.children.child import Child
from aibs.codec import loads

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GRACE_S = 5.0


class Told(Child):
    """One `aibs` command whose log is read as it comes. Only the newest line of each kind is kept:
    the demo may go on for days.
    """

    def __init__(
        self, name: str, command: str, environment: Mapping[str, str], directory: Path
    ) -> None:
        # This machine's own settings may name a real pool, where the demo has no business.
        inherited = {n: v for n, v in os.environ.items() if not n.startswith("AIBS_")}
        super().__init__(
            name,
            command.split(),
            {**inherited, **environment, "AIBS_LOG_FORMAT": "json"},
            grace_s=GRACE_S,
            hear=self._remember,
            # Without a .env of the place where the demo was called.
            cwd=directory,
        )
        self._events: dict[str, dict[str, Any]] = {}

    def said(self, event: str) -> dict[str, Any] | None:
        """The newest log line of that event."""
        return self._events.get(event)

    def failure(self) -> str | None:
        """What a child that ended by itself said last, None while it runs."""
        if self.running or self.killed or self.status is None:
            return None
        return f"{self.name} ended with {self.status}: {self.last_words()}"

    def _remember(self, line: str) -> None:
        try:
            document = loads(line)
        except ValueError:
            return
        if isinstance(document, dict) and isinstance(document.get("event"), str):
            self._events[document["event"]] = document
