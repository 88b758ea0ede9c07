"""What `aibs up` says to the person who started it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aibs.eventstore.endpoint import redact
from aibs.up.plan import ENABLED, SINGLE_HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aibs.up.plan import Plan

TO_LOOK = ("aibs status", "aibs leaks", "aibs replay --follow")


def beginning(plan: Plan) -> Iterator[str]:
    """What runs where."""
    settings = plan.settings
    fleet = settings.fleet()
    yield "On this machine:"
    if plan.embedded:
        yield f"  Valkey   embedded, its data in {Path(settings.data_dir).absolute()}"
    else:
        yield f"  Valkey   {redact(settings.model_pool_url)} (not started here)"
    yield f"  monitor  of {', '.join(node.node_id for node in fleet.nodes)}"
    yield f"  gateway  {plan.url}"
    for name in plan.overruled:
        yield f"{name} is {plan.own[name]} for them: one machine runs everything here."


def ready(plan: Plan) -> Iterator[str]:
    """How to use it, once it can place."""
    models = dict.fromkeys(worker.model for worker in plan.settings.fleet().workers)
    yield f"Ready. Models: {', '.join(models)}."
    yield f"  export OLLAMA_HOST={plan.url}"
    yield f"  export OPENAI_BASE_URL={plan.url}/v1"
    yield f"To look around, in another terminal: {', '.join(TO_LOOK)}."
    unset = [f"{name}={plan.own[name]}" for name in (ENABLED, SINGLE_HOST) if name in plan.own]
    if unset:
        yield f"To test it: {' '.join(unset)} aibs smoke --url {plan.url}"


def ending(*, clean: bool) -> str:
    """How it ended."""
    if clean:
        return "Stopped: every lease and the term were given back."
    return "Stopped; not every child ended in good order: its leases end by their deadlines."
