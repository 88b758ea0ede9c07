"""What the log tells of requests and nodes, as a simulation takes it. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from aibs.fleet import Fleet
    from aibs.placement.values import Class

WAIT_MS_WITHOUT_ANY = 300_000
"""How long a request would wait that was granted at once, where no request tells its own limit."""

End = Literal["granted", "denied", "gave_up"]


@dataclass(slots=True)
class Arrival:
    """One request: what it asked for, and how long it would wait and work. `gave_up_ms` is when it
    was cancelled while it waited, counted from its arrival; `work_ms` is without its load. One that
    is not `counted` was there when the range began: it takes room, and is in no figure. `end` is
    how it ended in the log, None where it still waited; `node_id` where it was granted.
    """

    number: int
    at_ms: int
    lane: str
    priority: Class
    environment: str
    wait_ms: int | None = None
    gave_up_ms: int | None = None
    work_ms: int | None = None
    key: str = ""
    drain_ms: int = 0
    counted: bool = True
    end: End | None = None
    node_id: str = ""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What became of a node: others' bytes, own models that are there and that others use, what
    models were seen to weigh, and health; or an operator's word.
    """

    at_ms: int
    node_id: str
    kind: Literal["seen", "health", "cordon", "uncordon"]
    foreign: int = 0
    own: tuple[tuple[str, int], ...] = ()
    busy: tuple[tuple[str, int], ...] = ()
    weights: tuple[tuple[str, int], ...] = ()
    healthy: bool = True
    until_ms: int | None = None


@dataclass(slots=True)
class Tally:
    """What happened, or would have: the figures that are compared."""

    requests: int = 0
    granted: int = 0
    denied: Counter[str] = field(default_factory=Counter)
    gave_up: int = 0
    waits_ms: list[int] = field(default_factory=list)
    loads: int = 0
    unloads: int = 0
    peak_leased: dict[str, int] = field(default_factory=dict)
    peak_slots: dict[str, int] = field(default_factory=dict)

    def granted_on(self, node_id: str, leased: int, used: int) -> None:
        """One more lease there."""
        self.peak_leased[node_id] = max(self.peak_leased.get(node_id, 0), leased)
        self.peak_slots[node_id] = max(self.peak_slots.get(node_id, 0), used)


@dataclass(slots=True)
class Agreement:
    """How far a run agrees with the log: `compared` are the requests whose end the log tells."""

    compared: int = 0
    ended_alike: int = 0
    granted_in_both: int = 0
    on_the_same_node: int = 0

    def compare(self, arrival: Arrival, end: End, node_id: str = "") -> None:
        """One request that the run brought to its end."""
        if not arrival.counted or arrival.end is None:
            return
        self.compared += 1
        self.ended_alike += end == arrival.end
        if end == arrival.end == "granted":
            self.granted_in_both += 1
            self.on_the_same_node += node_id == arrival.node_id


@dataclass(slots=True)
class Recorded:
    """A range of the log: requests by their arrival, changes of nodes and fleets, its figures."""

    arrivals: list[Arrival] = field(default_factory=list)
    changes: list[NodeChange] = field(default_factory=list)
    fleets: list[tuple[int, Fleet]] = field(default_factory=list)
    load_ms: dict[tuple[str, str], int] = field(default_factory=dict)
    """By node and comparison key; "" for any node."""
    tally: Tally = field(default_factory=Tally)
    begins_ms: int = 0
    ends_ms: int = 0

    def load_ms_on(self, node_id: str, key: str) -> int:
        """How long the model takes to load there: as there, else as elsewhere, else not known."""
        return self.load_ms.get((node_id, key), self.load_ms.get(("", key), 0))

    def fill_in(self) -> None:
        """What requests did not tell: the longest limit, the median work of the lane or of all."""
        longest = self.longest_wait_ms()
        by_lane: defaultdict[str, list[int]] = defaultdict(list)
        for one in self.arrivals:
            if one.work_ms is not None:
                by_lane[one.lane].append(one.work_ms)
        every = [ms for known in by_lane.values() for ms in known]
        typical = round(statistics.median(every or [0]))
        medians = {lane: round(statistics.median(known)) for lane, known in by_lane.items()}
        for one in self.arrivals:
            if one.wait_ms is None:
                one.wait_ms = longest
            if one.work_ms is None:
                one.work_ms = medians.get(one.lane, typical)

    def longest_wait_ms(self) -> int:
        """The longest limit that a request told."""
        told = [a.wait_ms for a in self.arrivals if a.wait_ms]
        return max(told, default=WAIT_MS_WITHOUT_ANY)
