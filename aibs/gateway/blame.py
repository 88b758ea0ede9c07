"""Whose fault it is that a request failed before its first byte: the node's, or its own.

A request that no node can serve must not close them one after the other. So what it may have
brought about itself counts against a node when another node serves it, and not where others fail it
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aibs.gateway.failures import NodeFailure
    from aibs.gateway.passive import NodeHealth


class Blame:
    """For one request."""

    def __init__(self, health: NodeHealth) -> None:
        self._health = health
        self._open: list[NodeFailure] = []

    def met(self, failure: NodeFailure) -> None:
        """A node failed it."""
        if not failure.counts:
            return
        # No connection, or a refusal of what only we send, was never the request's doing.
        if failure.kind in ("timeout", "reset") or failure.answer is not None:
            self._open.append(failure)
        else:
            self._health.failed(failure)

    def served(self) -> None:
        """A node serves it: those before could have."""
        failures, self._open = self._open, []
        for failure in failures:
            self._health.failed(failure)

    def over(self) -> None:
        """No node served it. May be called after `served`, too."""
        if len({failure.node_id for failure in self._open}) > 1:
            return
        for failure in self._open:
            # An error that a node alone tells goes to the client, who learns more from it than
            # from a refusal; one that is silent would keep others waiting.
            if failure.answer is None:
                self._health.failed(failure)
