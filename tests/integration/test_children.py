"""Children: heard to their last line, ended whatever state they are in, gone with their parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time

from aibs.children.child import LINE_BYTES_MAX, Child
from aibs.children.leash import TIED
from tests.integration.in_loop import in_loop, until

SIM = ("node", "sim", "--vram-gb", "90", "--model", "llama3:8b=7GB")
GIVE_UP_S = 30.0


def child(*arguments: str, grace_s: float = 20, heard: list[str] | None = None) -> Child:
    lines: list[str] = [] if heard is None else heard
    return Child("sim", arguments or SIM, dict(os.environ), grace_s=grace_s, hear=lines.append)


def alive(pid: int) -> bool:
    shown = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(shown) and not shown.startswith("Z")


@in_loop
async def test_each_line_is_heard_and_the_last_ones_are_kept_for_an_error() -> None:
    heard: list[str] = []
    async with child("node", "sim", "--vram-gb", "much", heard=heard) as one:
        assert await one.wait() == 2
    assert any("much" in line for line in heard)
    assert heard[-1] in one.last_words()
    assert one.status == 2
    assert not one.killed


@in_loop
async def test_it_ends_in_good_order_at_the_end_of_its_block() -> None:
    heard: list[str] = []
    async with child(heard=heard) as one:
        await until(lambda: bool(heard))
        assert one.running
    assert (one.status, one.killed) == (0, False)


@in_loop
async def test_one_that_was_stopped_is_woken_to_end_in_good_order() -> None:
    heard: list[str] = []
    async with child(heard=heard) as one:
        await until(lambda: bool(heard))
        one.signal(signal.SIGSTOP)
    assert (one.status, one.killed) == (0, False)


@in_loop
async def test_one_that_does_not_end_in_its_time_is_killed() -> None:
    heard: list[str] = []
    async with child(grace_s=0, heard=heard) as one:
        await until(lambda: bool(heard))
    assert one.killed
    assert not alive(one.pid)


@in_loop
async def test_an_interrupted_end_leaves_nothing() -> None:
    heard: list[str] = []
    one = child(heard=heard)
    await one.__aenter__()
    await until(lambda: bool(heard))
    one.signal(signal.SIGSTOP)
    ending = asyncio.create_task(one.end())
    await asyncio.sleep(0)
    ending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ending
    assert await one.wait() == -signal.SIGKILL


@in_loop
async def test_a_line_without_end_takes_no_more_memory_than_its_bound() -> None:
    heard: list[str] = []
    one = child(heard=heard)
    reader = asyncio.StreamReader()
    reader.feed_data(b"short\n" + b"x" * (3 * LINE_BYTES_MAX) + b"\nlast")
    reader.feed_eof()
    await one._listen(reader)
    assert (heard[0], heard[-1]) == ("short", "last")
    assert max(map(len, heard)) <= 2 * LINE_BYTES_MAX
    assert sum(map(len, heard[1:-1])) == 3 * LINE_BYTES_MAX


# --- the child's side


def tied(script: str, grace_s: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", f"from aibs.children.leash import tie; tie(); {script}"],
        env={**os.environ, TIED: str(grace_s)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def begun(script: str, grace_s: float) -> subprocess.Popen[bytes]:
    """One that has printed its first line."""
    process = tied(script, grace_s)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def left_alone(process: subprocess.Popen[bytes]) -> int:
    """Close its pipes, as the parent's death does. How it ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    process.stdin.close()
    try:
        return process.wait(GIVE_UP_S)
    finally:
        process.kill()


def test_a_child_that_hears_nobody_any_more_ends_as_if_it_had_been_told() -> None:
    process = begun("print(1, flush=True); import time; time.sleep(60)", grace_s=20)
    assert left_alone(process) == -signal.SIGTERM


def test_a_child_that_does_not_end_when_it_is_left_alone_kills_itself() -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(1, flush=True); time.sleep(60)"
    )
    began_s = time.monotonic()
    assert left_alone(begun(stubborn, grace_s=0.2)) == -signal.SIGKILL
    assert time.monotonic() - began_s < GIVE_UP_S


def test_a_child_that_is_left_alone_may_still_write_where_nobody_reads() -> None:
    script = (
        "import os, signal; "
        "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'x'), os._exit(7))); "
        "print(1, flush=True); signal.pause()"
    )
    assert left_alone(begun(script, grace_s=20)) == 7


def test_only_who_is_told_to_is_tied_and_its_own_children_are_not() -> None:
    process = tied(f"import os; print(os.environ.get({TIED!r}), flush=True); input()", grace_s=20)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"None"
    left_alone(process)
