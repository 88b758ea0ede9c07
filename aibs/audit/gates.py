"""The gates before the global scheduler may be enabled, all of them in order. Pure.

A gate that needs what is not known has failed, and says that it is not known. None depends on
whether the scheduler is enabled: an operator audits first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aibs.audit import gates_fleet, gates_pool
from aibs.audit.verdict import MONITOR, PREFIX, failed, passed
from aibs.audit.wording import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aibs.audit.document import Gate
    from aibs.audit.facts import Evidence


def judge(evidence: Evidence) -> list[Gate]:
    """Every gate, in the order in which an operator would mend them."""
    return [
        gates_pool.backend_valkey(evidence),
        gates_pool.embedded_single_host(evidence),
        gates_pool.valkey_reachable(evidence),
        gates_pool.valkey_version(evidence),
        gates_fleet.nodes_configured(evidence),
        gates_fleet.budgets_configured(evidence),
        gates_fleet.nodes_reachable(evidence),
        gates_fleet.roster_configured(evidence),
        gates_fleet.weights_measured(evidence),
        gates_fleet.active_parameters_measured(evidence),
        gates_fleet.workers_fit(evidence),
        timing_rules(evidence),
        history_ttl(evidence),
        monitor_enabled(evidence),
        gates_pool.fleet_declared(evidence),
        gates_pool.monitor_fresh(evidence),
    ]


def ready(gates: Sequence[Gate]) -> bool:
    """Whether every gate passed."""
    return all(gate.passed for gate in gates)


def timing_rules(evidence: Evidence) -> Gate:
    """The timing rules of election, staleness and heartbeats hold."""
    name, timing = "timing_rules", evidence.configured.timing
    poll_ms = timing.poll_interval_ms + timing.poll_timeout_ms
    bound_ms = (
        timing.poll_interval_ms
        + timing.lease_ttl_ms
        + timing.standby_retry_ms
        + 2 * timing.poll_timeout_ms
    )
    broken, fixes = [], []
    if timing.lease_ttl_ms <= poll_ms:
        broken.append(
            f"lease TTL {seconds(timing.lease_ttl_ms)} is not over {seconds(poll_ms)} "
            "(poll interval + poll timeout)"
        )
        fixes.append(f"Raise {MONITOR}LEASE_TTL_SECONDS.")
    if bound_ms > timing.staleness_ms:
        broken.append(
            f"a takeover may take {seconds(bound_ms)}, over the staleness window of "
            f"{seconds(timing.staleness_ms)}"
        )
        fixes.append(f"Raise {PREFIX}MAX_RESIDENCY_STALENESS_MS to at least {bound_ms}.")
    if timing.heartbeat_ms * 3 >= timing.active_lease_ttl_ms:
        broken.append(
            f"heartbeat {seconds(timing.heartbeat_ms)} is not under a third of the active lease "
            f"TTL {seconds(timing.active_lease_ttl_ms)}"
        )
        fixes.append(f"Lower {PREFIX}HEARTBEAT_INTERVAL_SECONDS.")
    if broken:
        return failed(name, "; ".join(broken), " ".join(fixes))
    return passed(
        name,
        f"takeover within {seconds(bound_ms)}, staleness window {seconds(timing.staleness_ms)}",
    )


def history_ttl(evidence: Evidence) -> Gate:
    """History is kept as long as it is shown."""
    timing = evidence.configured.timing
    window, ttl = seconds(timing.history_window_ms), seconds(timing.history_ttl_ms)
    if timing.history_ttl_ms < timing.history_window_ms:
        return failed(
            "history_ttl",
            f"history is kept {ttl}, less than the window of {window}",
            f"Raise {PREFIX}HEALTH_HISTORY_TTL_SECONDS.",
        )
    return passed("history_ttl", f"history is kept {ttl}, the window is {window}")


def monitor_enabled(evidence: Evidence) -> Gate:
    """The monitor is enabled."""
    setting = f"{MONITOR}ENABLED"
    if evidence.configured.monitor_enabled:
        return passed("monitor_enabled", f"{setting}=true")
    return failed("monitor_enabled", f"{setting}=false", f"Set {setting}=true.")
