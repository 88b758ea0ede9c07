"""What the settings must keep together. Pure; each rule names the variables that it binds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.errors import Fault
from aibs.eventstore.endpoint import EMBEDDED
from aibs.settings.fields import variable
from aibs.settings.parsing import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aibs.settings.fields import Variables

MONITOR = "model_cluster_residency_monitor_"
POLL_INTERVAL = f"{MONITOR}poll_interval_seconds"
POLL_TIMEOUT = f"{MONITOR}poll_timeout_seconds"
LEASE_TTL = f"{MONITOR}lease_ttl_seconds"
STANDBY_RETRY = f"{MONITOR}standby_retry_seconds"
STALENESS = "model_cluster_max_residency_staleness_ms"
HISTORY_TTL = "model_cluster_health_history_ttl_seconds"
HISTORY_WINDOW = "model_cluster_health_history_window_seconds"
HEARTBEAT = "model_cluster_heartbeat_interval_seconds"
ACTIVE_TTL = "model_cluster_active_lease_ttl_seconds"
ENABLED = "model_cluster_enabled"
IDS = "model_cluster_node_ids"
URLS = "model_cluster_node_urls"
VRAM = "model_cluster_node_vram_gb"
SLOTS = "model_cluster_node_max_parallel_requests"
TELEMETRY = "model_cluster_node_host_telemetry_urls"
MEMORY = "model_cluster_node_memory"


@dataclass(frozen=True, slots=True)
class Rule:
    """`check` yields what is wrong; it is asked only where all of `fields` could be read."""

    fields: tuple[str, ...]
    check: Callable[[Variables], Iterator[Fault]]


def broken_rules(values: Variables, unreadable: frozenset[str]) -> list[Fault]:
    """Every fault that no single variable has. `unreadable` fields hold only their defaults."""
    return [
        fault
        for rule in RULES
        if not unreadable.intersection(rule.fields)
        for fault in rule.check(values)
    ]


def takeover_bound_ms(values: Variables) -> int:
    """How long after an owner's death every node that answers is fresh again, at most."""
    return (
        ms(values.model_cluster_residency_monitor_poll_interval_seconds)
        + ms(values.model_cluster_residency_monitor_lease_ttl_seconds)
        + ms(values.model_cluster_residency_monitor_standby_retry_seconds)
        + 2 * ms(values.model_cluster_residency_monitor_poll_timeout_seconds)
    )


def ms(duration_s: float) -> int:
    """Seconds as whole milliseconds."""
    return round(duration_s * 1000)


def plain(duration_s: float) -> str:
    """`3`, `0.5`: seconds as an operator writes them."""
    return f"{duration_s:.12g}"


def _fault(field: str, problem: str, mend: str) -> Fault:
    return Fault(variable(field), problem, mend)


def _lease_ttl(values: Variables) -> Iterator[Fault]:
    interval = values.model_cluster_residency_monitor_poll_interval_seconds
    timeout = values.model_cluster_residency_monitor_poll_timeout_seconds
    ttl = values.model_cluster_residency_monitor_lease_ttl_seconds
    if ms(ttl) <= ms(interval) + ms(timeout):
        yield _fault(
            LEASE_TTL,
            f"is {plain(ttl)} s, not longer than poll interval + poll timeout = {plain(interval)} "
            f"+ {plain(timeout)} = {plain(interval + timeout)} s",
            f"Raise it above {plain(interval + timeout)}, or lower "
            f"{variable(POLL_INTERVAL)} or {variable(POLL_TIMEOUT)}.",
        )


def _takeover(values: Variables) -> Iterator[Fault]:
    staleness = values.model_cluster_max_residency_staleness_ms
    bound = takeover_bound_ms(values)
    if bound > staleness:
        interval = values.model_cluster_residency_monitor_poll_interval_seconds
        ttl = values.model_cluster_residency_monitor_lease_ttl_seconds
        retry = values.model_cluster_residency_monitor_standby_retry_seconds
        timeout = values.model_cluster_residency_monitor_poll_timeout_seconds
        yield _fault(
            STALENESS,
            f"is {staleness} ms, shorter than a takeover may last: poll interval + lease TTL + "
            f"standby retry + 2 x poll timeout = {plain(interval)} + {plain(ttl)} + "
            f"{plain(retry)} + 2 x {plain(timeout)} = {plain(bound / 1000)} s",
            f"Raise it to {bound} or more, or shorten one of the others ({variable(MONITOR)}...).",
        )


def _history(values: Variables) -> Iterator[Fault]:
    ttl = values.model_cluster_health_history_ttl_seconds
    window = values.model_cluster_health_history_window_seconds
    if ms(ttl) < ms(window):
        yield _fault(
            HISTORY_TTL,
            f"is {plain(ttl)} s, shorter than the window of {plain(window)} s that is shown",
            f"Raise it to {plain(window)} or more, or lower {variable(HISTORY_WINDOW)}.",
        )


def _heartbeat(values: Variables) -> Iterator[Fault]:
    heartbeat = values.model_cluster_heartbeat_interval_seconds
    ttl = values.model_cluster_active_lease_ttl_seconds
    if 3 * ms(heartbeat) >= ms(ttl):
        yield _fault(
            HEARTBEAT,
            f"is {plain(heartbeat)} s, not below a third of the active lease TTL of "
            f"{plain(ttl)} s: two lost heartbeats would lose a lease",
            f"Lower it below {plain(ttl / 3)}, or raise {variable(ACTIVE_TTL)}.",
        )


def _node_urls(values: Variables) -> Iterator[Fault]:
    ids, urls = values.model_cluster_node_ids, values.model_cluster_node_urls
    if len(ids) != len(urls):
        yield _lengths(URLS, len(urls), len(ids))
        return
    first: dict[str, str] = {}
    for node_id, url in zip(ids, urls, strict=True):
        known = first.setdefault(url, node_id)
        if known != node_id:
            yield _fault(
                URLS,
                f"gives {known} and {node_id} one URL, {url}: one server's memory would count "
                "twice",
                "Give each node its own server, or leave one of them out.",
            )


def _lengths(field: str, found: int, wanted: int) -> Fault:
    items = "1 item" if found == 1 else f"{found} items"
    nodes = "1 node" if wanted == 1 else f"{wanted} nodes"
    return _fault(
        field,
        f"has {items} where {variable(IDS)} names {nodes}",
        "Give one for each node, in the same order.",
    )


def _per_node(field: str) -> Callable[[Variables], Iterator[Fault]]:
    def check(values: Variables) -> Iterator[Fault]:
        found, wanted = len(getattr(values, field)), len(values.model_cluster_node_ids)
        # None at all means unknown: the audit says so, and nothing is placed there.
        if found not in (0, wanted):
            yield _lengths(field, found, wanted)

    return check


def _budgets(values: Variables) -> Iterator[Fault]:
    if not (values.model_cluster_enabled and values.model_cluster_node_ids):
        return
    for field, what in ((VRAM, "a memory budget in GB"), (SLOTS, "a number of requests at a time")):
        if not getattr(values, field):
            yield _fault(
                field,
                f"is empty while {variable(ENABLED)} is true",
                f"Give {what} for each node.",
            )


def _affinity(values: Variables) -> Iterator[Fault]:
    for role, node_ids in values.model_cluster_role_affinity_json.items():
        for node_id in node_ids:
            if node_id not in values.model_cluster_node_ids:
                yield _fault(
                    "model_cluster_role_affinity_json",
                    f"ties role '{role}' to {shown(node_id)}, which is no node",
                    f"Name nodes of {variable(IDS)}: "
                    f"{', '.join(values.model_cluster_node_ids) or 'it is empty'}.",
                )


def _backend(values: Variables) -> Iterator[Fault]:
    if not values.model_cluster_enabled:
        return
    for field in ("coordination_backend", "model_cluster_backend"):
        if getattr(values, field) == "memory":
            yield _fault(
                field,
                f"is memory while {variable(ENABLED)} is true: memory is local to one process "
                "and cannot enforce global model capacity",
                f"Set it to valkey, or {variable(ENABLED)} to false.",
            )


def _embedded(values: Variables) -> Iterator[Fault]:
    memory = "memory" in (values.coordination_backend, values.model_cluster_backend)
    if memory or not values.model_cluster_enabled or values.model_cluster_single_host:
        return
    field = "model_cluster_valkey_url" if values.model_cluster_valkey_url else "valkey_url"
    if getattr(values, field) == EMBEDDED:
        yield _fault(
            field,
            f"is embedded while {variable(ENABLED)} is true: two hosts with an embedded server "
            "each would be two schedulers of the same nodes",
            "Give the URL of a shared Valkey 8 or newer, or set "
            f"{variable('model_cluster_single_host')} to true where one machine runs everything.",
        )


RULES: tuple[Rule, ...] = (
    Rule((LEASE_TTL, POLL_INTERVAL, POLL_TIMEOUT), _lease_ttl),
    Rule((STALENESS, POLL_INTERVAL, LEASE_TTL, STANDBY_RETRY, POLL_TIMEOUT), _takeover),
    Rule((HISTORY_TTL, HISTORY_WINDOW), _history),
    Rule((HEARTBEAT, ACTIVE_TTL), _heartbeat),
    Rule((IDS, URLS), _node_urls),
    Rule((IDS, VRAM), _per_node(VRAM)),
    Rule((IDS, SLOTS), _per_node(SLOTS)),
    Rule((IDS, TELEMETRY), _per_node(TELEMETRY)),
    Rule((IDS, MEMORY), _per_node(MEMORY)),
    Rule((ENABLED, IDS, VRAM, SLOTS), _budgets),
    Rule((IDS, "model_cluster_role_affinity_json"), _affinity),
    Rule((ENABLED, "coordination_backend", "model_cluster_backend"), _backend),
    Rule(
        (
            ENABLED,
            "valkey_url",
            "model_cluster_valkey_url",
            "model_cluster_single_host",
            "coordination_backend",
            "model_cluster_backend",
        ),
        _embedded,
    ),
)
