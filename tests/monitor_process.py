"""Real `aibs monitor` processes with short times, and what their log must keep."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aibs.eventstore.commands import commands
from aibs.eventstore.connection import open_client
from aibs.eventstore.keys import Keys
from aibs.eventstore.log import Log
from aibs.eventstore.state import LiveState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from aibs.eventstore.events.envelope import Event

TTL_S = 1.5
STALENESS_MS = 5_000
FAST = {
    "AIBS_MODEL_CLUSTER_RESIDENCY_MONITOR_POLL_INTERVAL_SECONDS": "0.5",
    "AIBS_MODEL_CLUSTER_RESIDENCY_MONITOR_POLL_TIMEOUT_SECONDS": "0.3",
    "AIBS_MODEL_CLUSTER_RESIDENCY_MONITOR_LEASE_TTL_SECONDS": str(TTL_S),
    "AIBS_MODEL_CLUSTER_RESIDENCY_MONITOR_STANDBY_RETRY_SECONDS": "0.2",
    "AIBS_MODEL_CLUSTER_MAX_RESIDENCY_STALENESS_MS": str(STALENESS_MS),
}

ROSTER = (
    '[{"worker_id":"answer","model":"llama3:8b","roles":["answer"],"kind":"chat",'
    '"resident_weight_gb":7,"active_parameter_billions":8}]'
)
LOOK_EVERY_S = 0.02
PATIENCE_S = 25.0
"""Far beyond every bound of the protocol: only a hang reaches it."""

WRITES_OF_AN_OWNER = frozenset({"OwnerElected", "FleetDeclared", "ResidencyObserved"})


def environment(url: str, namespace: str, nodes: Mapping[str, str]) -> dict[str, str]:
    """A monitor's settings; `nodes` maps ids to URLs."""
    return {
        **FAST,
        "AIBS_VALKEY_URL": url,
        "AIBS_MODEL_CLUSTER_NAMESPACE": namespace,
        "AIBS_MODEL_CLUSTER_NODE_IDS": ",".join(nodes),
        "AIBS_MODEL_CLUSTER_NODE_URLS": ",".join(nodes.values()),
        "AIBS_MODEL_ADMISSION_WORKER_ROSTER": ROSTER,
        "AIBS_LOG_FORMAT": "json",
    }


class MonitorProcess:
    """One monitor. Killed, whatever state it is in, at the end of its block."""

    def __init__(self, settings: Mapping[str, str], directory: Path, name: str) -> None:
        self._settings = settings
        self._directory = directory
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "aibs", "monitor"],
                env={**os.environ, **self._settings},
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        assert "Traceback" not in self.output(), self.output()

    @property
    def running(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def output(self) -> str:
        """What it logged."""
        return self._log.read_text("utf-8", "replace")

    async def ended(self) -> int:
        """Wait until it ended by itself."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, PATIENCE_S)

    def owns(self, event: Event) -> bool:
        """Whether this process wrote the event."""
        return f":{self.pid}:" in event.actor


@dataclass(frozen=True)
class Pool:
    """A pool as a test watches it."""

    log: Log
    live: LiveState

    async def events(self) -> list[Event]:
        return [event async for event in self.log.read()]

    async def until(self, condition: Callable[[list[Event]], bool], what: str) -> list[Event]:
        """The log once the condition holds."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    events = await self.events()
                    if condition(events):
                        return events
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            shown = [(e.seq, e.type, e.fence, e.actor) for e in await self.events()]
            raise AssertionError(f"never: {what}; the log: {shown}") from None

    async def owner_of(self, process: MonitorProcess, above: int = 0) -> Event:
        """The election of that process with a fence above the given one."""
        events = await self.until(
            lambda events: any(_elected(e, process, above) for e in events),
            f"pid {process.pid} elected with a fence above {above}",
        )
        return next(e for e in reversed(events) if _elected(e, process, above))

    async def observed_under(self, fence: int, node_ids: Iterable[str]) -> list[Event]:
        """The log once each node was observed under that fence."""
        wanted = set(node_ids)
        return await self.until(
            lambda events: (
                wanted
                <= {
                    e.data["node_id"]
                    for e in events
                    if e.type == "ResidencyObserved" and e.fence == fence
                }
            ),
            f"{sorted(wanted)} observed under fence {fence}",
        )


def _elected(event: Event, process: MonitorProcess, above: int) -> bool:
    return (
        event.type == "OwnerElected"
        and process.owns(event)
        and event.fence is not None
        and event.fence > above
    )


async def watch(
    url: str, namespace: str, directory: Path
) -> tuple[Pool, Callable[[], Awaitable[None]]]:
    """The pool, and what closes its client."""
    client = commands(await open_client(url, data_dir=directory, purpose="read"))
    keys = Keys(namespace)
    return Pool(Log(client, keys), LiveState(client, keys)), client.aclose


def assert_safe(events: Iterable[Event]) -> None:
    """What no failure may break: no fence twice, none interleaved, no hole."""
    elected: list[int] = []
    last_seq = 0
    for event in events:
        if event.type == "PoolCreated":
            last_seq = event.seq - 1
        assert event.seq == last_seq + 1, f"hole before {event}"
        last_seq = event.seq
        if event.type == "OwnerElected":
            assert event.fence is not None
            assert all(event.fence > earlier for earlier in elected), f"{event} repeats {elected}"
            elected.append(event.fence)
        elif event.type in WRITES_OF_AN_OWNER or event.type == "NodeHealthChanged":
            assert event.fence == elected[-1], f"{event} under another fence than {elected[-1]}"
