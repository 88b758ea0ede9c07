"""The demo as a newcomer runs it, and what it leaves behind: nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from pathlib import Path

LONG_S = 90


def _start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    # A short path: a unix socket's name has room for about a hundred characters.
    return subprocess.Popen(
        [sys.executable, "-m", "aibs", "demo", *arguments],
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            # A real pool's address in the environment is none of the demo's business.
            "AIBS_MODEL_CLUSTER_VALKEY_URL": "redis://127.0.0.1:1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    pytest.fail(f"it ended by itself: {lines}")


def _processes_naming(text: str) -> list[str]:
    shown = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in shown.stdout.splitlines() if text in line and " -ww " not in line]


def _assert_nothing_left(tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 10
    while left := _processes_naming(str(tmp_path)):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_the_demo_shows_audit_takeover_and_requests_and_ends_by_itself(tmp_path: Path) -> None:
    process = _start(tmp_path, "--exit")
    output, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, output
    assert "READY for the global scheduler" in output
    assert "Monitor B took over" in output
    answered = [line for line in output.splitlines() if "answered after" in line]
    one_by_one, at_once = answered[:4], answered[4:]
    for line, path in zip(
        one_by_one, ("/api/chat", "/api/chat", "/api/embed", "/v1/chat/completions"), strict=True
    ):
        assert f" {path} " in line
    assert "pieces" in one_by_one[1]
    queued = [int(re.findall(r"queued +(\d+) ms", line)[0]) for line in at_once]
    assert len(queued) == 4
    assert sum(waited_ms > 100 for waited_ms in queued) == 2
    for line in answered:
        lease = re.findall(r"lease ([0-9a-f]{8})", line)[0]
        assert f"as {lease}" in output, "the log has the lease that the answer's header names"
    assert {"box-c", "box-e"} == {name for name in ("box-c", "box-e") if name in "".join(at_once)}
    owners = [line for line in output.splitlines() if "OwnerElected" in line]
    assert len(owners) == 2
    assert "fence 2" in owners[1]
    assert "Traceback" not in output
    _assert_nothing_left(tmp_path)


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.4, 1.0, 2.5, 4.0])
def test_ctrl_c_at_any_moment_of_the_demo_leaves_nothing_behind(
    tmp_path: Path, after_s: float
) -> None:
    process = _start(tmp_path)
    deadline = time.monotonic() + LONG_S
    while not list(tmp_path.iterdir()):  # its first trace; before it there is nothing to undo
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=LONG_S)
    # Once everything was shown, Ctrl-C is its good end.
    shown = "The demo goes on until Ctrl-C" in output
    assert process.returncode == (0 if shown else 130), output
    assert "Traceback" not in output
    _assert_nothing_left(tmp_path)


def test_the_demo_goes_on_until_ctrl_c_which_is_its_good_end(tmp_path: Path) -> None:
    process = _start(tmp_path)
    lines = _read_until(process, "until Ctrl-C")
    url = next(line.split("=")[1] for line in lines if "export OLLAMA_HOST=" in line).strip()
    assert "qwen3:32b" in httpx.get(f"{url}/api/tags", timeout=LONG_S, trust_env=False).text
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, output
    _assert_nothing_left(tmp_path)


def test_no_process_outlives_a_demo_that_was_killed(tmp_path: Path) -> None:
    process = _start(tmp_path)
    _read_until(process, "until Ctrl-C")
    process.kill()
    process.communicate(timeout=LONG_S)
    deadline = time.monotonic() + LONG_S
    while left := _processes_naming(str(tmp_path)):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
