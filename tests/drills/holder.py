"""A process that holds leases: tasks that ask, load, generate and give back, until told to stop.

Prints one JSON line for each request: how it ended. Settings from the environment; arguments: how
many tasks, and the models to ask for.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time

import httpx

from aibs import settings
from aibs.errors import AibsError, LeaseLost, PlacementDenied
from aibs.placement import Placer, open_placer

WAIT_S = 4.0


def say(**fields: object) -> None:
    """One line; a reader that left ends nothing."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def one_request(placer: Placer, client: httpx.AsyncClient, model: str) -> str:
    """Place, load, generate, give back. How it ended."""
    try:
        async with placer.lease(model=model, timeout=WAIT_S) as lease:
            await lease.prepare()
            answer = await client.post(
                f"{lease.node_base_url}/api/generate",
                json={"model": lease.model, "prompt": "hello", "stream": False},
            )
            return f"served {answer.status_code}"
    except PlacementDenied as error:
        return f"denied {error.reason}"
    except LeaseLost:
        return "lost"
    except (AibsError, httpx.HTTPError) as error:
        return f"failed {type(error).__name__}"


async def work(placer: Placer, models: list[str], stop: asyncio.Event) -> None:
    """One task's requests, one after the other."""
    async with httpx.AsyncClient(timeout=30) as client:
        while not stop.is_set():
            began = time.monotonic()
            outcome = await one_request(placer, client, random.choice(models))
            say(outcome=outcome, took_ms=round((time.monotonic() - began) * 1000))
            await asyncio.sleep(random.random() * 0.05)


async def main() -> None:
    """Until SIGTERM: then every task ends the request that it has."""
    tasks, models = int(sys.argv[1]), sys.argv[2:]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_placer(settings.load()) as placer, asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(work(placer, models, stop))


if __name__ == "__main__":
    asyncio.run(main())
