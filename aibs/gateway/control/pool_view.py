"""What the pool says of itself at one moment, read in one step: small parts only, no lease, no log.

It answers whether a request could be placed at all, and gives the gauges whose values no event
tells: how old each stamp is, how long the term lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aibs.codec import loads
from aibs.eventstore.reading import answered
from aibs.eventstore.state import pool_of, stamp_of, term_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aibs.eventstore.commands import Commands
    from aibs.eventstore.keys import Keys
    from aibs.eventstore.state import PoolState, Stamp, TermState

_FLEET_FIELDS: Final = ("fingerprint", "event_id")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why nothing could be placed: a code of the one list, and a sentence."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class DeclaredFleet:
    """The declared fleet's nodes, as far as they are looked at here."""

    event_id: str = ""
    fingerprint: str = ""
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolView:
    """The small parts. `now_ms` is the server's time, `read_at_ms` this machine's boot time."""

    now_ms: int
    read_at_ms: int
    pool: PoolState | None
    term: TermState | None
    fleet: DeclaredFleet
    stamps: Mapping[str, Stamp]
    cordons: Mapping[str, Mapping[str, Any]]
    trips: Mapping[str, Mapping[str, Any]]
    log_length: int

    def server_ms(self, boottime_ms: int) -> int:
        """The server's time now, as far as this machine can tell."""
        return self.now_ms + boottime_ms - self.read_at_ms

    def cordoned(self, node_id: str, now_ms: int) -> bool:
        """Whether an operator keeps the node closed."""
        mark = self.cordons.get(node_id)
        return mark is not None and (mark["until_ms"] is None or now_ms < mark["until_ms"])

    def tripped(self, node_id: str, now_ms: int) -> bool:
        """Whether failures keep the node closed."""
        mark = self.trips.get(node_id)
        return mark is not None and now_ms < mark["reopen_at_ms"]

    def closed_because(self, node_id: str, now_ms: int, staleness_ms: int) -> str | None:
        """The reason code of what keeps every new lease from a node; None where nothing does.

        A node that is full or loads a model is open: waiting helps there.
        """
        stamp = self.stamps.get(node_id)
        if self.cordoned(node_id, now_ms):
            return "node_cordoned"
        if self.tripped(node_id, now_ms):
            return "node_tripped"
        if stamp is None or not stamp.observed_at_ms:
            return "stale_residency"
        if stamp.healthy is False:
            return "node_unhealthy"
        if not stamp.fresh(now_ms, staleness_ms=staleness_ms, fingerprint=self.fleet.fingerprint):
            return "stale_residency"
        if self.pool is not None and stamp.epoch != self.pool.epoch:
            return "pool_recovering"
        return "unaccounted_resident" if stamp.unaccounted else None

    def hindrances(self, now_ms: int, staleness_ms: int) -> Iterator[Reason]:
        """Why no request could be placed on any node; none where one could."""
        if self.pool is None:
            yield Reason("stale_residency", "There is no pool yet: no monitor has begun.")
            return
        if self.pool.state != "open":
            yield Reason(
                "pool_recovering",
                "The coordination server restarted, and its leases are being confirmed.",
            )
        if not self.fleet.nodes:
            yield Reason("stale_residency", "No fleet is declared yet: no monitor has begun.")
            return
        closed: dict[str, list[str]] = {}
        for node_id in self.fleet.nodes:
            why = self.closed_because(node_id, now_ms, staleness_ms)
            if why is None:
                return
            closed.setdefault(why, []).append(node_id)
        for why, node_ids in sorted(closed.items()):
            yield Reason(why, _WORDS[why].format(_named(node_ids)))
        if self.term is None or not self.term.alive(now_ms):
            yield Reason("no_owner", "No monitor holds the term: nobody observes the nodes.")


_WORDS: Final = {
    "node_cordoned": "Cordoned by an operator: {}.",
    "node_tripped": "Closed after failures: {}.",
    "stale_residency": "Not seen recently: {}.",
    "node_unhealthy": "Not answering: {}.",
    "pool_recovering": "Not seen since the coordination server came back: {}.",
    "unaccounted_resident": "Holding something whose size cannot be read: {}.",
}

NAMED_MAX: Final = 8


def _named(node_ids: list[str]) -> str:
    shown = ", ".join(node_ids[:NAMED_MAX])
    rest = len(node_ids) - NAMED_MAX
    return f"{shown} and {rest} more" if rest > 0 else shown


async def read_view(
    client: Commands, keys: Keys, known: DeclaredFleet, boottime_ms: int
) -> PoolView:
    """Read it. `known` saves the reading of a fleet that is the same. Raises
    CoordinationUnavailable.
    """
    pipeline = client.pipeline(transaction=True)
    for name in ("pool", "owner", "stamps", "cordons", "trips"):
        pipeline.hgetall(keys.key(name))
    pipeline.hmget(keys.key("fleet"), _FLEET_FIELDS)
    pipeline.xlen(keys.key("log"))
    pipeline.time()
    with answered("the pool"):
        *hashes, declared, length, (seconds, micros) = await pipeline.execute()
    pool, owner, stamps, cordons, trips = (text_of(one) for one in hashes)
    fingerprint, event_id = (b"" if one is None else one for one in declared)
    fleet = known
    if event_id.decode() != known.event_id:
        fleet = DeclaredFleet(
            event_id.decode(), fingerprint.decode(), await _declared_nodes(client, keys)
        )
    return PoolView(
        now_ms=int(seconds) * 1000 + int(micros) // 1000,
        read_at_ms=boottime_ms,
        pool=pool_of(pool),
        term=term_of(owner),
        fleet=fleet,
        stamps={node_id: stamp_of(loads(text)) for node_id, text in stamps.items()},
        cordons={node_id: loads(text) for node_id, text in cordons.items()},
        trips={node_id: loads(text) for node_id, text in trips.items()},
        log_length=int(length),
    )


async def _declared_nodes(client: Commands, keys: Keys) -> dict[str, dict[str, Any]]:
    with answered("the declared fleet"):
        text = await client.hget(keys.key("fleet"), "document")
    return {} if text is None else {node["node_id"]: node for node in loads(text)["nodes"]}
