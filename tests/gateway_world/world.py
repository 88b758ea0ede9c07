"""Nodes, a pool and gateways together, for the tests of one module or of one alone."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from aibs.codec import dumps_text
from aibs.ollama.sim import SimModel, SimServer, SimSpec
from tests.gateway_world.evidence import Evidence
from tests.gateway_world.patience import PATIENCE_S, until
from tests.gateway_world.raw_node import RawNode
from tests.gateway_world.serve_process import ServeProcess
from tests.gateway_world.yard import Yard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from aibs.ollama.sim.node import SimNode

GB: Final = 10**9

SETTINGS: Final = {
    "MODEL_CLUSTER_ENABLED": "true",
    "MODEL_CLUSTER_RESIDENCY_MONITOR_RUN_IN_API": "true",
    "MODEL_CLUSTER_RESIDENCY_MONITOR_POLL_INTERVAL_SECONDS": "0.5",
    "MODEL_CLUSTER_RESIDENCY_MONITOR_POLL_TIMEOUT_SECONDS": "1",
    "MODEL_CLUSTER_RESIDENCY_MONITOR_LEASE_TTL_SECONDS": "3",
    "MODEL_CLUSTER_RESIDENCY_MONITOR_STANDBY_RETRY_SECONDS": "0.2",
    "MODEL_CLUSTER_MAX_RESIDENCY_STALENESS_MS": "20000",
    "MODEL_CLUSTER_ACTIVE_LEASE_TTL_SECONDS": "30",
    "MODEL_CLUSTER_HEARTBEAT_INTERVAL_SECONDS": "2",
    "MODEL_CLUSTER_DRAIN_SECONDS": "0.5",
    "MODEL_CLUSTER_SINGLE_HOST": "true",
    "MODEL_CLUSTER_NAMESPACE": "fleet",
    "LOG_FORMAT": "json",
}
"""Short times, with room for a machine that has other things to do."""


@dataclass(frozen=True)
class Box:
    """A node: simulated, or with `scripted` one that plays bytes. `sim` are fields of SimSpec."""

    node_id: str
    models: tuple[SimModel, ...]
    slots: int = 4
    budget_gb: int = 60
    scripted: bool = False
    sim: Mapping[str, Any] = field(default_factory=dict)


class World:
    """`roster` and `affinity` are the settings' own documents."""

    def __init__(
        self,
        directory: Path,
        valkey_url: str,
        boxes: Sequence[Box],
        roster: Sequence[Mapping[str, Any]],
        *,
        affinity: Mapping[str, Sequence[str]] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.valkey_url = valkey_url
        self.namespace = f"test-{secrets.token_hex(6)}"
        self.yard = Yard()
        self.evidence = Evidence(valkey_url, self.namespace)
        self._boxes = tuple(boxes)
        self._roster = list(roster)
        self._affinity = dict(affinity or {})
        self._own = dict(settings or {})
        self._urls: dict[str, str] = {}
        self._sims: dict[str, SimServer] = {}
        self._scripted: dict[str, RawNode] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self.evidence.close)
        self._stack.callback(self.evidence.forget)
        self._stack.enter_context(self.yard)
        for box in self._boxes:
            if box.scripted:
                names = [model.display for model in box.models]
                size = box.models[0].size_bytes
                node = self.yard.enter(RawNode(names, size))
                self._scripted[box.node_id] = node
                self._urls[box.node_id] = node.url
            else:
                spec = SimSpec(
                    box.node_id, 2 * box.budget_gb * GB, box.models, **{**_SIM, **box.sim}
                )
                server = self.yard.enter(SimServer([spec]))
                self._sims[box.node_id] = server
                self._urls[box.node_id] = server.url()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def settings(self, **changed: str) -> dict[str, str]:
        """The environment of its processes, variables without their prefix changed."""
        fleet = {
            "VALKEY_URL": self.valkey_url,
            "DATA_DIR": str(self.directory / "data"),
            "MODEL_CLUSTER_NODE_IDS": ",".join(box.node_id for box in self._boxes),
            "MODEL_CLUSTER_NODE_URLS": ",".join(self._urls.values()),
            "MODEL_CLUSTER_NODE_VRAM_GB": ",".join(str(box.budget_gb) for box in self._boxes),
            "MODEL_CLUSTER_NODE_MAX_PARALLEL_REQUESTS": ",".join(
                str(box.slots) for box in self._boxes
            ),
            "MODEL_ADMISSION_WORKER_ROSTER": dumps_text(self._roster),
            "MODEL_CLUSTER_ROLE_AFFINITY_JSON": dumps_text(self._affinity),
        }
        named = {"MODEL_CLUSTER_NAMESPACE": self.namespace}
        whole = {**SETTINGS, **fleet, **named, **self._own, **changed}
        return {f"AIBS_{name}": value for name, value in whole.items()}

    @staticmethod
    def clean_environment() -> dict[str, str]:
        """This process's, without a developer's own settings."""
        return {k: v for k, v in os.environ.items() if not k.startswith("AIBS_")}

    def serve(
        self,
        name: str = "gateway",
        arguments: Sequence[str] = (),
        *,
        expected: Sequence[str] = (),
        module: str = "aibs",
        **settings: str,
    ) -> ServeProcess:
        """A gateway, to be entered."""
        return ServeProcess(
            self.settings(**settings),
            self.directory,
            name,
            arguments,
            expected=expected,
            module=module,
        )

    def wait_seen(self, after: int = 0) -> None:
        """Until every node was observed, so that requests are placed without a wait."""
        wanted = set(self._urls)

        def seen() -> bool:
            events = self.evidence.events("ResidencyObserved", after=after)
            return wanted <= {event.data["node_id"] for event in events}

        until(seen, "every node observed")

    def sim(self, node_id: str) -> SimNode:
        """A simulated node: to be read from anywhere, to be changed by `inject`."""
        return self._sims[node_id].node()

    def inject(self, node_id: str, **faults: Any) -> None:
        """Faults for a simulated node; none heals it."""
        node = self.sim(node_id)
        self.yard.call(lambda: node.inject(**faults) if faults else node.heal())

    def scripted(self, node_id: str) -> RawNode:
        """A scripted node."""
        return self._scripted[node_id]

    def url_of(self, node_id: str) -> str:
        """A node's own base URL."""
        return self._urls[node_id]

    def wait_idle(self, within_s: float = PATIENCE_S) -> None:
        """Until no lease lives and nobody waits."""
        until(
            lambda: self.evidence.active() == 0 and self.evidence.waiting() == 0,
            "no lease and no waiter",
            within_s,
        )


_SIM: Final = {"num_parallel": 16, "max_loaded": 8}
"""More than the slots of a box: what exceeds them is counted, and does not queue unseen."""
