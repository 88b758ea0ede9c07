"""The one tree of errors.

AibsError
├── ConfigurationError      the settings are wrong; every fault is listed         exit 2
│   └── UnsupportedServer   the server that answers is not Valkey 8+              exit 2
├── Refused                 definitely not done                                   exit 1
│   ├── Fenced              the writer's term is over
│   ├── FleetMismatch       the declared fleet is another one
│   ├── PoolVersionMismatch the pool was written by another release
│   ├── PoolMissing         the pool is not there (flushed, or never created)
│   ├── PlacementDenied     no node for a request, with each node's reason
│   └── LeaseLost           a lease ended under the work that held it
├── Unreachable             something outside did not answer                      exit 3
│   ├── CoordinationUnavailable
│   ├── NodeError           a node's answer cannot be had (or trusted)
│   │   ├── NodeUnreachable
│   │   ├── NodeLoading     /api/ps is held up, the server lives
│   │   ├── NodeUnsupported no /api/ps there
│   │   ├── InvalidResponse not what the Ollama API promises
│   │   ├── ModelNotInstalled
│   │   └── WarmUpFailed
│   └── OutcomeUnknown      sent, not answered: it may have been done
└── Broken                  what was read cannot be true                          exit 1
    ├── CorruptLog
    ├── TruncatedLog        the log does not hold what its reader goes on from
    │   ├── TrimmedLog      it was trimmed past the reader
    │   ├── RewoundLog      it was set back to before the reader
    │   └── ReplacedLog     it is another log
    ├── UnusableSnapshot
    └── UnexpectedReply     a script answered a word its caller does not know

An error is one sentence: what happened and where. Its mend, when there is one, is a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class AibsError(Exception):
    """Something that aibs reports to a person. `mend` says what would help, or is empty."""

    exit_status = 1

    def __init__(self, sentence: str, *, mend: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.sentence} {self.mend}".rstrip()


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with one setting.

    `variable` is the environment variable's name, `problem` a clause that follows it
    ("is 'seven', not a number"), `mend` an instruction ("Set it to a number of seconds.").
    """

    variable: str
    problem: str
    mend: str

    def __str__(self) -> str:
        return f"{self.variable} {self.problem}. {self.mend}"


class ConfigurationError(AibsError):
    """The settings cannot be used. `faults` has all of them, not only the first."""

    exit_status = 2

    def __init__(
        self, sentence: str = "", *, faults: tuple[Fault, ...] = (), mend: str = ""
    ) -> None:
        super().__init__(sentence or "\n".join(str(fault) for fault in faults), mend=mend)
        self.faults = faults


class UnsupportedServer(ConfigurationError):
    """The coordination server is not Valkey 8 or newer."""


class Refused(AibsError):
    """Definitely not done."""


class Fenced(Refused):
    """A write was refused because its writer's term is over or was never granted."""


class FleetMismatch(Refused):
    """The declared fleet and this process's settings differ."""


class PoolVersionMismatch(Refused):
    """The pool's state was written by a release with another state version."""


class PoolMissing(Refused):
    """The pool does not exist on the server: flushed, or not yet created."""


class PlacementDenied(Refused):
    """A request got no node. `reason` is a code of the protocol's list.

    `nodes` says why for at most 16 nodes (NodeReason), `others` counts the rest by reason.
    `retry_after_ms` is when asking again may help, `position` the last known place in the queue.
    """

    def __init__(
        self,
        sentence: str,
        *,
        reason: str,
        nodes: Sequence[Any] = (),
        others: Mapping[str, int] | None = None,
        retry_after_ms: int | None = None,
        position: int | None = None,
        mend: str = "",
    ) -> None:
        super().__init__(sentence, mend=mend)
        self.reason = reason
        self.nodes = tuple(nodes)
        self.others = dict(others or {})
        self.retry_after_ms = retry_after_ms
        self.position = position


class LeaseLost(Refused):
    """A lease ended before its work did. `why`: revoked, expired, unknown, trust_over, closed."""

    reason = "lease_lost"

    def __init__(self, sentence: str, *, why: str, lease_id: str, mend: str = "") -> None:
        super().__init__(sentence, mend=mend)
        self.why = why
        self.lease_id = lease_id


class Unreachable(AibsError):
    """Something outside this process did not answer."""

    exit_status = 3


class CoordinationUnavailable(Unreachable):
    """The coordination server could not be reached, or answered that it cannot serve."""


class NodeError(Unreachable):
    """A node did not answer, or its answer cannot be trusted.

    `state` is the audit's word for it, `reason` a short stable code for logs and events.
    """

    state = "unreachable"

    def __init__(self, sentence: str, *, reason: str, mend: str = "") -> None:
        super().__init__(sentence, mend=mend)
        self.reason = reason


class NodeUnreachable(NodeError):
    """An Ollama node did not answer. Reasons: connect_failed, dns, timeout, reset, tls."""


class NodeLoading(NodeError):
    """A node lives but does not say what is resident: a load or an unload holds its lock."""

    state = "loading"


class NodeUnsupported(NodeError):
    """A server answers there, without `/api/ps`: too old, or another base path."""

    state = "unsupported"


class InvalidResponse(NodeError):
    """A node's answer is not what the Ollama API promises."""

    state = "invalid_response"


class ModelNotInstalled(NodeError):
    """The node answers, and has not that model."""

    state = "ok"


class WarmUpFailed(NodeError):
    """The node answers, and could not load the model."""

    state = "ok"


class OutcomeUnknown(Unreachable):
    """A write was sent and its answer was lost; it may have been done."""


class Broken(AibsError):
    """What was read cannot be true."""


class CorruptLog(Broken):
    """An entry of the log cannot be read as an event."""


class TruncatedLog(Broken):
    """The log no longer holds the part that was asked for."""


class TrimmedLog(TruncatedLog):
    """The log was trimmed past the point that its reader goes on from."""


class RewoundLog(TruncatedLog):
    """The log was set back: it ends, or goes on otherwise, before what its reader has read."""


class ReplacedLog(TruncatedLog):
    """The log is another one than its reader has read."""


class UnusableSnapshot(Broken):
    """A snapshot is incomplete or damaged, or of another log or release."""


class UnexpectedReply(Broken):
    """A script answered with a word that its caller does not know."""
