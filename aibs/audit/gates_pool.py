"""Gates on the pool: its server, the declared fleet, the elected monitor and its stamps. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.audit.verdict import GATES_ABOVE, PREFIX, failed, passed, unknown
from aibs.audit.wording import age, names, plural, printable

if TYPE_CHECKING:
    from aibs.audit.document import Gate
    from aibs.audit.facts import Evidence, PoolFacts
    from aibs.eventstore.state import Stamp
    from aibs.fleet import Node


def backend_valkey(evidence: Evidence) -> Gate:
    """Both backends are Valkey."""
    configured = evidence.configured
    backends = {
        "AIBS_COORDINATION_BACKEND": configured.coordination_backend,
        f"{PREFIX}BACKEND": configured.cluster_backend,
    }
    others = [name for name, value in backends.items() if value != "valkey"]
    detail = ", ".join(f"{name}={value}" for name, value in backends.items())
    if others:
        return failed(
            "backend_valkey",
            f"{detail}: only Valkey is shared by every process that sends requests",
            f"Set {names(others)} to valkey.",
        )
    return passed("backend_valkey", detail)


def embedded_single_host(evidence: Evidence) -> Gate:
    """An embedded pool is used by one machine alone."""
    name = "embedded_single_host"
    if not evidence.configured.embedded:
        return passed(name, "the pool is on a server that every host can share")
    if evidence.configured.single_host:
        return passed(name, f"the pool is embedded and {PREFIX}SINGLE_HOST=true")
    return failed(
        name,
        "the pool is embedded: a second host would schedule the same boxes by a pool of its own",
        f"Set {PREFIX}VALKEY_URL to a shared Valkey, or {PREFIX}SINGLE_HOST=true where one "
        "machine runs everything.",
    )


def valkey_reachable(evidence: Evidence) -> Gate:
    """The server answers."""
    pool = evidence.pool
    if pool is not None and pool.reachable:
        return passed("valkey_reachable", f"{pool.url} answers")
    fix = f"Start Valkey, or correct {PREFIX}VALKEY_URL (empty: AIBS_VALKEY_URL)."
    if evidence.configured.embedded:
        fix = "Start aibs monitor, which starts the embedded server, or name a Valkey's URL."
    if pool is None:
        return unknown("valkey_reachable", _why_no_pool(evidence), fix)
    return failed("valkey_reachable", _why_no_pool(evidence), fix)


def _why_no_pool(evidence: Evidence) -> str:
    pool = evidence.pool
    if pool is None:
        return f"the {evidence.configured.coordination_backend} backend has no server to ask"
    return pool.error or ""


def valkey_version(evidence: Evidence) -> Gate:
    """The server is Valkey 8 or newer."""
    name, fix = "valkey_version", "Run Valkey 8 or newer: the scripts rely on it."
    pool = evidence.pool
    if pool is None or not pool.reachable:
        return unknown(name, "the server was not reached", fix)
    found = f"{pool.server or 'unnamed server'} {pool.version or 'of unknown version'}"
    return passed(name, found) if pool.supported else failed(name, f"found {found}", fix)


def fleet_declared(evidence: Evidence) -> Gate:
    """The declared fleet is that of these settings."""
    name, pool, ours = "fleet_declared", evidence.pool, evidence.fleet
    start = "Start aibs monitor: its owner declares the fleet."
    if pool is None or not pool.reachable or not pool.supported:
        return unknown(name, "the pool was not read", GATES_ABOVE)
    if pool.fleet is None:
        return failed(name, "no fleet was declared in this pool", start)
    if pool.fleet.fingerprint == ours.fingerprint:
        return passed(name, f"revision {pool.fleet.revision}, {ours.fingerprint[:12]}")
    return failed(
        name,
        f"fleet mismatch: declared is revision {pool.fleet.revision} "
        f"({pool.fleet.fingerprint[:12]}), these settings say revision {ours.revision} "
        f"({ours.fingerprint[:12]})",
        f"Where these settings are right, set {PREFIX}FLEET_REVISION above "
        f"{pool.fleet.revision} and restart the monitors; else take over the declared fleet.",
    )


def monitor_fresh(evidence: Evidence) -> Gate:
    """A monitor holds the term, and every node has evidence for placement."""
    name, pool = "monitor_fresh", evidence.pool
    start = "Start aibs monitor, and a second one on another machine."
    if pool is None or not pool.reachable or not pool.supported:
        return unknown(name, "the pool was not read", GATES_ABOVE)
    if pool.pool is None:
        return failed(name, "no monitor has run in this pool", start)
    if pool.server_restarted:
        return failed(name, "the server was restarted and no monitor has written since", start)
    if pool.term is None or not pool.term.alive(pool.now_ms):
        ended = f" (the last one: {pool.term.ended})" if pool.term and pool.term.ended else ""
        return failed(name, f"no monitor holds the term{ended}", start)
    if not evidence.fleet.nodes:
        return unknown(name, "no node is configured", GATES_ABOVE)
    stale = [
        f"{node.node_id} {why}" for node in evidence.fleet.nodes if (why := doubt(node, evidence))
    ]
    if stale:
        return failed(
            name,
            names(stale),
            "Wait two poll intervals; then look at the node and the monitor's log.",
        )
    return passed(
        name, f"fence {pool.term.fence}, {plural(len(evidence.fleet.nodes), 'node')} fresh"
    )


def doubt(node: Node, evidence: Evidence) -> str:
    """Why a node's stamp is no evidence, as a clause after the node's name; empty when it is."""
    pool = evidence.pool
    stamp = pool.stamps.get(node.node_id) if pool else None
    if pool is None or pool.pool is None or stamp is None:
        return "was never observed"
    return _doubt(stamp, node, evidence, pool)


def _doubt(stamp: Stamp, node: Node, evidence: Evidence, pool: PoolFacts) -> str:
    age_ms = stamp.age_ms(pool.now_ms)
    staleness_ms = evidence.configured.timing.staleness_ms
    if age_ms is None:
        return f"was never observed ({stamp.reason or 'no good poll yet'})"
    if stamp.fingerprint != evidence.fleet.fingerprint:
        return "was observed for another fleet"
    if stamp.base_url != node.base_url:
        return "was observed under another URL"
    if age_ms < 0:
        return f"has a stamp {age(-age_ms)} in the future"
    if age_ms > staleness_ms:
        return f"was last observed {age(age_ms)} ago"
    assert pool.pool is not None
    # Older only: the pool was read first, and may have moved on since.
    if stamp.epoch < pool.pool.epoch:
        return "was not observed since the pool became suspect"
    if not stamp.healthy:
        return f"is unhealthy ({printable(stamp.reason) or 'not judged yet'})"
    return ""
