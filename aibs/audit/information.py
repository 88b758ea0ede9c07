"""What is worth knowing and decides no gate. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.audit.document import Information
from aibs.audit.wording import age, gb, names, printable, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Literal

    from aibs.audit.facts import Configured, NodeFinding, PoolFacts, ServerSettings

HEARTBEATS_IN_TTL = 10
"""An active lease's TTL over this many heartbeats keeps a dead holder's memory for long."""

UNEXPLAINED_BYTES = 2 * 10**9
UNEXPLAINED_PERCENT = 5
"""GPU memory that no resident model explains is told above either of these."""


def inform(
    configured: Configured,
    pool: PoolFacts | None,
    findings: Sequence[NodeFinding],
    *,
    mismatch: Sequence[str] = (),
) -> list[Information]:
    """Everything, the pool first. `mismatch` says how the declared fleet differs from ours."""
    told = []
    if pool is not None and pool.reachable:
        told += _owner(pool)
        told += _pool_condition(pool)
        told += _log(pool)
        told += _last_proof(pool)
        told += _mismatch(pool, mismatch)
        told += _server_settings(pool.settings)
        told += _other_pools(pool, findings)
    told += _lease_ttl(configured)
    told += _same_server(findings)
    for finding in findings:
        told += _unaccounted(finding)
        told += _unexplained(finding)
    return told


def _tell(name: str, level: Literal["info", "warning"], detail: str) -> Information:
    return Information(name=name, level=level, detail=detail)


def _owner(pool: PoolFacts) -> list[Information]:
    term = pool.term
    if term is None or not term.alive(pool.now_ms):
        return []
    since = ""
    if term.elected_at_ms is not None:
        since = f", elected {age(max(0, pool.now_ms - term.elected_at_ms))} ago"
    detail = f"{printable(term.owner or '')} owns the term with fence {term.fence}{since}."
    return [_tell("owner", "info", detail)]


def _log(pool: PoolFacts) -> list[Information]:
    """The log and the live state do not agree, or the log cannot be read."""
    log = pool.log
    if log is None:
        return []
    if log.error is not None:
        detail = f"The log cannot be folded, and the live state stands in: {printable(log.error)}"
        return [_tell("log", "warning", detail)]
    if not log.differences:
        return []
    more = f" (and {len(log.differences) - 1} more)" if len(log.differences) > 1 else ""
    detail = f"The live state is not what the log tells: {printable(log.differences[0])}{more}"
    return [_tell("log", "warning", f"{detail} `aibs replay --verify` lists them.")]


def _last_proof(pool: PoolFacts) -> list[Information]:
    """What `aibs prove-takeover` showed last, with these nodes or with others."""
    proof = pool.last_proof
    if proof is None:
        return []
    try:
        ago = age(max(0, pool.now_ms - int(proof["at_ms"])))
        result = "passed" if proof["passed"] else "failed"
        detail = (
            f"The last takeover proof {result} {ago} ago ({printable(str(proof['variant']))}, "
            f"{int(proof['runs'])} runs, handover gate {printable(str(proof['handover_gate']))}), "
            f"with fence {proof['fence']}."
        )
        same = pool.fleet is None or pool.fleet.fingerprint == proof["fingerprint"]
    except (KeyError, TypeError, ValueError):
        return []
    other = "" if same else " It was of another fleet."
    return [_tell("last_proof", "info" if proof["passed"] else "warning", detail + other)]


def _pool_condition(pool: PoolFacts) -> list[Information]:
    if pool.server_restarted:
        return [
            _tell(
                "pool_suspect",
                "warning",
                "The server is another process than the one that the pool trusts (restart, "
                "failover or restore); the next write makes the pool suspect.",
            )
        ]
    if pool.pool is None or pool.pool.state == "open":
        return []
    recover_at_ms = pool.pool.recover_at_ms or 0
    left = f" for {age(recover_at_ms - pool.now_ms)}" if recover_at_ms > pool.now_ms else ""
    return [
        _tell(
            "pool_suspect",
            "warning",
            f"The pool is {printable(pool.pool.state)}: it may have lost writes, and nothing is "
            f"granted{left} until holders and nodes were heard again.",
        )
    ]


def _mismatch(pool: PoolFacts, mismatch: Sequence[str]) -> list[Information]:
    if not mismatch or pool.fleet is None:
        return []
    changes = names(printable(clause) for clause in mismatch)
    return [
        _tell(
            "fleet_mismatch",
            "warning",
            f"From the declared fleet (revision {pool.fleet.revision}) to these settings: "
            f"{changes}.",
        )
    ]


def _server_settings(settings: ServerSettings) -> list[Information]:
    told = []
    policy = settings.maxmemory_policy
    if policy is None:
        told.append(_unsaid("maxmemory_policy", "maxmemory-policy"))
    elif policy != "noeviction":
        limited = settings.maxmemory_bytes != 0
        told.append(
            _tell(
                "maxmemory_policy",
                "warning" if limited else "info",
                f"maxmemory-policy is {printable(policy)}: a full server would drop keys of the "
                "pool, and leases with them"
                + (". Set it to noeviction." if limited else "; no maxmemory is set now."),
            )
        )
    if settings.appendonly is None:
        told.append(_unsaid("appendonly", "appendonly"))
    elif not settings.appendonly:
        told.append(
            _tell(
                "appendonly",
                "warning",
                "appendonly is no: a restart of the server forgets leases and makes the pool "
                "suspect. Set it to yes.",
            )
        )
    elif settings.appendfsync is None:
        told.append(_unsaid("appendfsync", "appendfsync"))
    elif settings.appendfsync == "no":
        told.append(
            _tell(
                "appendfsync",
                "warning",
                "appendfsync is no: a power loss may forget the leases of half a minute. Set it "
                "to everysec or always.",
            )
        )
    return told


def _unsaid(name: str, setting: str) -> Information:
    return _tell(name, "info", f"{setting} is not known: the server does not let us read it.")


def _other_pools(pool: PoolFacts, findings: Iterable[NodeFinding]) -> list[Information]:
    told = []
    ours = {finding.node.base_url: finding.node.node_id for finding in findings}
    for other in pool.other_pools:
        shared = [ours[url] for url in other.urls if url in ours]
        if shared:
            alive = f"owned by {printable(other.owner)}" if other.owner else "without an owner now"
            told.append(
                _tell(
                    "shared_node",
                    "warning",
                    f"Pool {other.namespace} on the same server ({alive}) also declares the URL "
                    f"of {names(shared)}: two schedulers would give out the same memory.",
                )
            )
    if not pool.other_pools_complete:
        told.append(
            _tell(
                "other_pools",
                "info",
                "Not every other pool on the server could be looked at: it holds too many keys, or "
                "this user may not read theirs.",
            )
        )
    return told


def _lease_ttl(configured: Configured) -> list[Information]:
    timing = configured.timing
    if timing.active_lease_ttl_ms <= HEARTBEATS_IN_TTL * timing.heartbeat_ms:
        return []
    return [
        _tell(
            "active_lease_ttl",
            "warning",
            f"The active lease TTL of {seconds(timing.active_lease_ttl_ms)} is over "
            f"{HEARTBEATS_IN_TTL} heartbeats of {seconds(timing.heartbeat_ms)}: a holder that dies "
            "keeps its memory for that long.",
        )
    ]


Fingerprint = tuple[tuple[str, str, int | None, int | None, str], ...]


def _answer_of(finding: NodeFinding) -> Fingerprint | None:
    """What two ids of one server have in common: its models and when each expires, as text.

    Expiry is given to the nanosecond, so that two servers do not agree on it by chance.
    """
    models = finding.residency.models if finding.residency else ()
    entries = [entry.model for entry in models]
    if not entries or any(not model.expires_at or not model.readable for model in entries):
        return None
    return tuple(
        sorted(
            (
                model.key or model.name,
                model.digest or "",
                model.size_bytes,
                model.size_vram_bytes,
                model.expires_at or "",
            )
            for model in entries
        )
    )


def _same_server(findings: Iterable[NodeFinding]) -> list[Information]:
    alike: dict[Fingerprint, list[str]] = {}
    for finding in findings:
        answer = _answer_of(finding)
        if answer is not None:
            alike.setdefault(answer, []).append(finding.node.node_id)
    return [
        _tell(
            "one_server_suspected",
            "warning",
            f"{names(node_ids)} answer alike to the nanosecond: they seem to be one server, whose "
            "memory would be given out more than once.",
        )
        for node_ids in alike.values()
        if len(node_ids) > 1
    ]


def _unaccounted(finding: NodeFinding) -> list[Information]:
    if finding.residency is None or not finding.residency.unaccounted:
        return []
    return [
        _tell(
            "unaccounted_resident",
            "warning",
            f"{finding.node.node_id} lists a model whose memory is not known: nothing is placed "
            "there until that clears.",
        )
    ]


def unexplained_bytes(finding: NodeFinding) -> int | None:
    """GPU memory in use that no resident model explains; None where either side is not known."""
    host, residency = finding.host, finding.residency
    if host is None or host.gpu_used_bytes is None or residency is None or residency.unaccounted:
        return None
    resident = (residency.own_bytes or 0) + (residency.foreign_bytes or 0)
    return host.gpu_used_bytes - resident


def _unexplained(finding: NodeFinding) -> list[Information]:
    surplus, host = unexplained_bytes(finding), finding.host
    if surplus is None or host is None:
        return []
    share = host.gpu_total_bytes is not None and (
        surplus * 100 > host.gpu_total_bytes * UNEXPLAINED_PERCENT
    )
    if surplus <= UNEXPLAINED_BYTES and not share:
        return []
    return [
        _tell(
            "unexplained_memory",
            "warning",
            f"{finding.node.node_id} has {gb(surplus)} of GPU memory in use that no resident model "
            "explains: another program, or a model that Ollama lost track of.",
        )
    ]
