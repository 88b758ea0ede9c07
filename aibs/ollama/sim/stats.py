"""What a node counts, so that a test or a proof can ask what really happened there."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

LOG_MAX = 10_000


@dataclass(slots=True)
class Stats:
    """Counts since the start or the last reset. Models by the name that is installed.

    `peak_generations` is how many requests a model answered at one time, `peak_in_flight` how many
    of its requests the node held, waiting ones included; `peak_resident_bytes` counts a model from
    the beginning of its load to its end.
    """

    generating: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[str] = field(default_factory=Counter)
    peak_generations: dict[str, int] = field(default_factory=dict)
    peak_in_flight: dict[str, int] = field(default_factory=dict)
    peak_generations_on_node: int = 0
    peak_resident_bytes: int = 0
    generations: Counter[str] = field(default_factory=Counter)
    loads: Counter[str] = field(default_factory=Counter)
    aborted_loads: int = 0
    failed_loads: int = 0
    reloads: int = 0
    unloads: int = 0
    aborted_generations: int = 0
    evicted: list[str] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    log: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=LOG_MAX))

    @property
    def evictions(self) -> int:
        """How many models were put out for another."""
        return len(self.evicted)

    def request(self, method: str, path: str) -> None:
        """A request came in."""
        self.requests[path] += 1
        self.log.append((method, path))

    def enter(self, model: str) -> None:
        """A request for a model came in."""
        self.in_flight[model] += 1
        self.peak_in_flight[model] = max(self.peak_in_flight.get(model, 0), self.in_flight[model])

    def leave(self, model: str) -> None:
        """It was answered, or its client left."""
        self.in_flight[model] -= 1

    def begin(self, model: str) -> None:
        """A generation got its slot."""
        self.generating[model] += 1
        self.peak_generations[model] = max(
            self.peak_generations.get(model, 0), self.generating[model]
        )
        self.peak_generations_on_node = max(self.peak_generations_on_node, self.generating.total())

    def hold(self, size_bytes: int) -> None:
        """So much is resident now, loads under way included."""
        self.peak_resident_bytes = max(self.peak_resident_bytes, size_bytes)

    def end(self, model: str, *, completed: bool) -> None:
        """A generation gave its slot back."""
        self.generating[model] -= 1
        if completed:
            self.generations[model] += 1
        else:
            self.aborted_generations += 1

    def reset(self) -> None:
        """Forget everything but what is under way now."""
        fresh = Stats(generating=self.generating, in_flight=self.in_flight)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))

    def document(self) -> dict[str, Any]:
        """As `GET /_sim/stats` tells it."""
        return {
            "generating": dict(self.generating),
            "in_flight": dict(self.in_flight),
            "peak_generations": dict(self.peak_generations),
            "peak_in_flight": dict(self.peak_in_flight),
            "peak_generations_on_node": self.peak_generations_on_node,
            "peak_resident_bytes": self.peak_resident_bytes,
            "generations": dict(self.generations),
            "loads": dict(self.loads),
            "aborted_loads": self.aborted_loads,
            "failed_loads": self.failed_loads,
            "reloads": self.reloads,
            "unloads": self.unloads,
            "aborted_generations": self.aborted_generations,
            "evictions": self.evictions,
            "evicted": list(self.evicted),
            "requests": dict(self.requests),
        }
