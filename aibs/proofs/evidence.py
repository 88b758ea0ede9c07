"""What a run left in its namespace, and what it shows. Pure; all times are the server's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aibs.eventstore.events import Event
    from aibs.eventstore.state import Stamp

WRITES_UNDER_A_FENCE = frozenset(
    {"FleetDeclared", "ResidencyObserved", "NodeHealthChanged", "SnapshotTaken", "LogTrimmed"}
)
"""Events that only the living owner may append."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One poll as the sample stream has it."""

    node_id: str
    at_ms: int
    elapsed_ms: int
    fence: int
    good: bool
    healthy: bool

    @property
    def begun_ms(self) -> int:
        """When the poll began."""
        return self.at_ms - self.elapsed_ms


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything that a run is judged by. `stamps` are the newest, read after the last sample;
    `killed_ms` is just before the signal was sent; `attempts` are the words that the server
    answered to the proof's own writes with the deposed owner's fence, as `prover`.
    """

    events: Sequence[Event]
    samples: Sequence[Sample]
    stamps: Mapping[str, Stamp]
    nodes: Sequence[str]
    killed_ms: int | None = None
    attempts: Sequence[str] = ()
    prover: str = ""


@dataclass(frozen=True, slots=True)
class Term:
    """One term: `ended` is how, None while it runs."""

    owner: str
    fence: int
    elected_ms: int
    seq: int
    deadline_ms: int | None = None
    ended: str | None = None
    ended_ms: int | None = None


@dataclass(slots=True)
class Takeover:
    """What happened, told by the log."""

    terms: list[Term] = field(default_factory=list)
    before: Term | None = None
    after: Term | None = None
    losses_before: int = 0
    last_before: dict[str, int] = field(default_factory=dict)
    first_after: dict[str, Sample] = field(default_factory=dict)
    rejected: int = 0
    accepted: list[str] = field(default_factory=list)
    untrue_stamps: list[str] = field(default_factory=list)

    @property
    def all_fresh_ms(self) -> int | None:
        """When the last node had its first good sample under the new fence."""
        return max((one.at_ms for one in self.first_after.values()), default=None)


def takeover_of(recorded: Recorded) -> Takeover:
    """Read the run's events and samples."""
    told = Takeover(terms=_terms(recorded.events))
    killed_ms = recorded.killed_ms
    if killed_ms is None:
        told.before = told.terms[-1] if told.terms else None
        return told
    early = [term for term in told.terms if term.elected_ms <= killed_ms]
    later = [term for term in told.terms if term.elected_ms > killed_ms]
    told.before = early[-1] if early else None
    told.after = later[0] if later else None
    told.losses_before = max(0, len(early) - 1)
    _observations(told, recorded, killed_ms)
    _writes(told, recorded)
    _stamps(told, recorded)
    return told


def _terms(events: Sequence[Event]) -> list[Term]:
    terms: list[Term] = []
    for event in events:
        if event.type == "OwnerElected":
            data = event.data
            terms.append(Term(data["owner"], data["fence"], event.at_ms, event.seq))
        elif event.type in ("OwnerExpired", "OwnerResigned"):
            for place, term in enumerate(terms):
                if term.fence == event.data["fence"] and term.ended is None:
                    terms[place] = Term(
                        term.owner,
                        term.fence,
                        term.elected_ms,
                        term.seq,
                        event.data["deadline_ms"],
                        event.data["how"],
                        event.at_ms,
                    )
    return terms


def _observations(told: Takeover, recorded: Recorded, killed_ms: int) -> None:
    for sample in recorded.samples:
        if not (sample.good and sample.healthy and sample.node_id in recorded.nodes):
            continue
        if told.before and sample.fence == told.before.fence and sample.at_ms <= killed_ms:
            told.last_before[sample.node_id] = sample.begun_ms
        elif told.after and sample.fence == told.after.fence:
            told.first_after.setdefault(sample.node_id, sample)


def _writes(told: Takeover, recorded: Recorded) -> None:
    """Writes of the deposed owner since its successor's election: refused ones, and others."""
    if told.before is None or told.after is None:
        return
    owner, fence = told.before.owner, told.before.fence
    told.rejected = sum(word == "fenced" for word in recorded.attempts)
    told.accepted += [
        f"a write with fence {fence} was answered {word}"
        for word in recorded.attempts
        if word != "fenced"
    ]
    for event in recorded.events:
        if event.seq <= told.after.seq:
            continue
        if event.type == "FencedWriteRejected" and event.data["owner"] == owner:
            # Its own, beside those that the proof made under its name.
            told.rejected += event.actor != recorded.prover
        elif event.type in WRITES_UNDER_A_FENCE and event.fence == fence:
            told.accepted.append(f"event {event.seq} {event.type} has fence {fence}")
    told.accepted += [
        f"a sample of {sample.node_id} has fence {fence}, after the election of its successor"
        for sample in recorded.samples
        if sample.fence == fence and sample.at_ms > told.after.elected_ms
    ]


def _stamps(told: Takeover, recorded: Recorded) -> None:
    """A stamp says when its poll began: no sample of that beginning, and it hides its age."""
    begun = {(one.node_id, one.begun_ms) for one in recorded.samples if one.good}
    for node_id in recorded.nodes:
        stamp = recorded.stamps.get(node_id)
        if stamp is None or (node_id, stamp.observed_at_ms) not in begun:
            told.untrue_stamps.append(node_id)
