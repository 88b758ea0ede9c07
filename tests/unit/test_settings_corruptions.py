"""Each single corruption of each setting: one clear fault that names it, and exit status 2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aibs.cli import app as app_module
from aibs.errors import ConfigurationError
from aibs.settings import load
from aibs.settings.fields import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

C = "AIBS_MODEL_CLUSTER_"
M = f"{C}RESIDENCY_MONITOR_"
ROSTER = "AIBS_MODEL_ADMISSION_WORKER_ROSTER"

BASE = {
    f"{C}NODE_IDS": "box-c,box-e",
    f"{C}NODE_URLS": "http://10.4.3.16:11434,http://10.4.3.17:11434",
    f"{C}NODE_VRAM_GB": "90,104",
    f"{C}NODE_MAX_PARALLEL_REQUESTS": "1,1",
    ROSTER: '[{"worker_id":"answer","model":"llama3:8b","roles":["answer"],"kind":"chat",'
    '"resident_weight_gb":7,"active_parameter_billions":8}]',
}

NOT_SECONDS = ("x", "0", "-1", "nan", "inf", "1e99", "3 s", "0.0001")
NOT_SECONDS_OR_ZERO = ("x", "-1", "nan", "inf")
NOT_WHOLE = ("x", "1.5", "-1", "0", "99999999999999999999999")
NOT_BOOLEAN = ("maybe", "2", "tru")
NOT_URL = (
    *("x", "http://10.4.3.2:6379", "redis://", "redis://h:99999", "redis://h/x", "unix://"),
    *("unix://run/s", "redis://a,b", "redis+cluster://a/1", "redis+sentinel://a", "redis:/h"),
    *("redis://u:secret/x@h", "redis://u:1#secret@h", "redis://u:1?secret@h", "redis://u:secret"),
    *("redis://h?password=secret", "redis://h?sentinel_password=a&secret", "redis://h\x1b[31m"),
)
NOT_NAME = ("a b", "-a", "{x}", "a" * 65, "ä")


def _worker(**fields: str) -> str:
    worker = {"worker_id": '"a"', "model": '"m"', **fields}
    return "[{" + ",".join(f'"{name}":{value}' for name, value in worker.items()) + "}]"


CORRUPTIONS: dict[str, tuple[str, ...]] = {
    "AIBS_COORDINATION_BACKEND": ("redis", "x"),
    "AIBS_VALKEY_URL": NOT_URL,
    "AIBS_NAMESPACE": NOT_NAME,
    "AIBS_DATA_DIR": (__file__, "a" * 5000, "~nobody-has-this-name/x"),
    ROSTER: (
        "{",
        "{}",
        "[1]",
        "null",
        "[{}]",
        '[{"worker_id":"a"}]',
        _worker(worker_id='"a b"'),
        _worker(model='"llama3@sha256:x"'),
        _worker(model='"gpt-oss:120b-cloud"'),
        _worker(model='"llama3:8b:local"'),
        _worker(model="7"),
        _worker(kind='"speech"'),
        _worker(roles='"answer"'),
        _worker(roles='["a","a"]'),
        _worker(resident_weight_gb="-1"),
        _worker(resident_weight_gb="0"),
        _worker(resident_weight_gb='"x"'),
        _worker(resident_weight_gb="true"),
        _worker(active_parameter_billions="-8"),
        _worker(num_ctx="0"),
        _worker(num_ctx="1.5"),
        _worker(keep_alive='"300"'),
        _worker(keep_alive="true"),
        _worker(keep_alive="99999999999999999999"),
        _worker()[:-1] + "," + _worker()[1:],
        "@/nowhere/roster.json",
        "@~nobody-has-this-name/roster.json",
        "@" + "a" * 5000 + ".json",
        "@roster.txt",
        "@",
    ),
    f"{C}ENABLED": NOT_BOOLEAN,
    f"{C}BACKEND": ("x",),
    f"{C}VALKEY_URL": NOT_URL,
    f"{C}NAMESPACE": NOT_NAME,
    f"{C}FALLBACK_MODE": ("local", "fail_open"),
    f"{C}NODE_IDS": ("box-c", "box-c,box-c", "box c,box-e", "box-c,,box-e", "box-c,box-e,"),
    f"{C}NODE_URLS": (
        "http://10.4.3.16:11434",
        "http://10.4.3.16:11434,http://10.4.3.16:11434/",
        "http://10.4.3.16,HTTP://10.4.3.16:80",
        "ftp://10.4.3.16,http://10.4.3.17",
        "http://user:secret@10.4.3.16,http://10.4.3.17",
        "10.4.3.16:11434,http://10.4.3.17",
        "http://a?b,http://10.4.3.17",
        "http://a:99999,http://10.4.3.17",
    ),
    f"{C}NODE_VRAM_GB": ("90", "90,x", "90,-1", "90,0", "90,nan", "90,104,110", "90,1e12"),
    f"{C}NODE_MAX_PARALLEL_REQUESTS": (
        "1",
        "1,0",
        "1,x",
        "1,-1",
        "1,1.5",
        "1,99999",
        "1," + "9" * 5000,
    ),
    f"{C}NODE_HOST_TELEMETRY_URLS": ("http://a:8765", "ftp://a,http://b"),
    f"{C}NODE_MEMORY": ("unified", "unified,shared"),
    f"{C}FLEET_REVISION": ("x", "-1", "1.5", str(2**53 + 1)),
    f"{C}SINGLE_HOST": NOT_BOOLEAN,
    f"{C}ROLE_AFFINITY_JSON": (
        "{",
        "[]",
        '{"answer":"box-c"}',
        '{"answer":[]}',
        '{"answer":["x"]}',
        '{"answer":["box-c","box-c"]}',
        '{"a b":["box-c"]}',
        '{"answer":["x\\n"]}',
    ),
    f"{C}ACTIVE_LEASE_TTL_SECONDS": NOT_SECONDS,
    f"{C}HEARTBEAT_INTERVAL_SECONDS": (*NOT_SECONDS, "300", "900"),
    f"{C}POLL_INTERVAL_SECONDS": NOT_SECONDS,
    f"{C}MAX_RESIDENCY_STALENESS_MS": (*NOT_WHOLE, "15999"),
    f"{M}ENABLED": NOT_BOOLEAN,
    f"{M}RUN_IN_API": NOT_BOOLEAN,
    f"{M}POLL_INTERVAL_SECONDS": NOT_SECONDS,
    f"{M}POLL_TIMEOUT_SECONDS": NOT_SECONDS,
    f"{M}FAILURE_THRESHOLD": NOT_WHOLE,
    f"{M}LEASE_TTL_SECONDS": (*NOT_SECONDS, "5"),
    f"{M}STANDBY_RETRY_SECONDS": NOT_SECONDS,
    f"{C}TELEMETRY_TTL_SECONDS": NOT_SECONDS,
    f"{C}HEALTH_HISTORY_WINDOW_SECONDS": NOT_SECONDS,
    f"{C}HEALTH_HISTORY_MAX_SAMPLES": NOT_WHOLE,
    f"{C}HEALTH_HISTORY_TTL_SECONDS": (*NOT_SECONDS, "899"),
    f"{C}LOG_RETENTION_SECONDS": NOT_SECONDS,
    f"{C}LOG_MAX_BYTES": (*NOT_WHOLE, "1000"),
    f"{C}QUEUE_MAX_WAITERS": NOT_WHOLE,
    f"{C}QUEUE_MAX_WAIT_SECONDS": NOT_SECONDS,
    f"{C}QUEUE_GRACE_SECONDS": NOT_SECONDS,
    f"{C}SWAP_MIN_RESIDENCY_SECONDS": NOT_SECONDS_OR_ZERO,
    f"{C}SWAP_MAX_WAIT_SECONDS": NOT_SECONDS_OR_ZERO,
    f"{C}DRAIN_SECONDS": NOT_SECONDS_OR_ZERO,
    f"{C}LOAD_TIMEOUT_SECONDS": NOT_SECONDS,
    "AIBS_API_HOST": ("a b", "http://x"),
    "AIBS_API_PORT": (*NOT_WHOLE, "65536"),
    "AIBS_API_KEYS": ("x", "a:", ":k", "a:secret:boss", "a:k,a:l", "a:k,"),
    "AIBS_API_CONNECT_TIMEOUT_SECONDS": NOT_SECONDS,
    "AIBS_API_FIRST_BYTE_TIMEOUT_SECONDS": NOT_SECONDS,
    "AIBS_API_SILENCE_TIMEOUT_SECONDS": NOT_SECONDS,
    "AIBS_API_MAX_BODY_BYTES": NOT_WHOLE,
    "AIBS_API_DRAIN_SECONDS": NOT_SECONDS_OR_ZERO,
    "AIBS_API_TRIP_AFTER_FAILURES": NOT_WHOLE,
    "AIBS_LOG_LEVEL": ("loud",),
    "AIBS_LOG_FORMAT": ("xml",),
    "AIBS_TEST_VALKEY_URL": NOT_URL,
    "AIBS_TEST_REDIS_URL": NOT_URL,
    "AIBS_TEST_VALKEY": ("docker",),
}


def test_the_base_of_the_table_is_without_fault() -> None:
    fleet = load(BASE, env_file=None).fleet()
    assert [node.node_id for node in fleet.nodes] == ["box-c", "box-e"]


def test_no_setting_is_missing_from_the_table() -> None:
    assert set(CORRUPTIONS) == set(VARIABLES)


@pytest.mark.parametrize(
    ("variable", "text"),
    [(variable, text) for variable, texts in CORRUPTIONS.items() for text in texts],
)
def test_each_corruption_is_one_fault_that_names_the_variable_and_the_mend(
    variable: str, text: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load({**BASE, variable: text}, env_file=None)
    faults = raised.value.faults
    # A list that lost an item is one mistake, and each list that it no longer fits says so.
    named = {fault.variable for fault in faults}
    if variable == f"{C}NODE_IDS" and text == "box-c":
        assert named == {f"{C}NODE_URLS", f"{C}NODE_VRAM_GB", f"{C}NODE_MAX_PARALLEL_REQUESTS"}
    else:
        assert [fault.variable for fault in faults] == [variable]
    for fault in faults:
        assert str(fault).isprintable(), "one line, and no terminal code"
        assert fault.mend.endswith(".")
        assert fault.problem.split()[0] in ("is", "has", "gives", "names", "ties")
    assert raised.value.exit_status == 2
    assert "secret" not in str(raised.value)


REFUSALS: tuple[tuple[dict[str, str], str, str], ...] = (
    ({"AIBS_COORDINATION_BACKEND": "memory"}, "AIBS_COORDINATION_BACKEND", "memory"),
    ({f"{C}BACKEND": "memory", f"{C}SINGLE_HOST": "true"}, f"{C}BACKEND", "memory"),
    ({}, "AIBS_VALKEY_URL", "embedded"),
    ({f"{C}VALKEY_URL": "embedded"}, f"{C}VALKEY_URL", "two schedulers"),
    ({f"{C}SINGLE_HOST": "true", f"{C}NODE_VRAM_GB": ""}, f"{C}NODE_VRAM_GB", "empty"),
)


@pytest.mark.parametrize(("changes", "variable", "word"), REFUSALS)
def test_an_enabled_scheduler_is_refused_where_it_could_not_enforce_anything(
    changes: dict[str, str], variable: str, word: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load({**BASE, f"{C}ENABLED": "true", **changes}, env_file=None)
    assert [fault.variable for fault in raised.value.faults] == [variable]
    assert word in str(raised.value)


def test_all_faults_are_told_at_once() -> None:
    wrong = {"AIBS_API_PORT": "0", f"{C}NODE_IDS": "a,a", ROSTER: "{", f"{M}LEASE_TTL_SECONDS": "1"}
    with pytest.raises(ConfigurationError) as raised:
        load({**BASE, **wrong}, env_file=None)
    assert {fault.variable for fault in raised.value.faults} == set(wrong)


def test_the_timing_rules_show_their_arithmetic() -> None:
    with pytest.raises(ConfigurationError) as raised:
        load({**BASE, f"{C}MAX_RESIDENCY_STALENESS_MS": "15000"}, env_file=None)
    assert "3 + 8 + 1 + 2 x 2 = 16 s" in str(raised.value)
    ours = {f"{M}LEASE_TTL_SECONDS": "6", f"{C}MAX_RESIDENCY_STALENESS_MS": "15000"}
    assert load({**BASE, **ours}, env_file=None).takeover_bound_ms == 14_000


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], None]:
    """The command line in this process; its tree is built once."""
    if not app_module.app.registered_commands:
        app_module._register()
    monkeypatch.setattr(app_module, "_register", lambda: None)
    return app_module.run


@pytest.mark.parametrize("variable", CORRUPTIONS)
def test_a_command_with_a_corrupt_setting_exits_2_with_one_line_and_nothing_else(
    variable: str,
    command_line: Callable[[Sequence[str]], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, text in BASE.items():
        monkeypatch.setenv(name, text)
    # The last two of each: all of them are faults above, and here it is the commands that count.
    for text in CORRUPTIONS[variable][-2:]:
        monkeypatch.setenv(variable, text)
        with pytest.raises(SystemExit) as exited:
            command_line(["audit"])
        said = capsys.readouterr()
        assert (exited.value.code, said.out) == (2, "")
        assert re.fullmatch(rf"aibs: {variable} .+\n", said.err)
        with pytest.raises(SystemExit) as exited:
            command_line(["config", "check"])
        said = capsys.readouterr()
        assert (exited.value.code, said.err) == (2, "")
        faults = [line for line in said.out.splitlines() if line.startswith("fault: ")]
        assert len(faults) == 1
        assert faults[0].startswith(f"fault: {variable} ")


COMMANDS = (["audit"], ["config", "check"], ["monitor"], ["audit", "--json"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_with_a_fault_exits_2_and_says_why_in_one_line(
    command: list[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aibs", *command],
        env={
            **os.environ,
            "AIBS_COORDINATION_BACKEND": "memory",
            "AIBS_MODEL_CLUSTER_ENABLED": "true",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    said = done.stdout + done.stderr
    assert "AIBS_COORDINATION_BACKEND is memory while AIBS_MODEL_CLUSTER_ENABLED is true" in said
    assert "Traceback" not in said
