"""A reply, piece by piece: load, wait for a slot, evaluate the prompt, generate."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aibs.ollama.sim.replies import GenerationFailed, RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aibs.ollama.sim.node import SimNode
    from aibs.ollama.sim.spec import SimModel

RUNNER_FAILED = "an error was encountered while running the model: unexpected EOF"


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted of a model. `words` is the prompt's length."""

    model: SimModel
    options: dict[str, Any]
    keep_alive_ns: int | None
    words: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a reply, with its durations in nanoseconds."""

    reason: str
    total_ns: int
    load_ns: int
    prompt_ns: int
    eval_ns: int
    prompt_count: int
    eval_count: int


async def generate(node: SimNode, ask: Ask) -> AsyncGenerator[str | Ended, None]:
    """Tokens, then the end. Raises RequestError before the first, GenerationFailed at any time."""
    spec, name = node.spec, ask.model.display
    limit = ask.options.get("num_predict")
    wanted = limit if isinstance(limit, int) and limit > 0 else spec.reply_tokens
    count = min(wanted, spec.reply_tokens)
    began = time.monotonic_ns()
    node.stats.enter(name)
    try:
        async with node.scheduler.hold(ask.model, ask.options, ask.keep_alive_ns) as runner:
            loaded = time.monotonic_ns()
            async with runner.slots:
                completed = False
                node.stats.begin(name)
                try:
                    await asyncio.sleep(spec.prompt_seconds)
                    prompted = time.monotonic_ns()
                    for number in range(count):
                        _fail_at(node, number)
                        yield f"{' ' if number else ''}token{number + 1}"
                        await asyncio.sleep(spec.token_seconds)
                    _fail_at(node, count)
                    completed = True
                finally:
                    node.stats.end(name, completed=completed)
            ended = time.monotonic_ns()
    finally:
        node.stats.leave(name)
    yield Ended(
        reason="length" if count < spec.reply_tokens else "stop",
        total_ns=ended - began,
        load_ns=max(1, loaded - began),
        prompt_ns=max(1, prompted - loaded),
        eval_ns=max(1, ended - prompted),
        prompt_count=ask.words,
        eval_count=count,
    )


async def generate_whole(node: SimNode, ask: Ask) -> tuple[str, Ended]:
    """The text and the end, where no stream is asked for. Raises RequestError."""
    text = ""
    try:
        async for piece in generate(node, ask):
            if isinstance(piece, Ended):
                return text, piece
            text += piece
    except GenerationFailed as error:
        raise RequestError(500, str(error)) from error
    raise AssertionError("a generation ends with its end")


def _fail_at(node: SimNode, number: int) -> None:
    if node.faults.stream_error_after == number:
        raise GenerationFailed(RUNNER_FAILED)


async def embed(node: SimNode, ask: Ask, texts: list[str]) -> list[list[float]]:
    """A vector for each text; without a text the model is loaded and that is all."""
    name = ask.model.display
    node.stats.enter(name)
    try:
        async with node.scheduler.hold(ask.model, ask.options, ask.keep_alive_ns) as runner:
            if not texts:
                return []
            async with runner.slots:
                completed = False
                node.stats.begin(name)
                try:
                    await asyncio.sleep(node.spec.prompt_seconds)
                    _fail_at(node, 0)
                    completed = True
                finally:
                    node.stats.end(name, completed=completed)
    finally:
        node.stats.leave(name)
    return [_vector(text) for text in texts]


def _vector(text: str) -> list[float]:
    """Eight numbers of length 1, the same for the same text."""
    numbers = [1.0 + sum(text.encode()[position::8]) for position in range(8)]
    length = sum(number * number for number in numbers) ** 0.5
    return [number / length for number in numbers]
