"""`aibs node sim` as a process: what it prints, how it ends, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = (sys.executable, "-m", "aibs", "node", "sim")
GIVE_UP_S = 60.0


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the line that it prints when it is ready."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], GIVE_UP_S)
        assert ready, "it did not get ready"
        yield process, process.stdout.readline().rstrip("\n")
    finally:
        process.kill()
        process.communicate()


def finished(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=GIVE_UP_S, check=False
    )


def get(url: str) -> Any:
    return httpx.get(url, timeout=30, trust_env=False).json()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_its_url_serves_what_was_asked_and_ends_cleanly(number: signal.Signals) -> None:
    with started(
        *("--port", "0", "--vram-gb", "90", "--model", "llama3:70b=43GB"),
        *("--embedding", "bge-m3=1.2", "--alias", "big=llama3:70b", "--loaded", "llama3:70b"),
        *("--profile", "0.12"),
    ) as (process, line):
        assert line.startswith("http://127.0.0.1:")
        assert get(f"{line}/api/version") == {"version": "0.12.6"}
        (resident,) = get(f"{line}/api/ps")["models"]
        assert (resident["name"], resident["size_vram"]) == ("llama3:70b", 43_000_000_000)
        installed = [entry["name"] for entry in get(f"{line}/api/tags")["models"]]
        assert installed == ["llama3:70b", "bge-m3:latest", "big:latest"]
        process.send_signal(number)
        out, err = process.communicate(timeout=GIVE_UP_S)
        assert (process.returncode, out, err) == (0, "", "")


def test_a_signal_ends_it_in_the_middle_of_a_load() -> None:
    with started("--vram-gb", "90", "--model", "m=1", "--load-seconds", "600") as (process, url):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
            body = b'{"model":"m"}'
            client.sendall(
                b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            while get(f"{url}/_sim/stats")["resident"] != ["m:latest"]:
                pass
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=GIVE_UP_S)
        assert (process.returncode, err) == (0, "")


def test_json_names_every_node_in_one_document() -> None:
    with started("--vram-gb", "8", "--count", "3", "--json") as (_, line):
        document = json.loads(line)
        assert document["schema"] == "aibs.node.sim/1"
        assert len(document["urls"]) == 3
        assert [get(f"{url}/api/ps") for url in document["urls"]] == [{"models": []}] * 3


def test_several_nodes_are_one_line_with_the_first_and_the_last() -> None:
    with started("--vram-gb", "8", "--count", "1000") as (_, line):
        first, _, last = line.partition(" to ")
        assert first.endswith("/n/0")
        assert last.endswith("/n/999")
        assert get(f"{last}/api/ps") == {"models": []}


def test_the_fault_die_ends_the_process_as_a_kill_does() -> None:
    with started("--vram-gb", "8") as (process, url):
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{url}/_sim/faults", json={"die": True}, trust_env=False, timeout=30)
        assert process.wait(GIVE_UP_S) == -signal.SIGKILL


def test_a_port_in_use_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = finished("--vram-gb", "8", "--port", port)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"aibs: Port {port} on 127.0.0.1 is in use.")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--vram-gb", "much"), "--vram-gb: 'much' is not a size"),
        (("--vram-gb", "8", "--model", "llama3"), "--model: 'llama3' is not NAME=SIZE"),
        (("--vram-gb", "8", "--alias", "a=b"), "--alias: b is no model of this node"),
        (("--vram-gb", "8", "--profile", "new"), "--profile: 'new' is not a version"),
        (("--vram-gb", "8", "--host", "no-such-host.invalid"), "--host: no-such-host.invalid"),
        (("--vram-gb", "8", "--host", "203.0.113.9"), "203.0.113.9 cannot be had"),
    ],
)
def test_a_word_that_cannot_be_is_one_line_and_exit_2(
    arguments: tuple[str, ...], said: str
) -> None:
    result = finished(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("--vram-gb", "8", "--port", "70000")])
def test_a_missing_or_impossible_option_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    result = finished(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    assert "--vram-gb" in result.stderr or "--port" in result.stderr


def test_its_help_has_an_example() -> None:
    result = subprocess.run(
        [*COMMAND, "--help"],
        capture_output=True,
        text=True,
        timeout=GIVE_UP_S,
        check=True,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
    )
    assert "aibs node sim --port" in result.stdout
    assert "--model" in result.stdout
