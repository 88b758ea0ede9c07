"""Names of models as labels: the roster's spelling, everything else `other`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.gateway.control.tally import OTHER
from aibs.model_names import InvalidModelName, comparison_key

if TYPE_CHECKING:
    from aibs.fleet import Fleet

SPELLINGS_MAX = 4096


class ModelNames:
    """The roster's names, found by whichever spelling."""

    def __init__(self, fleet: Fleet) -> None:
        self._by_key: dict[str, str] = {}
        for worker in fleet.workers:
            self._by_key.setdefault(worker.key, worker.model)
        self._known: dict[str, str] = {}

    def of_key(self, key: str | None) -> str:
        """The name of a comparison key."""
        return self._by_key.get(key, OTHER) if key else OTHER

    def of(self, name: str | None) -> str:
        """The name of a model under any spelling."""
        if not name:
            return OTHER
        found = self._known.get(name)
        if found is None:
            try:
                found = self.of_key(comparison_key(name))
            except InvalidModelName:
                found = OTHER
            if len(self._known) >= SPELLINGS_MAX:
                self._known.clear()
            self._known[name] = found
        return found
