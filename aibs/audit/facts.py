"""What the audit found, as plain values: the input of its pure parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aibs.audit.document import NodeState, WorkerReport
    from aibs.eventstore.state import FleetState, PoolState, Stamp, TermState
    from aibs.fleet import Fleet, Node
    from aibs.ollama.ownership import Residency
    from aibs.projections.node_capacity import NodeCapacity


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What a node's telemetry agent answered. `error` is empty when it did."""

    url: str
    error: str = ""
    gpu_used_bytes: int | None = None
    gpu_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """One node as it answered now.

    `residency` is None unless `state` is ok. `installed` maps the comparison keys of the node's
    installed models to their digests, None where the node did not say.
    """

    node: Node
    configured: bool
    state: NodeState
    error: str | None = None
    latency_ms: int | None = None
    version: str | None = None
    residency: Residency | None = None
    installed: Mapping[str, str] | None = None
    host: HostMemory | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The server's settings on which leases depend. None: the server would not say."""

    maxmemory_bytes: int | None = None
    maxmemory_policy: str | None = None
    appendonly: bool | None = None
    appendfsync: str | None = None


@dataclass(frozen=True, slots=True)
class OtherPool:
    """Another pool on the same server: which URLs its declared fleet names, who owns it."""

    namespace: str
    urls: tuple[str, ...]
    owner: str | None


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the log told: up to its event `last_id`, from the snapshot of `began` on (None: from its
    beginning). `error` is why it could not be folded; `differences` is where the live state is not
    what the log tells.
    """

    last_id: str
    seq: int = 0
    began: str | None = None
    nodes: Mapping[str, NodeCapacity] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What the coordination server and the pool say. `error` is None when they were read.

    `fleet` and the term's owner are those of the log where that could be folded, so that what the
    audit says of them can be replayed. `other_pools_complete` is False where the server holds more
    keys than were looked through, or pools that may not be read.
    """

    url: str
    error: str | None = None
    server: str | None = None
    version: str | None = None
    supported: bool = False
    run_id: str | None = None
    now_ms: int = 0
    pool: PoolState | None = None
    term: TermState | None = None
    fleet: FleetState | None = None
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    log: LogFacts | None = None
    last_proof: Mapping[str, Any] | None = None
    settings: ServerSettings = ServerSettings()
    other_pools: tuple[OtherPool, ...] = ()
    other_pools_complete: bool = True

    @property
    def reachable(self) -> bool:
        """Whether the server answered."""
        return self.error is None

    @property
    def server_restarted(self) -> bool:
        """Whether the server process is another than the one whose memory the pool trusts.

        Until a script notices, the pool's term and stamps look alive and are not.
        """
        return self.pool is not None and self.run_id is not None and self.pool.run_id != self.run_id


@dataclass(frozen=True, slots=True)
class Timing:
    """The times that the rules bind, in milliseconds."""

    poll_interval_ms: int
    poll_timeout_ms: int
    lease_ttl_ms: int
    standby_retry_ms: int
    staleness_ms: int
    heartbeat_ms: int
    active_lease_ttl_ms: int
    history_window_ms: int
    history_ttl_ms: int


@dataclass(frozen=True, slots=True)
class Configured:
    """What the settings say, so far as the gates ask."""

    coordination_backend: str
    cluster_backend: str
    cluster_enabled: bool
    namespace: str
    monitor_enabled: bool
    embedded: bool
    single_host: bool
    timing: Timing


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the gates look at. `findings` are of the configured nodes only.

    `pool` is None where the backend has no server to ask.
    """

    configured: Configured
    fleet: Fleet
    pool: PoolFacts | None
    findings: Sequence[NodeFinding]
    workers: Sequence[WorkerReport]
