"""One simulated node, alive: its models, its faults, and what it counted."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from aibs.ollama.sim.catalog import Catalog
from aibs.ollama.sim.faults import Faults, merged
from aibs.ollama.sim.ps_view import ps_document, slides
from aibs.ollama.sim.replies import Reply, encode
from aibs.ollama.sim.scheduler import Scheduler
from aibs.ollama.sim.stats import Stats

if TYPE_CHECKING:
    from typing import Any

    from aibs.ollama.sim.spec import SimSpec


class SimNode:
    """A node. `faults` and `stats` are for tests to set and read at any time."""

    __slots__ = (
        "_ps",
        "_ps_revision",
        "catalog",
        "faults",
        "profile",
        "scheduler",
        "spec",
        "stats",
    )

    def __init__(self, spec: SimSpec) -> None:
        self.spec = spec
        self.profile = spec.release
        self.faults = Faults()
        self.stats = Stats()
        self.catalog = Catalog(spec.release, spec.models)
        self.scheduler = Scheduler(spec, self.faults, self.stats)
        self._ps: Reply | None = None
        self._ps_revision = -1

    @property
    def log(self) -> list[tuple[str, str]]:
        """The requests seen, method and path, oldest first."""
        return list(self.stats.log)

    @property
    def resident(self) -> list[str]:
        """The names of the models that occupy memory, whatever `/api/ps` shows of them."""
        return [runner.model.display for runner in self.scheduler.runners.values()]

    def inject(self, **faults: Any) -> None:
        """Set some faults by name and leave the others. Raises ValueError with a sentence.

        What waits inside the node looks again, as it does not when the attributes are set.
        """
        self.faults.update(merged(self.faults, faults))
        self.scheduler.touch()

    def heal(self) -> None:
        """Switch all faults off."""
        self.faults.clear()
        self.scheduler.touch()

    def reset(self) -> None:
        """Switch all faults off and count from zero; what is resident stays."""
        self.heal()
        self.stats.reset()

    def ps_now(self) -> Reply:
        """What `/api/ps` answers where nothing holds it up: the same bytes until a change."""
        if self._ps is None or self._ps_revision != self.scheduler.revision:
            runners = self.scheduler.runners.values()
            body = encode(ps_document(self.profile, runners, time.time_ns()))
            if slides(self.profile, runners):
                return Reply(200, body)
            self._ps, self._ps_revision = Reply(200, body), self.scheduler.revision
        return self._ps

    def ps_waits(self) -> bool:
        """Whether `/api/ps` cannot answer at once."""
        return bool(self.faults.ps_delay_s) or self.scheduler.blocks_ps()

    async def ps_later(self) -> Reply:
        """The answer of `/api/ps` after its delay and all locks."""
        await asyncio.sleep(self.faults.ps_delay_s)
        while self.scheduler.blocks_ps():
            await self.scheduler.changed()
        return self.faults.ps_reply() or self.ps_now()
