"""The whole test: every step in its order, and what is left of it afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aibs.audit.service import AuditOptions, audit, exit_status
from aibs.clock import SystemClock
from aibs.codec import rfc3339
from aibs.errors import ConfigurationError
from aibs.proofs.smoke.document import SCHEMA, SmokeDocument
from aibs.proofs.smoke.steps import Steps
from aibs.proofs.smoke.verdict import judge_audit, not_run
from aibs.reports.moment import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from aibs.proofs.smoke.document import StepName
    from aibs.proofs.smoke.gateway import Gateway
    from aibs.settings import Settings

AFTER_AUDIT: tuple[StepName, ...] = (
    "narrow",
    "broad",
    "concurrent_broad",
    "cancelled",
    "no_leaks",
)


@dataclass(frozen=True, slots=True)
class Tested:
    """The document, and whether it says no because something could not be reached."""

    document: SmokeDocument
    unreachable: bool


async def smoke(settings: Settings, gateway: Gateway, tell: Callable[[str], None]) -> Tested:
    """Run the test. `tell` gets a line as each step begins and ends.

    Raises GatewayAway, CoordinationUnavailable, ConfigurationError (a key is wanted, no roster).
    """
    if not settings.fleet().workers:
        raise ConfigurationError(
            "AIBS_MODEL_ADMISSION_WORKER_ROSTER is empty: there is nothing to ask for.",
            mend="List the models there.",
        )
    local = await gateway.check()
    clock = SystemClock()
    tell("audit ...")
    audited = await audit(settings, AuditOptions(), clock, stop=asyncio.Event(), tell=tell)
    steps = [judge_audit(audited, local_at=gateway.url if local else None)]
    if steps[0].passed:
        async with open_reader(settings) as reader:
            steps += await Steps(settings, gateway, reader, clock, tell).run()
    else:
        steps += [not_run(name, "the audit says no") for name in AFTER_AUDIT]
    document = SmokeDocument(
        schema=SCHEMA,
        generated_at=rfc3339(clock.wall_ms()),
        passed=all(step.passed for step in steps),
        url=gateway.url,
        namespace=settings.model_cluster_namespace,
        fingerprint=settings.fleet().fingerprint,
        steps=steps,
    )
    return Tested(document, unreachable=not steps[0].passed and exit_status(audited) == 3)
