"""What `--json` prints is what `aibs schema` promises, and no more."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from tests.incident_log import PATH as INCIDENT
from tests.integration.in_loop import in_loop
from tests.recorded_pool import RecordedPool

if TYPE_CHECKING:
    from pathlib import Path

QUESTIONS = {
    "replay_as_of": ("replay", "--as-of", "now"),
    "replay_diff": ("replay", "--diff", "-1h", "now"),
    "replay_explain": ("replay", "--explain", "r5"),
    "replay_verify": ("replay", "--verify"),
    "replay_what_if": ("replay", "--what-if", "box-c.slots=4"),
    "leaks": ("leaks",),
    "status": ("status",),
}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "aibs", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
        check=False,
    )


def schema(name: str) -> Draft202012Validator:
    """What is promised, itself a schema."""
    document = json.loads(run("schema", name).stdout)
    Draft202012Validator.check_schema(document)
    assert document["$id"].startswith("aibs.")
    return Draft202012Validator(document)


def kept(promised: Draft202012Validator, document: Any) -> None:
    """The document is promised; one that says more, less or otherwise is not."""
    promised.validate(document)
    assert isinstance(promised.schema, dict)
    name = promised.schema["$id"]
    assert document.get("schema", name) == name
    assert not promised.is_valid({**document, "surprise": 1})
    for field, value in document.items():
        assert not promised.is_valid({k: v for k, v in document.items() if k != field}), field
        otherwise = 0.5 if isinstance(value, dict) else {"of": ["another", "kind"]}
        assert not promised.is_valid({**document, field: otherwise}), field


@in_loop
async def test_every_document_is_what_its_schema_promises(valkey_url: str, namespace: str) -> None:
    pool = await RecordedPool.open(valkey_url, namespace)
    try:
        await pool.placed.open()
        await pool.expire(7, drain_ms=600_000)
        await pool.queue(5)
        await pool.queue(6)
        await pool.deny(8)
        await pool.report(pool.placed.leases[0], "loading")
        await pool.renew(pool.placed.leases[0])
        await pool.observe()
        settings = pool.settings(valkey_url)
        first_id = json.loads(run("replay", "--json", **settings).stdout.splitlines()[0])["id"]
        for name, question in QUESTIONS.items():
            moments = [first_id if word == "-1h" else word for word in question]
            answer = run(*moments, "--json", **settings)
            assert answer.stdout, answer.stderr
            document = json.loads(answer.stdout)
            assert document["schema"].replace(".", "_").replace("-", "_").startswith(f"aibs_{name}")
            kept(schema(name), document)
    finally:
        await pool.close()


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name.startswith("replay")])
def test_a_files_documents_are_what_their_schemas_promise(name: str) -> None:
    of_the_file = {
        "replay_diff": ("--diff", "-10s", "now"),
        "replay_explain": ("--explain", "urgent-1"),
        "replay_what_if": ("--what-if", "box-c.vram_gb=100"),
    }
    question = of_the_file.get(name, QUESTIONS[name][1:])
    answer = run("replay", "--from", str(INCIDENT), *question, "--json")
    assert answer.returncode == 0, answer.stderr
    kept(schema(name), json.loads(answer.stdout))


def test_a_streams_lines_are_events_and_a_damaged_line_says_so(tmp_path: Path) -> None:
    promised = schema("replay_event")
    answer = run("replay", "--from", str(INCIDENT), "--json")
    lines = answer.stdout.splitlines()
    assert len(lines) == 31
    for line in lines:
        promised.validate(json.loads(line))
    kept(promised, json.loads(lines[3]))
    header, *events = gzip.decompress(INCIDENT.read_bytes()).splitlines(keepends=True)
    assert events[0] == lines[0] + b"\n"
    events[4] = events[4].replace(b'"seq":', b'"sequence":')
    harmed = tmp_path / "harmed.ndjson"
    harmed.write_bytes(b"".join([header, *events]))
    told = run("replay", "--from", str(harmed), "--json").stdout.splitlines()
    damaged = json.loads(told[4])
    assert damaged["damaged"] == "has no field seq"
    kept(promised, damaged)


def test_the_header_of_a_file_is_what_its_schema_promises(tmp_path: Path) -> None:
    promised = schema("log")
    path = tmp_path / "part.ndjson"
    whole = json.loads(gzip.decompress(INCIDENT.read_bytes()).splitlines()[0])
    promised.validate(whole)
    middle = json.loads(run("replay", "--from", str(INCIDENT), "--json").stdout.splitlines()[15])
    written = run("replay", "--from", str(INCIDENT), "--export", str(path), "--since", middle["id"])
    assert written.returncode == 0, written.stderr
    header = json.loads(path.read_bytes().splitlines()[0])
    assert header["snapshot"] is not None
    promised.validate(header)
    # A later release may say more.
    promised.validate({**header, "more": 1})
    assert not promised.is_valid({**header, "count": "31"})
