"""`aibs config check` as an operator runs it: every value, where it came from, what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from aibs.settings.document import ConfigDocument
from aibs.settings.fields import VARIABLES

if TYPE_CHECKING:
    from pathlib import Path

C = "AIBS_MODEL_CLUSTER_"


def _aibs(
    *arguments: str, cwd: Path, environ: dict[str, str] | dict[bytes, bytes] | None = None
) -> subprocess.CompletedProcess[str]:
    environment: dict[bytes, bytes] = dict(os.environb)
    # What a test of this machine is told about its server is no part of what is looked at here.
    for name in [name for name in environment if name.startswith(b"AIBS_")]:
        del environment[name]
    for key, value in (environ or {}).items():
        environment[os.fsencode(key)] = os.fsencode(value)
    return subprocess.run(
        [sys.executable, "-m", "aibs", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert "Traceback" not in done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "aibs.config_check/1"
    # Names, types and words, and nothing that the schema does not have.
    ConfigDocument.model_validate(document)
    return document


def _settings(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {setting["variable"]: setting for setting in document["settings"]}


def test_settings_are_shown_with_where_they_came_from(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        f"{C}NODE_IDS=box-c,box-e\n{C}NODE_URLS=http://c:11434/,HTTP://E\n"
        f"{C}NODE_VRAM_GB=90,104.5\n{C}SINGLE_HOST=yes\nAIBS_NAMESPACE=file\n"
    )
    done = _aibs("config", "check", cwd=tmp_path, environ={"AIBS_NAMESPACE": "prod"})
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    assert lines["AIBS_NAMESPACE"] == ["environment", "prod"]
    assert lines[f"{C}NODE_IDS"] == [".env", "box-c,box-e"]
    assert lines[f"{C}NODE_VRAM_GB"] == [".env", "90,104.5"]
    assert lines[f"{C}SINGLE_HOST"] == [".env", "true"]
    assert "AIBS_API_PORT" not in lines
    assert "--all shows them" in done.stdout
    assert "can be used: 2 nodes, 0 workers" in done.stdout
    assert "16 s" in done.stdout

    everything = _aibs("config", "check", "--all", cwd=tmp_path, environ={"COLUMNS": "40"})
    shown = {line.split()[0]: line.split()[1] for line in everything.stdout.splitlines() if line}
    assert set(VARIABLES) <= set(shown)
    assert shown["AIBS_API_PORT"] == "default"
    assert shown["AIBS_NAMESPACE"] == ".env"


def test_the_document_has_every_setting_and_is_what_its_schema_says(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("AIBS_API_PORT=9000\n")
    done = _aibs(
        *("config", "check", "--json"),
        cwd=tmp_path,
        environ={f"{C}NODE_IDS": "a", f"{C}NODE_URLS": "http://a"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = _document(done)
    settings = _settings(document)
    assert set(settings) == set(VARIABLES)
    assert (document["ok"], document["faults"], document["node_count"]) == (True, [], 1)
    assert (document["takeover_bound_ms"], len(document["fleet_fingerprint"])) == (16_000, 64)
    assert (settings["AIBS_API_PORT"]["value"], settings["AIBS_API_PORT"]["default"]) == (
        "9000",
        "11500",
    )
    assert settings["AIBS_API_PORT"]["provenance"] == ".env"
    assert settings[f"{C}NODE_IDS"]["provenance"] == "environment"
    assert settings["AIBS_LOG_LEVEL"]["provenance"] == "default"

    schema = json.loads(_aibs("schema", "config_check", cwd=tmp_path).stdout)
    assert schema["$id"] == "aibs.config_check/1"
    assert set(schema["required"]) == set(document) == set(schema["properties"])
    assert schema["additionalProperties"] is False
    setting = schema["$defs"]["SettingReport"]
    assert set(setting["required"]) == set(settings["AIBS_API_PORT"])
    assert setting["properties"]["provenance"]["enum"] == ["default", "environment", ".env"]


def test_the_model_that_checks_the_document_refuses_another(tmp_path: Path) -> None:
    document = _document(_aibs("config", "check", "--json", cwd=tmp_path))
    for spoiled in (
        {**document, "extra": 1},
        {**document, "ok": "maybe"},
        {**document, "ok": None},
    ):
        with pytest.raises(ValidationError):
            ConfigDocument.model_validate(spoiled)


def test_all_faults_are_lines_of_the_text_and_items_of_the_document(tmp_path: Path) -> None:
    wrong = {
        "AIBS_API_PORT": "0",
        f"{C}NODE_URLS": "http://a",
        "AIBS_MODEL_ADMISSION_WORKER_ROSTER": "[",
        f"{C}MAX_RESIDENCY_STALENESS_MS": "15000",
    }
    done = _aibs("config", "check", cwd=tmp_path, environ=wrong)
    assert done.returncode == 2
    faults = [line for line in done.stdout.splitlines() if line.startswith("fault: ")]
    assert {line.split()[1] for line in faults} == set(wrong)
    assert any("3 + 8 + 1 + 2 x 2 = 16 s" in line for line in faults)
    assert "cannot be used: 4 faults." in done.stdout

    done = _aibs("config", "check", "--json", cwd=tmp_path, environ=wrong)
    document = _document(done)
    assert (done.returncode, document["ok"], document["fleet_fingerprint"]) == (2, False, None)
    assert {fault["variable"] for fault in document["faults"]} == set(wrong)
    settings = _settings(document)
    assert {name for name, setting in settings.items() if setting["faulty"]} == set(wrong)
    assert settings["AIBS_API_PORT"]["value"] == "11500"


def test_an_unknown_name_is_a_warning_with_the_nearest_and_a_fault_where_asked(
    tmp_path: Path,
) -> None:
    (tmp_path / ".env").write_text(f"{C}NODE_ULRS=http://a\nUNRELATED=1\n")
    environ = {"AIBS_ZZZZZZ": "1"}
    done = _aibs("config", "check", cwd=tmp_path, environ=environ)
    assert done.returncode == 0
    warnings = [line for line in done.stdout.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2
    near = f"warning: {C}NODE_ULRS, set in .env, is no setting and is ignored; did you mean "
    assert f"{near}{C}NODE_URLS?" in warnings
    assert "warning: AIBS_ZZZZZZ, set in the environment, is no setting and is ignored." in warnings

    strict = _aibs("config", "check", "--strict", cwd=tmp_path, environ=environ)
    assert strict.returncode == 2
    assert "cannot be used: 2 faults" in strict.stdout
    done = _aibs("config", "check", "--strict", "--json", cwd=tmp_path, environ=environ)
    document = _document(done)
    assert (done.returncode, document["ok"], document["strict"]) == (2, False, True)
    assert len(document["warnings"]) == 2
    assert _aibs("config", "check", "--strict", cwd=tmp_path / "..").returncode == 0


def test_no_secret_is_printed_whatever_is_wrong(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "AIBS_VALKEY_URL=rediss://user:Zqone@valkey.internal:6380/1\n"
        f"{C}VALKEY_URL=redis+sentinel://u:Zqtwo@a,b/fleet?sentinel_password=Zqthree\n"
        "AIBS_API_KEYS=ci:Zqfour:low,web:Zqfive\n"
        "AIBS_TEST_VALKEY_URL=redis://:Zqsix@h\n"
    )
    bad = {
        "AIBS_VALKEY_URL": "redis://user:Zq/se?ven#@h",
        f"{C}VALKEY_URL": "redis:/user:Zqeight@h",
        "AIBS_TEST_REDIS_URL": "redis://:Zqnine",
        "AIBS_API_KEYS": "Zqten,ci:Zqeleven:boss",
        f"{C}NODE_IDS": "redis://user:Zqtwelve@h",
        "AIBS_LOG_LEVEL": "redis://user:Zqthirteen@h",
        "AIBS_X": "Zqfourteen",
    }
    for environ, status in (({}, 0), (bad, 2)):
        for arguments in (("--all",), ("--strict", "--json")):
            done = _aibs("config", "check", *arguments, cwd=tmp_path, environ=environ)
            assert done.returncode == status
            assert "Zq" not in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
    audit = _aibs("audit", cwd=tmp_path, environ=bad)
    assert audit.returncode == 2
    assert "Zq" not in audit.stdout + audit.stderr
    shown = _settings(_document(_aibs("config", "check", "--json", cwd=tmp_path)))
    assert shown["AIBS_VALKEY_URL"]["value"] == "rediss://***@valkey.internal:6380/1"
    assert shown["AIBS_API_KEYS"]["value"] == "ci:***,web:***"


def test_stray_bytes_and_terminal_codes_stay_text(tmp_path: Path) -> None:
    environ = {
        b"AIBS_LOG_LEVEL": b"\xff\x1b[31m",
        b"AIBS_DATA_DIR": b"/tmp/none-\xff",
        b"AIBS_MODEL_ADMISSION_WORKER_ROSTER": b"\xff",
        b"AIBS_\xff": b"1",
    }
    for arguments in ((), ("--json",)):
        done = _aibs("config", "check", *arguments, cwd=tmp_path, environ=environ)
        assert (done.returncode, done.stderr) == (2, "")
        assert "\x1b" not in done.stdout
        assert r"\xff" in done.stdout or r"\udcff" in done.stdout


def test_a_file_that_cannot_be_read_is_a_sentence_and_status_2(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"AIBS_NAMESPACE=\xff\n")
    for arguments in (("config", "check"), ("config", "check", "--json"), ("audit",)):
        done = _aibs(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            "aibs: .env cannot be read: it is not UTF-8 text. Mend the file, or move it away.\n"
        )


def test_a_broken_line_of_the_file_is_one_line_of_output(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("AIBS_API_PORT 5\n")
    done = _aibs("config", "check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    assert "fault: AIBS_API_PORT is on line 1 of .env" in done.stdout


def test_nothing_is_opened_or_written_by_a_check(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    environ = {"AIBS_DATA_DIR": str(data_dir), f"{C}VALKEY_URL": "redis://192.0.2.1:1"}
    assert _aibs("config", "check", cwd=tmp_path, environ=environ).returncode == 0
    assert not list(tmp_path.iterdir())
