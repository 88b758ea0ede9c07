"""Every poll of every node, counted from the samples: how long each took, and how those failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aibs.eventstore.anchor import id_order
from aibs.eventstore.reading import answered
from aibs.gateway.control.tally import OTHER, POLL_S, Count, Spread

if TYPE_CHECKING:
    from aibs.eventstore.commands import Commands, Entry
    from aibs.eventstore.keys import Keys

FIRST_MAX: Final = 1000
"""So many of the newest samples are counted at the beginning."""

BATCH: Final = 1000
REASONS_MAX: Final = 64


class Polls:
    """Reads the samples on and on."""

    def __init__(self, keys: Keys) -> None:
        self._stream = keys.key("samples")
        self._cursor: str | None = None
        self._reasons: set[str] = set()
        self.durations = Spread(("node",), POLL_S)
        self.failures = Count(("node", "reason"))

    async def turn(self, client: Commands) -> None:
        """Count what came since. Raises CoordinationUnavailable."""
        with answered("the samples"):
            newest = await client.xrevrange(self._stream, "+", "-", count=1)
            if not newest:
                return
            last = newest[0][0].decode()
            if self._cursor is None:
                first = await client.xrevrange(self._stream, "+", "-", count=FIRST_MAX)
                for entry in reversed(first):
                    self._count(entry)
                return
            if id_order(last) < id_order(self._cursor):
                # Another stream under the same name: what it holds is of another time.
                self._cursor = last
                return
            while True:
                entries = await client.xrange(self._stream, f"({self._cursor}", "+", count=BATCH)
                for entry in entries:
                    self._count(entry)
                if len(entries) < BATCH:
                    return

    def _count(self, entry: Entry) -> None:
        entry_id, fields = entry
        self._cursor = entry_id.decode()
        try:
            node = fields[b"node"].decode()
            outcome = fields[b"outcome"].decode()
            latency_ms = int(fields[b"latency_ms"])
        except (KeyError, ValueError):
            # Of another release: it tells nothing that is asked for here.
            return
        self.durations.observe((node,), max(0, latency_ms) / 1000)
        if outcome != "ok":
            if len(self._reasons) < REASONS_MAX:
                self._reasons.add(outcome)
            self.failures.add((node, outcome if outcome in self._reasons else OTHER))

    def forget_all_but(self, nodes: set[str]) -> None:
        """What is known of a node goes with the node."""
        self.durations.forget(0, nodes)
        self.failures.forget(0, nodes)
