"""What runs, and with which environment: decided before anything is started. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.errors import ConfigurationError, Fault
from aibs.settings import examine, load
from aibs.settings.fields import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from aibs.settings import Settings

CLUSTER = "AIBS_MODEL_CLUSTER_"
ENABLED = f"{CLUSTER}ENABLED"
SINGLE_HOST = f"{CLUSTER}SINGLE_HOST"
RUN_IN_API = f"{CLUSTER}RESIDENCY_MONITOR_RUN_IN_API"


@dataclass(frozen=True, slots=True)
class Plan:
    """`settings` as the children read them from `environment`; `own` is what was put into it,
    `overruled` what of that the operator had set otherwise.
    """

    settings: Settings
    environment: Mapping[str, str]
    own: Mapping[str, str]
    overruled: tuple[str, ...]
    workers: int
    """Processes of the gateway."""

    @property
    def embedded(self) -> bool:
        """Whether a Valkey is run here."""
        return self.settings.model_pool_url == "embedded"

    @property
    def url(self) -> str:
        """What clients on this machine call."""
        return self.settings.api_url


def plan_of(
    environ: Mapping[str, str],
    env_file: Path | None,
    *,
    host: str | None = None,
    port: int | None = None,
    workers: int = 1,
    terminal: bool = False,
) -> Plan:
    """The plan for these settings; `terminal`: somebody reads the log as it comes.

    Raises ConfigurationError with every fault. A fleet without nodes is let pass: what to say of
    it takes a look at this machine.
    """
    given, _ = examine(environ, env_file)
    own = _own(given, host, port, terminal)
    environment = {**environ, **own}
    settings = load(environment, env_file)
    faults = tuple(_faults(settings))
    if faults:
        raise ConfigurationError(faults=faults)
    overruled = tuple(
        name for name in (ENABLED, SINGLE_HOST) if name in own and _set_otherwise(given, name)
    )
    return Plan(settings, environment, own, overruled, workers)


def _set_otherwise(given: Settings, name: str) -> bool:
    field = VARIABLES[name]
    return given.provenance(field) != "default" and not getattr(given, field)


def _own(given: Settings, host: str | None, port: int | None, terminal: bool) -> dict[str, str]:
    own = {}
    if given.log_format == "auto":
        # The children's lines go through this process: they see no terminal.
        own["AIBS_LOG_FORMAT"] = "console" if terminal else "json"
    if host is not None:
        own["AIBS_API_HOST"] = host
    if port is not None:
        own["AIBS_API_PORT"] = str(port)
    if given.model_cluster_residency_monitor_run_in_api:
        # The monitor is a process of its own here.
        own[RUN_IN_API] = "false"
    if given.coordination_backend == "valkey" and given.model_pool_url == "embedded":
        own[ENABLED] = own[SINGLE_HOST] = "true"
    return own


def _faults(settings: Settings) -> Iterator[Fault]:
    if settings.coordination_backend != "valkey":
        yield Fault(
            "AIBS_COORDINATION_BACKEND",
            f"is {settings.coordination_backend}, which monitor and gateway, two processes, "
            "cannot share",
            "Set it to valkey.",
        )
    elif not settings.model_cluster_enabled:
        yield Fault(
            ENABLED,
            "is false while the pool is on another server: the gateway would admit requests by "
            "itself, beside everyone who uses that pool",
            "Set it to true once `aibs audit` is green, or run `aibs monitor` alone.",
        )
    if not settings.model_cluster_residency_monitor_enabled:
        yield Fault(
            f"{CLUSTER}RESIDENCY_MONITOR_ENABLED",
            "is false, and without a monitor no request is placed",
            "Set it to true, or run `aibs serve` beside a monitor elsewhere.",
        )
    fleet = settings.fleet()
    if fleet.nodes and not fleet.workers:
        yield Fault(
            "AIBS_MODEL_ADMISSION_WORKER_ROSTER",
            "is empty, so there is no model that a request could ask for",
            "List the models there; `aibs audit` shows what the nodes hold.",
        )
