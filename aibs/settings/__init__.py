"""Every AIBS_* setting, typed and validated together.

Decides what this process is configured to do, and whether that can work at all. Reads the
environment and `.env` once; opens no connection. Fails with ConfigurationError, which lists every
fault at once: the variable, what is wrong with it and the mend.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr, ValidationError

from aibs.errors import ConfigurationError, Fault
from aibs.fleet import Fleet, Node
from aibs.settings.api_keys import InvalidKeys, KeySource, read_keys
from aibs.settings.fields import FIELDS, Variables, variable
from aibs.settings.roster import InvalidRoster, read_roster
from aibs.settings.rules import broken_rules, ms, takeover_bound_ms
from aibs.settings.sources import Provenance, Sources, read_sources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aibs.fleet import Worker

__all__ = ["Settings", "load"]

ROSTER = "model_admission_worker_roster"
API_KEYS = "api_keys"


HEARTBEAT_TIMEOUT_MS = 5_000
"""How long a holder waits for the answer to a heartbeat."""

ABORT_MARGIN_MS = 5_000
"""How long a holder needs to cancel its work once it was told, or gave up."""

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on that nobody can call, and what to call instead."""


class Settings(Variables):
    """The settings of one process. Times end in `_ms` where they are whole milliseconds."""

    _fleet: Fleet = PrivateAttr(default_factory=Fleet)
    _keys: KeySource = PrivateAttr(default_factory=KeySource)
    _warnings: tuple[str, ...] = PrivateAttr(default=())
    _sources: Sources = PrivateAttr(default_factory=lambda: Sources({}, ()))

    def fleet(self) -> Fleet:
        """The nodes, the roster and the affinity."""
        return self._fleet

    def key_source(self) -> KeySource:
        """The API keys as digests, and the file that they came from."""
        return self._keys

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd and does no harm: a sentence each."""
        return self._warnings

    def provenance(self, field: str) -> Provenance:
        """Where a field's value came from."""
        text = self._sources.texts.get(field)
        return text.provenance if text else "default"

    @property
    def model_pool_url(self) -> str:
        """The coordination server of the shared fleet."""
        return self.model_cluster_valkey_url or self.valkey_url

    @property
    def api_url(self) -> str:
        """The gateway, as a client on its machine calls it."""
        host = ANY_ADDRESS.get(self.api_host, self.api_host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.api_port}"

    @property
    def poll_interval_ms(self) -> int:
        return ms(self.model_cluster_residency_monitor_poll_interval_seconds)

    @property
    def poll_timeout_ms(self) -> int:
        return ms(self.model_cluster_residency_monitor_poll_timeout_seconds)

    @property
    def monitor_lease_ttl_ms(self) -> int:
        return ms(self.model_cluster_residency_monitor_lease_ttl_seconds)

    @property
    def standby_retry_ms(self) -> int:
        return ms(self.model_cluster_residency_monitor_standby_retry_seconds)

    @property
    def max_residency_staleness_ms(self) -> int:
        return self.model_cluster_max_residency_staleness_ms

    @property
    def takeover_bound_ms(self) -> int:
        """How long after an owner's death every node that answers is fresh again, at most."""
        return takeover_bound_ms(self)

    @property
    def heartbeat_interval_ms(self) -> int:
        return ms(self.model_cluster_heartbeat_interval_seconds)

    @property
    def active_lease_ttl_ms(self) -> int:
        return ms(self.model_cluster_active_lease_ttl_seconds)

    @property
    def telemetry_ttl_ms(self) -> int:
        return ms(self.model_cluster_telemetry_ttl_seconds)

    @property
    def health_history_window_ms(self) -> int:
        return ms(self.model_cluster_health_history_window_seconds)

    @property
    def health_history_ttl_ms(self) -> int:
        return ms(self.model_cluster_health_history_ttl_seconds)

    @property
    def log_retention_ms(self) -> int:
        """How long events are kept."""
        return ms(self.model_cluster_log_retention_seconds)

    @property
    def load_timeout_ms(self) -> int:
        return ms(self.model_cluster_load_timeout_seconds)

    @property
    def recovery_ms(self) -> int:
        """How long after a suspicion nothing is granted: until holders were heard, or gave up."""
        return self.heartbeat_interval_ms + HEARTBEAT_TIMEOUT_MS + ABORT_MARGIN_MS

    @property
    def drain_ms(self) -> int:
        return ms(self.model_cluster_drain_seconds)

    @property
    def queue_grace_ms(self) -> int:
        return ms(self.model_cluster_queue_grace_seconds)

    @property
    def swap_min_residency_ms(self) -> int:
        return ms(self.model_cluster_swap_min_residency_seconds)

    @property
    def swap_max_wait_ms(self) -> int:
        return ms(self.model_cluster_swap_max_wait_seconds)

    @property
    def host_telemetry_urls(self) -> dict[str, str]:
        """Each node's telemetry agent, where one is configured."""
        urls = self.model_cluster_node_host_telemetry_urls
        return dict(zip(self.model_cluster_node_ids, urls, strict=True)) if urls else {}


def load(
    environ: Mapping[str, str] | None = None, env_file: Path | None = Path(".env")
) -> Settings:
    """The settings of the environment over those of `env_file`.

    Raises ConfigurationError with every fault.
    """
    settings, faults = examine(environ, env_file)
    if faults:
        raise ConfigurationError(faults=faults)
    return settings


def examine(
    environ: Mapping[str, str] | None = None, env_file: Path | None = Path(".env")
) -> tuple[Settings, tuple[Fault, ...]]:
    """The settings and all their faults. A field that has one holds its default.

    Raises ConfigurationError only where `env_file` itself cannot be read.
    """
    sources = read_sources(os.environ if environ is None else environ, env_file)
    values: dict[str, Any] = {field: text.value for field, text in sources.texts.items()}
    faults = list(sources.faults)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        wrong = _faults(error)
        bad = {fault.variable for fault in wrong}
        faults += wrong
        settings = Settings(**{f: v for f, v in values.items() if variable(f) not in bad})
    unreadable = frozenset(f for f in FIELDS if variable(f) in {x.variable for x in faults})
    workers: tuple[Worker, ...] = ()
    warnings = list(sources.warnings())
    directory = Path() if env_file is None else env_file.parent
    try:
        workers, odd = read_roster(settings.model_admission_worker_roster, directory)
        warnings += odd
    except InvalidRoster as error:
        faults.append(Fault(variable(ROSTER), error.problem, error.mend))
        unreadable |= {ROSTER}
        # Like any text that cannot be read: nobody may take it, or show it, for a roster.
        settings = settings.model_copy(update={ROSTER: Variables.model_fields[ROSTER].default})
    keys = KeySource()
    try:
        keys = read_keys(settings.api_keys, directory)
        warnings += keys.warnings
    except InvalidKeys as error:
        faults.append(Fault(variable(API_KEYS), error.problem, error.mend))
        unreadable |= {API_KEYS}
    together = broken_rules(settings, unreadable)
    faults += together
    if not unreadable and not together:
        settings._fleet = _fleet(settings, workers)
        warnings += _roles_of_nobody(settings)
    settings._keys = keys
    settings._warnings = tuple(warnings)
    settings._sources = sources
    return settings, tuple(faults)


def _faults(error: ValidationError) -> list[Fault]:
    found = []
    for item in error.errors(include_url=False, include_input=False):
        context = item.get("ctx", {})
        # What pydantic itself finds wrong would be a fault of ours: every field has its reader.
        assert item["type"] == "fault", f"{item['loc']} has a validator without a sentence"
        found.append(
            Fault(variable(str(item["loc"][0])), str(context["problem"]), str(context["mend"]))
        )
    return found


def _fleet(settings: Settings, workers: tuple[Worker, ...]) -> Fleet:
    ids = settings.model_cluster_node_ids
    budgets = settings.model_cluster_node_vram_gb or (None,) * len(ids)
    slots = settings.model_cluster_node_max_parallel_requests or (None,) * len(ids)
    memory = settings.model_cluster_node_memory or ("unified",) * len(ids)
    nodes = tuple(
        Node(
            node_id,
            url,
            vram_budget_bytes=budget,
            max_parallel_requests=count,
            memory="discrete" if kind == "discrete" else "unified",
        )
        for node_id, url, budget, count, kind in zip(
            ids, settings.model_cluster_node_urls, budgets, slots, memory, strict=True
        )
    )
    return Fleet(
        settings.model_cluster_fleet_revision,
        nodes,
        workers,
        settings.model_cluster_role_affinity_json,
    )


def _roles_of_nobody(settings: Settings) -> list[str]:
    known = {role for worker in settings.fleet().workers for role in worker.roles}
    name = variable("model_cluster_role_affinity_json")
    return [
        f"{name} ties the role '{role}', which no worker of the roster has."
        for role in settings.model_cluster_role_affinity_json
        if role not in known
    ]
