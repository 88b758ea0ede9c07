"""Every AIBS_* setting: its type, its default and what it is for. The one list."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from aibs.codec import BYTES_PER_GB, gb_to_bytes, loads
from aibs.errors import ConfigurationError
from aibs.eventstore.endpoint import parse_url
from aibs.fleet import InvalidNodeUrl, normalise_url
from aibs.settings.api_keys import InvalidKeys, parse_keys
from aibs.settings.parsing import (
    NAME_RULE,
    boolean,
    choice,
    each,
    fault,
    identifier,
    identifiers,
    integer,
    is_identifier,
    seconds,
    shown,
)

PREFIX = "AIBS_"
MAX_GB = 2**50 // BYTES_PER_GB

Bool = Annotated[bool, BeforeValidator(boolean)]
Seconds = Annotated[float, seconds()]
SecondsOrZero = Annotated[float, seconds(zero=True)]
Count = Annotated[int, integer(1, 1_000_000)]


def _coordination_url(value: Any) -> str:
    text = str(value).strip()
    try:
        parse_url(text)
    except ConfigurationError as error:
        raise fault(f"is unusable: {error.sentence.rstrip('.')}", error.mend) from error
    return text


def _node_url(item: str) -> str:
    try:
        return normalise_url(item)
    except InvalidNodeUrl as error:
        raise fault(f"has a URL that {error}", "Write it like http://10.4.3.16:11434.") from error


def _telemetry_url(item: str) -> str:
    try:
        return normalise_url(item)
    except InvalidNodeUrl as error:
        raise fault(
            f"has a URL that {error}", "Write it like http://10.4.3.16:8765/telemetry."
        ) from error


def _gigabytes(item: str) -> int:
    try:
        number = Decimal(item)
        if not number.is_finite() or not 0 < number <= MAX_GB:
            raise InvalidOperation
    except InvalidOperation as error:
        raise fault(
            f"has {shown(item)}, not a size in GB above 0", "Write sizes like 90 or 104.5."
        ) from error
    return max(1, gb_to_bytes(number))


def _slots(item: str) -> int:
    if not re.fullmatch("[0-9]{1,4}", item) or not 1 <= int(item) <= 1024:
        raise fault(
            f"has {shown(item)}, not a number of requests at a time", "Write 1 or more, to 1024."
        )
    return int(item)


def _memory(item: str) -> str:
    word = item.lower()
    if word not in ("unified", "discrete"):
        raise fault(f"has {shown(item)}, not unified or discrete", "Write one word a node.")
    return word


def _affinity(value: Any) -> dict[str, tuple[str, ...]]:
    mend = 'Write JSON like {"semantic_profile":["box-c"]}.'
    try:
        document = loads(str(value)) if not isinstance(value, dict) else value
    except ValueError as error:
        raise fault(f"is not JSON: {error}", mend) from error
    if not isinstance(document, dict):
        raise fault("is not a JSON object", mend)
    for role, nodes in document.items():
        if not isinstance(nodes, list) or not nodes or not all(isinstance(n, str) for n in nodes):
            raise fault(f"gives role {shown(role)} no list of node ids", mend)
        if not is_identifier(role):
            raise fault(f"names the role {shown(role)}, which is not a name", NAME_RULE)
        if len(set(nodes)) != len(nodes):
            raise fault(f"ties role {shown(role)} to a node twice", "Name each node once.")
    return {role: tuple(nodes) for role, nodes in document.items()}


Url = Annotated[str, BeforeValidator(_coordination_url)]
Namespace = Annotated[str, BeforeValidator(identifier("the namespace"))]


def _api_keys(value: Any) -> str:
    text = str(value).strip()
    if not text.startswith("@"):
        try:
            parse_keys(text)
        except InvalidKeys as error:
            raise fault(error.problem, error.mend) from error
    return text


def _host(value: Any) -> str:
    text = str(value).strip()
    if not re.fullmatch(r"[A-Za-z0-9.:_-]{1,253}", text):
        raise fault(f"is {shown(text)}, not a host or address", "Set it to one like 127.0.0.1.")
    return text


def _directory(value: Any) -> str:
    text = str(value).strip()
    try:
        path = Path(text).expanduser()
        if "\0" in text or (path.exists() and not path.is_dir()):
            raise fault(f"is {shown(text)}, which is not a directory", "Name a directory.")
    except (OSError, RuntimeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "no such home"
        raise fault(f"is {shown(text)}, which cannot be used: {reason}", "Name another.") from error
    return str(path)


def _setting(default: Any, group: str, description: str, *, secret: bool = False) -> Any:
    return Field(
        default,
        description=description,
        # A value that may hold a password stays out of every repr.
        repr=not secret,
        json_schema_extra={"group": group, "secret": secret},
    )


def _optional_url(value: Any) -> str:
    return _coordination_url(value) if str(value).strip() else ""


class Variables(BaseSettings):
    """The variables as read; `aibs.settings.Settings` adds what follows from them together."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic-settings' signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - see below
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - see below
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not used
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The texts that the loader read: it keeps for each where it came from."""
        return (init_settings,)

    coordination_backend: Annotated[str, choice("valkey", "memory")] = _setting(
        "valkey", "coordination", "valkey, or memory for one process without cluster scheduling"
    )
    valkey_url: Url = _setting(
        "embedded",
        "coordination",
        "application-coordination pool: redis://, rediss://, valkey://, valkeys://, unix://, "
        "redis+sentinel://host:port,…/service/db, redis+cluster://host:port,…, or embedded",
        secret=True,
    )
    namespace: Namespace = _setting(
        "local", "coordination", "this environment's name; the holder's environment in events"
    )
    data_dir: Annotated[str, BeforeValidator(_directory)] = _setting(
        "./.aibs", "coordination", "where the embedded Valkey keeps its socket, log and data"
    )
    model_admission_worker_roster: str = _setting(
        "[]", "roster", "JSON list of workers, or @path to a .json, .yaml or .toml file"
    )
    model_cluster_enabled: Bool = _setting(
        False, "cluster", "whether requests are placed by the global scheduler"
    )
    model_cluster_backend: Annotated[str, choice("valkey", "memory")] = _setting(
        "valkey", "cluster", "where the shared fleet is coordinated"
    )
    model_cluster_valkey_url: Annotated[str, BeforeValidator(_optional_url)] = _setting(
        "", "cluster", "model-coordination pool; empty: AIBS_VALKEY_URL", secret=True
    )
    model_cluster_namespace: Namespace = _setting(
        "fleet", "cluster", "namespace of the model-coordination pool"
    )
    model_cluster_fallback_mode: Annotated[
        str,
        choice("fail_closed", reason="a scheduler that cannot see the fleet must not place on it"),
    ] = _setting("fail_closed", "cluster", "what happens when coordination is away: refuse")
    model_cluster_node_ids: Annotated[tuple[str, ...], NoDecode, identifiers("the node id")] = (
        _setting((), "cluster", "one id a node, like box-c,box-e")
    )
    model_cluster_node_urls: Annotated[tuple[str, ...], NoDecode, each(_node_url)] = _setting(
        (), "cluster", "one URL a node, in the same order"
    )
    model_cluster_node_vram_gb: Annotated[tuple[int, ...], NoDecode, each(_gigabytes)] = _setting(
        (), "cluster", "memory budget of each node in GB (10^9 bytes)"
    )
    model_cluster_node_max_parallel_requests: Annotated[tuple[int, ...], NoDecode, each(_slots)] = (
        _setting((), "cluster", "slots of each node: requests at a time")
    )
    model_cluster_node_host_telemetry_urls: Annotated[
        tuple[str, ...], NoDecode, each(_telemetry_url)
    ] = _setting((), "cluster", "URL of each node's host telemetry agent")
    model_cluster_node_memory: Annotated[tuple[str, ...], NoDecode, each(_memory)] = _setting(
        (), "cluster", "unified or discrete for each node; empty: all unified"
    )
    model_cluster_fleet_revision: Annotated[int, integer(0, 2**53)] = _setting(
        0, "cluster", "raise it to change a declared fleet"
    )
    model_cluster_single_host: Bool = _setting(
        False, "cluster", "true: one machine runs everything, so an embedded pool may schedule"
    )
    model_cluster_role_affinity_json: Annotated[
        dict[str, tuple[str, ...]], NoDecode, BeforeValidator(_affinity)
    ] = _setting({}, "cluster", 'nodes that a role may run on, like {"semantic_profile":["box-c"]}')
    model_cluster_active_lease_ttl_seconds: Seconds = _setting(
        900.0, "cluster", "how long a placed request's lease lives without a heartbeat"
    )
    model_cluster_heartbeat_interval_seconds: Seconds = _setting(
        30.0, "cluster", "how often a holder renews its leases"
    )
    model_cluster_poll_interval_seconds: Seconds = _setting(
        0.1, "cluster", "how often a waiting request asks again, where no wake-up reached it"
    )
    model_cluster_max_residency_staleness_ms: Annotated[int, integer(1, 86_400_000)] = _setting(
        20_000, "cluster", "how old a node's stamp may be for a placement, in milliseconds"
    )
    model_cluster_residency_monitor_enabled: Bool = _setting(
        True, "cluster", "whether this deployment runs the residency monitor"
    )
    model_cluster_residency_monitor_run_in_api: Bool = _setting(
        False, "cluster", "whether the gateway runs the monitor inside"
    )
    model_cluster_residency_monitor_poll_interval_seconds: Seconds = _setting(
        3.0, "cluster", "how often each node is polled"
    )
    model_cluster_residency_monitor_poll_timeout_seconds: Seconds = _setting(
        2.0, "cluster", "how long a poll may take"
    )
    model_cluster_residency_monitor_failure_threshold: Annotated[int, integer(1, 1000)] = _setting(
        2, "cluster", "failed polls in a row that make a node unhealthy"
    )
    model_cluster_residency_monitor_lease_ttl_seconds: Seconds = _setting(
        8.0, "cluster", "how long the monitor's term lives without a renewal"
    )
    model_cluster_residency_monitor_standby_retry_seconds: Seconds = _setting(
        1.0, "cluster", "how often a standby monitor stands for election"
    )
    model_cluster_telemetry_ttl_seconds: Seconds = _setting(
        30.0, "cluster", "how long a node's last poll is kept in full"
    )
    model_cluster_health_history_window_seconds: Seconds = _setting(
        900.0, "cluster", "how much history is shown"
    )
    model_cluster_health_history_max_samples: Count = _setting(
        180, "cluster", "how many points a timeline has at most"
    )
    model_cluster_health_history_ttl_seconds: Seconds = _setting(
        1800.0, "cluster", "how long samples are kept"
    )
    model_cluster_log_retention_seconds: Seconds = _setting(
        604_800.0, "log", "how long events are kept"
    )
    model_cluster_log_max_bytes: Annotated[int, integer(1_000_000, 2**50)] = _setting(
        1_000_000_000, "log", "how large the log may grow before it is trimmed sooner"
    )
    model_cluster_queue_max_waiters: Count = _setting(1000, "log", "requests that may wait at once")
    model_cluster_queue_max_wait_seconds: Seconds = _setting(
        300.0, "log", "how long a request may wait"
    )
    model_cluster_queue_grace_seconds: Seconds = _setting(
        10.0, "log", "how long a place is kept for a process that stopped asking"
    )
    model_cluster_swap_min_residency_seconds: SecondsOrZero = _setting(
        30.0, "log", "how long a loaded model stays before another takes its place"
    )
    model_cluster_swap_max_wait_seconds: SecondsOrZero = _setting(
        60.0, "log", "how long the queue's head may be passed by requests of a resident model"
    )
    model_cluster_drain_seconds: SecondsOrZero = _setting(
        10.0, "log", "how long a slot rests that ended without a release"
    )
    model_cluster_load_timeout_seconds: Seconds = _setting(
        600.0, "log", "how long a model may take to load"
    )
    api_host: Annotated[str, BeforeValidator(_host)] = _setting(
        "127.0.0.1", "gateway", "address that the gateway listens on"
    )
    api_port: Annotated[int, integer(1, 65_535)] = _setting(
        11_500, "gateway", "port that the gateway listens on"
    )
    api_keys: Annotated[str, BeforeValidator(_api_keys)] = _setting(
        "",
        "gateway",
        "name:key or name:key:max_class, comma-separated, or @file; empty: only loopback may call",
        secret=True,
    )
    api_connect_timeout_seconds: Seconds = _setting(5.0, "gateway", "limit to connect to a node")
    api_first_byte_timeout_seconds: Seconds = _setting(
        120.0, "gateway", "limit to a node's first byte, after the model is loaded"
    )
    api_silence_timeout_seconds: Seconds = _setting(
        60.0, "gateway", "limit between two bytes of a stream"
    )
    api_max_body_bytes: Annotated[int, integer(1024, 2**40)] = _setting(
        67_108_864, "gateway", "largest request body"
    )
    api_drain_seconds: SecondsOrZero = _setting(
        30.0, "gateway", "how long requests may finish after SIGTERM"
    )
    api_trip_after_failures: Annotated[int, integer(1, 1000)] = _setting(
        3, "gateway", "failures in a row that take a node out"
    )
    log_level: Annotated[str, choice("debug", "info", "warning", "error", "critical")] = _setting(
        "info", "gateway", "least level that is logged"
    )
    log_format: Annotated[str, choice("auto", "console", "json")] = _setting(
        "auto", "gateway", "console, json, or auto: console on a terminal, JSON elsewhere"
    )
    test_valkey_url: Annotated[str, BeforeValidator(_optional_url)] = _setting(
        "", "tests", "a real Valkey 8+ for the tests; empty: they start one", secret=True
    )
    test_redis_url: Annotated[str, BeforeValidator(_optional_url)] = _setting(
        "", "tests", "the old name of the same, still read", secret=True
    )
    test_valkey: Annotated[str, choice("container", "")] = _setting(
        "", "tests", "container: testcontainers; empty: the bundled server"
    )


def variable(field: str) -> str:
    """The environment variable of a field."""
    return f"{PREFIX}{field.upper()}"


FIELDS: tuple[str, ...] = tuple(Variables.model_fields)
VARIABLES: dict[str, str] = {variable(field): field for field in FIELDS}
"""Each known variable with its field."""


def traits(field: str) -> tuple[str, bool]:
    """A field's group, and whether its value may hold a secret."""
    extra = Variables.model_fields[field].json_schema_extra
    assert isinstance(extra, dict)
    return str(extra["group"]), bool(extra["secret"])
