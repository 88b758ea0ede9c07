"""One node, polled at a fixed rate: one poll at a time, a slot missed is a slot skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aibs import logs
from aibs.errors import AibsError
from aibs.monitor.observation import PollOutcome, observed, telemetry
from aibs.ollama.ownership import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aibs.clock import Clock
    from aibs.fleet import Node
    from aibs.ollama.ps import PsSnapshot
    from aibs.ollama.tags import InstalledModel

TAGS_MAX_AGE_MS = 300_000
"""How long the names installed on a node are believed: `ollama cp` and `rm` are rare."""

VERSION_MAX_AGE_MS = 300_000

EMPTY_MODELS = b"[]"


class NodeApi(Protocol):
    """What a poller asks of a node."""

    async def ps(self) -> PsSnapshot:
        """What is resident."""
        ...

    async def tags(self) -> tuple[InstalledModel, ...]:
        """What is installed."""
        ...

    async def version(self) -> str | None:
        """The server's version."""
        ...


class NodePoller:
    """Polls one node and hands each outcome over.

    `own_keys` has the roster: comparison key → worker ids; `keys` the way back. `phase_ms` shifts
    this node's slots so that a large fleet is not polled in one burst; its version is asked
    `version_after_ms` later.
    """

    def __init__(
        self,
        node: Node,
        api: NodeApi,
        own_keys: Mapping[str, tuple[str, ...]],
        keys: Mapping[str, str],
        clock: Clock,
        submit: Callable[[PollOutcome], None],
        *,
        fence: int,
        interval_ms: int,
        phase_ms: int,
        version_after_ms: int = 0,
    ) -> None:
        self._node = node
        self._api = api
        self._own_keys = own_keys
        self._keys = keys
        self._clock = clock
        self._submit = submit
        self._fence = fence
        self._interval_ms = interval_ms
        self._phase_ms = phase_ms
        self._version_after_ms = version_after_ms
        self._seq = 0
        self._own_digests: dict[str, tuple[str, ...]] = {}
        self._tags_at_ms: int | None = None
        self._digests_looked_up: frozenset[str] = frozenset()
        self._version: str | None = None
        self._version_at_ms: int | None = None
        self._log = logs.get("aibs.monitor.poller", node_id=node.node_id)
        self._last_reason = ""

    async def run(self) -> None:
        """Poll until cancelled."""
        first_slot_ms = self._clock.boottime_ms() + self._phase_ms
        slot = 0
        while True:
            now_ms = self._clock.boottime_ms()
            # A poll that outlived its slot skips the slots it covered: the rate never catches up.
            slot = max(slot, -(-(now_ms - first_slot_ms) // self._interval_ms))
            await self._clock.sleep(
                max(0, first_slot_ms + slot * self._interval_ms - now_ms) / 1000
            )
            slot += 1
            outcome = await self.poll()
            self._submit(outcome)
            # After the outcome is handed over: a version is for people, and delays no stamp.
            if outcome.good and outcome.begun_at_ms >= first_slot_ms + self._version_after_ms:
                await self._refresh_version(outcome.begun_at_ms)

    async def poll(self) -> PollOutcome:
        """One poll, whatever the node does."""
        self._seq += 1
        begun_at_ms = self._clock.boottime_ms()
        reason, models_json, telemetry_json, unaccounted, latency_ms = (
            "",
            EMPTY_MODELS,
            b"",
            False,
            0,
        )
        try:
            snapshot = await self._api.ps()
            latency_ms = self._clock.boottime_ms() - begun_at_ms
            await self._refresh_tags(snapshot, begun_at_ms)
            residency = classify(snapshot, self._own_keys, self._own_digests, self._node.memory)
            models_json, unaccounted = observed(residency, self._keys)
            telemetry_json = telemetry(
                self._node.node_id, residency, version=self._version, latency_ms=latency_ms
            )
        except AibsError as error:
            latency_ms = self._clock.boottime_ms() - begun_at_ms
            reason = getattr(error, "reason", "") or "unreadable"
            self._tell(reason, str(error))
        else:
            self._tell("", "")
        return PollOutcome(
            node_id=self._node.node_id,
            base_url=self._node.base_url,
            seq=self._seq,
            fence=self._fence,
            begun_at_ms=begun_at_ms,
            latency_ms=latency_ms,
            reason=reason,
            unaccounted=unaccounted,
            models_json=models_json,
            telemetry_json=telemetry_json,
        )

    def _tell(self, reason: str, error: str) -> None:
        """Log a change of the node's answer, not every poll."""
        if reason == self._last_reason:
            return
        if reason:
            self._log.warning("poll_failed", reason=reason, error=error)
        else:
            self._log.info("poll_good_again")
        self._last_reason = reason

    async def _refresh_tags(self, snapshot: PsSnapshot, now_ms: int) -> None:
        """Ask for the installed names when a resident digest could be ours under another name.

        One runner serves all names of a weights file and shows the first one only, so a roster
        model may be resident under an alias.
        """
        strangers = frozenset(
            model.digest
            for model in snapshot.models
            if model.digest and model.key not in self._own_keys
        )
        aged = self._tags_at_ms is None or now_ms - self._tags_at_ms > TAGS_MAX_AGE_MS
        if not strangers or (strangers <= self._digests_looked_up and not aged):
            return
        try:
            installed = await self._api.tags()
        except AibsError as error:
            # What cannot be shown to be ours stays foreign, which is charged; asked again.
            self._log.warning("tags_failed", error=str(error))
            return
        own: dict[str, tuple[str, ...]] = {}
        for model in installed:
            workers = self._own_keys.get(model.key) if model.key else None
            if workers and model.digest:
                own[model.digest] = tuple(sorted({*own.get(model.digest, ()), *workers}))
        self._own_digests = own
        self._tags_at_ms = now_ms
        self._digests_looked_up = strangers

    async def _refresh_version(self, now_ms: int) -> None:
        if self._version_at_ms is not None and now_ms - self._version_at_ms < VERSION_MAX_AGE_MS:
            return
        self._version_at_ms = now_ms
        try:
            self._version = await self._api.version()
        except AibsError:
            self._version = None
