"""The process tree: the server held, the children kept alive, everything ended in its order."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from aibs import logs
from aibs.children.child import Child
from aibs.errors import AibsError
from aibs.eventstore.embedded import EmbeddedValkey
from aibs.up.restarts import Restarts

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from aibs.clock import Clock
    from aibs.up.plan import Plan

MONITOR_GRACE_S = 10.0
GATEWAY_MARGIN_S = 10.0
"""What the gateway gets beside its own time to drain: releases, and a slow server."""

SERVER_LOOK_EVERY_S = 1.0

IN_GOOD_ORDER = (0, -signal.SIGTERM)
"""The latter: told so early that it held nothing yet."""


class ChildGivenUp(AibsError):
    """A child ended again and again, or cannot run with these settings."""

    def __init__(self, sentence: str, status: int, *, mend: str = "") -> None:
        super().__init__(sentence, mend=mend)
        # 2 and 3 are the child's own word for what is wrong; a signal's number says nothing here.
        self.exit_status = status if status in (2, 3) else 1


class Tree:
    """The running tree: enter it, `run` until told or given up, leave it; nothing remains."""

    def __init__(self, plan: Plan, clock: Clock, hear: Callable[[str, str], None]) -> None:
        self._plan = plan
        self._clock = clock
        self._hear = hear
        self._stack = AsyncExitStack()
        self._log = logs.get("aibs.up")
        self._server: EmbeddedValkey | None = None
        self.children: dict[str, Child] = {}
        self.clean = True
        """Whether every child ended in good order."""

    async def __aenter__(self) -> Self:
        try:
            if self._plan.embedded:
                self._server = await EmbeddedValkey.ensure(Path(self._plan.settings.data_dir))
                self._stack.push_async_callback(self._server.close)
            # Left in the opposite order: the gateway first.
            for name in ("monitor", "gateway"):
                self._stack.push_async_callback(self._end, name)
                await self._start(name)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def run(self) -> None:
        """Keep the children alive, until cancelled. Raises ChildGivenUp."""
        try:
            async with asyncio.TaskGroup() as group:
                for name in self.children:
                    group.create_task(self._keep(name), name=f"keeper of {name}")
                if self._server is not None:
                    group.create_task(self._keep_server(self._server), name="keeper of the server")
        except* ChildGivenUp as failures:
            # One sentence is enough: the other child was well, or died of the same.
            raise failures.exceptions[0] from None

    def kill(self) -> None:
        """End every child at once, without a chance to give anything back."""
        for child in self.children.values():
            child.kill()

    async def _keep_server(self, server: EmbeddedValkey) -> None:
        """The children start it again too; it is ours to stop in good order, so we hold it."""
        while True:
            await self._clock.sleep(SERVER_LOOK_EVERY_S)
            try:
                await server.revive()
            except AibsError as error:
                self._log.error("server_not_back", error=str(error))

    async def _keep(self, name: str) -> None:
        restarts = Restarts()
        while True:
            begun_ms = self._clock.boottime_ms()
            child = self.children[name]
            status = await child.wait()
            ran_s = (self._clock.boottime_ms() - begun_ms) / 1000
            pause_s = restarts.after(status, ran_s)
            if pause_s is None:
                raise _given_up(child, status, restarts.in_a_row)
            self._log.warning(
                "child_ended",
                child=name,
                how=how_it_ended(status),
                ran_s=round(ran_s, 1),
                again_in_s=pause_s,
            )
            await self._clock.sleep(pause_s)
            await child.end()
            await self._start(name)

    async def _start(self, name: str) -> None:
        settings = self._plan.settings
        arguments, grace_s = {
            "monitor": (("monitor",), MONITOR_GRACE_S),
            "gateway": (
                ("serve", "--workers", str(self._plan.workers)),
                settings.api_drain_seconds + GATEWAY_MARGIN_S,
            ),
        }[name]
        child = Child(
            name,
            arguments,
            self._plan.environment,
            grace_s=grace_s,
            hear=lambda line: self._hear(name, line),
        )
        self.children[name] = await child.__aenter__()
        self._log.info("child_started", child=name, pid=child.pid)

    async def _end(self, name: str) -> None:
        child = self.children.get(name)
        if child is None:
            return
        was_running = child.running
        await child.end()
        if was_running:
            status = child.status
            assert status is not None
            self.clean = self.clean and not child.killed and status in IN_GOOD_ORDER
            self._log.info("child_stopped", child=name, how=how_it_ended(status))


def how_it_ended(status: int) -> str:
    """`exit status 1`, `signal 9`."""
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _given_up(child: Child, status: int, deaths: int) -> ChildGivenUp:
    often = f", {deaths} times in a row," if deaths > 1 else ""
    return ChildGivenUp(
        f"The {child.name} ended with {how_it_ended(status)}{often} and is not started again: "
        f"{child.last_words()}.",
        status,
    )
