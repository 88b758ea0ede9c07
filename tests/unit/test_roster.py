"""The roster: from the variable or a file to workers, or one clear fault."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibs.errors import ConfigurationError, Fault
from aibs.fleet import Worker
from aibs.settings import load
from aibs.settings.roster import FILE_MAX_BYTES, WORKERS_MAX, InvalidRoster, read_roster

ROSTER = "AIBS_MODEL_ADMISSION_WORKER_ROSTER"
FULL = Worker(
    "answer",
    "llama3.3:70b",
    ("answer", "semantic_profile"),
    "chat",
    47_200_000_000,
    Decimal("70.6"),
    8192,
    "5m",
)
JSON = """[{"worker_id": "answer", "model": "llama3.3:70b", "roles": ["answer", "semantic_profile"],
"kind": "chat", "resident_weight_gb": 47.2, "active_parameter_billions": 70.6, "num_ctx": 8192,
"keep_alive": "5m"}]"""
YAML = """
- worker_id: answer
  model: llama3.3:70b
  roles: [answer, semantic_profile]
  kind: chat
  resident_weight_gb: 47.2
  active_parameter_billions: 70.6
  num_ctx: 8192
  keep_alive: 5m
"""
TOML = """
[[workers]]
worker_id = "answer"
model = "llama3.3:70b"
roles = ["answer", "semantic_profile"]
kind = "chat"
resident_weight_gb = 47.2
active_parameter_billions = 70.6
num_ctx = 8192
keep_alive = "5m"
"""


def _read(text: str) -> tuple[Worker, ...]:
    return read_roster(text, Path())[0]


def _worker(**fields: Any) -> Worker:
    (worker,) = _read(json.dumps([{"worker_id": "a", "model": "m", **fields}]))
    return worker


def _fault(text: str, directory: Path | None = None) -> Fault:
    env_file = None if directory is None else directory / ".env"
    with pytest.raises(ConfigurationError) as raised:
        load({ROSTER: text}, env_file)
    (fault,) = raised.value.faults
    assert fault.variable == ROSTER
    assert str(fault).isprintable(), "one line, and no terminal code"
    return fault


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.json", JSON),
        ("r.json", f'{{"workers": {JSON}}}'),
        ("r.yaml", YAML),
        ("r.yml", YAML),
        ("R.YAML", JSON),
        ("r.toml", TOML),
    ],
)
def test_every_field_is_read_from_each_kind_of_file(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    assert read_roster(f"@{name}", tmp_path) == ((FULL,), ())


def test_every_field_is_read_from_the_variable_itself() -> None:
    assert _read(JSON) == (FULL,)


def test_a_lane_that_is_not_measured_has_neither_weight_nor_parameters() -> None:
    assert _worker() == Worker("a", "m")
    assert not _worker().measured
    assert not _worker(resident_weight_gb=7).measured
    assert _worker(resident_weight_gb=7, active_parameter_billions=8).measured


def test_a_path_counts_from_the_directory_of_the_env_file(tmp_path: Path) -> None:
    (tmp_path / "roster.yaml").write_text(YAML)
    env_file = tmp_path / ".env"
    env_file.write_text(f"{ROSTER}=@roster.yaml\n")
    assert load({}, env_file).fleet().workers == (FULL,)


def test_a_roster_of_exactly_the_largest_size_is_read_and_one_byte_more_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "r.json"
    path.write_text(JSON.ljust(FILE_MAX_BYTES))
    assert read_roster(f"@{path}", tmp_path)[0] == (FULL,)
    path.write_text(JSON.ljust(FILE_MAX_BYTES + 1))
    assert "larger than 1 MiB" in _fault(f"@{path}").problem


def test_a_roster_of_more_workers_than_the_bound_is_refused() -> None:
    workers = [{"worker_id": f"w{n}", "model": "m"} for n in range(WORKERS_MAX + 1)]
    assert len(_read(json.dumps(workers[:-1]))) == WORKERS_MAX
    assert "1001 workers" in _fault(json.dumps(workers)).problem


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.json", b'[{"worker_id":"a","model":"\xff"}]'),
        ("r.json", b""),
        ("r.json", b"NaN"),
        ("r.yaml", b'- {worker_id: a, model: "\xff"}'),
        ("r.yaml", b"\x00\x1b[31m"),
        ("r.yaml", b"- {worker_id: a, model: m"),
        ("r.yaml", b"a: *nothing"),
        ("r.yaml", b"[" * 50_000),
        ("r.toml", b'a = "\xff"'),
        ("r.toml", b'[[workers]]\nworker_id = "a'),
        ("r.toml", b"a = 1\na = 2"),
    ],
)
def test_a_file_that_is_not_of_its_kind_is_one_fault(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    fault = _fault(f"@{tmp_path / name}")
    assert "is not valid" in fault.problem
    assert fault.mend == "Mend the file."


@pytest.mark.parametrize("name", ["r.yaml", "r.toml"])
def test_an_empty_file_is_not_an_empty_roster(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert "is not a list of workers" in _fault(f"@{name}", tmp_path).problem


def test_a_path_that_leads_nowhere_is_one_fault(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    for path, reason in {
        "@missing.json": "No such file",
        "@folder.json": "Is a directory",
        "@loop.json": "symbolic links",
        "@" + "a" * 5000 + ".json": "too long",
        "@a\0b.json": "that is no path",
        "@~nobody-has-this-name/r.json": "home directory",
        "@r.txt": "is not .json, .yaml or .toml",
        "@r": "is not .json, .yaml or .toml",
        "@": "is not .json, .yaml or .toml",
    }.items():
        assert reason in _fault(path, tmp_path).problem


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"model": "m"}, "no worker_id in worker 1"),
        ({"worker_id": 7, "model": "m"}, "the worker_id '7'"),
        ({"worker_id": "a b", "model": "m"}, "the worker_id 'a b'"),
        ({"worker_id": "a\n", "model": "m"}, r"the worker_id 'a\n'"),
        ({"worker_id": "a"}, "no model in worker 1 (a)"),
        ({"worker_id": "a", "model": ""}, "no Ollama name"),
        ({"worker_id": "a", "model": "llama 3"}, "no Ollama name"),
        ({"worker_id": "a", "model": "x\x1b[31m"}, "no Ollama name"),
        ({"worker_id": "a", "model": "llama3@sha256:0"}, "no Ollama name"),
        ({"worker_id": "a", "model": "gpt-oss:120b:cloud"}, "runs in the cloud"),
        ({"worker_id": "a", "model": "gpt-oss:20b-CLOUD"}, "runs in the cloud"),
        ({"worker_id": "a", "model": "gpt-oss:cloud"}, "runs in the cloud"),
        ({"worker_id": "a", "model": "llama3:local"}, "says where it runs"),
        ({"worker_id": "a", "model": "llama3:8b:local"}, "says where it runs"),
        ({"worker_id": "a", "model": "m", "kind": None}, "the kind 'None'"),
        ({"worker_id": "a", "model": "m", "kind": ["chat"]}, "the kind"),
        ({"worker_id": "a", "model": "m", "roles": {"a": 1}}, "roles"),
        ({"worker_id": "a", "model": "m", "roles": [""]}, "roles"),
        ({"worker_id": "a", "model": "m", "roles": ["x", "x"]}, "a role twice"),
        ({"worker_id": "a", "model": "m", "resident_weight_gb": []}, "resident_weight_gb"),
        ({"worker_id": "a", "model": "m", "resident_weight_gb": 1e-10}, "resident_weight_gb"),
        ({"worker_id": "a", "model": "m", "resident_weight_gb": 1e300}, "resident_weight_gb"),
        ({"worker_id": "a", "model": "m", "active_parameter_billions": "1e-999999999"}, "active_"),
        ({"worker_id": "a", "model": "m", "active_parameter_billions": "nan"}, "active_"),
        ({"worker_id": "a", "model": "m", "num_ctx": True}, "num_ctx"),
        ({"worker_id": "a", "model": "m", "num_ctx": 2**40}, "num_ctx"),
        ({"worker_id": "a", "model": "m", "keep_alive": 10**10}, "keep_alive"),
        ({"worker_id": "a", "model": "m", "keep_alive": 0.5}, "keep_alive"),
        ({"worker_id": "a", "model": "m", "keep_alive": []}, "keep_alive"),
        ("a", "not an object"),
        (None, "not an object"),
    ],
)
def test_each_corruption_of_a_worker_is_one_fault_that_says_where(item: Any, problem: str) -> None:
    assert problem in _fault(json.dumps([item])).problem


@pytest.mark.parametrize("text", ["300", "-1", "", "5", "00", "5 m", "5m ", "five", "1h30", "--1m"])
def test_a_keep_alive_in_text_needs_a_unit_as_ollama_wants_it(text: str) -> None:
    roster = json.dumps([{"worker_id": "a", "model": "m", "keep_alive": text}])
    assert "keep_alive" in _fault(roster).problem


@pytest.mark.parametrize("value", [0, -1, 300, "0", "5m", "1h30m", "-1m", "1.5h", "500ms", None])
def test_a_keep_alive_that_ollama_takes_is_kept(value: object) -> None:
    assert _worker(keep_alive=value).keep_alive == value


def test_a_number_of_any_length_is_a_fault_and_no_traceback(tmp_path: Path) -> None:
    huge = "0x" + "f" * 8000
    for field in ("resident_weight_gb", "num_ctx", "keep_alive", "worker_id", "kind", "model"):
        fields = {"worker_id": "a", "model": "m", field: huge}
        lines = "\n".join(f"  {name}: {value}" for name, value in fields.items())
        (tmp_path / "r.yaml").write_text(f"-\n{lines}\n")
        assert field in _fault("@r.yaml", tmp_path).problem


def test_aliases_that_grow_without_bound_are_not_written_out(tmp_path: Path) -> None:
    bomb = "  - &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for n in range(1, 12):
        bomb += f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n"
    for field in ("resident_weight_gb", "num_ctx", "keep_alive", "worker_id", "kind", "model"):
        worker = {"worker_id": "a", "model": "m", field: "*a11"}
        lines = "".join(f"  {name}: {value}\n" for name, value in worker.items())
        (tmp_path / "r.yaml").write_text(f"- spare:\n{bomb}{lines}")
        assert field in _fault("@r.yaml", tmp_path).problem


def test_an_id_twice_is_refused_and_a_model_twice_is_not() -> None:
    lanes = '[{"worker_id":"a","model":"m"},{"worker_id":"%s","model":"M:latest"}]'
    assert "the worker_id 'a' twice" in _fault(lanes % "a").problem
    assert [worker.key for worker in _read(lanes % "b")] == [
        "registry.ollama.ai/library/m:latest"
    ] * 2


def test_lanes_of_one_model_may_leave_the_weight_to_one_of_them() -> None:
    roster = (
        '[{"worker_id":"a","model":"m","resident_weight_gb":7},{"worker_id":"b","model":"m"},'
        '{"worker_id":"c","model":"M","resident_weight_gb":7.0}]'
    )
    assert len(_read(roster)) == 3


def test_lanes_of_one_model_with_another_context_are_odd_and_no_fault() -> None:
    lane = '{"worker_id":"%s","model":"m","num_ctx":%d}'
    roster = f"[{lane % ('a', 4096)},{lane % ('b', 8192)}]"
    (warning,) = read_roster(roster, Path())[1]
    assert "Ollama reloads it at each change" in warning


def test_each_unknown_field_is_a_warning_of_its_own() -> None:
    roster = '[{"worker_id":"a","model":"m","num_ctxt":1,"zzz\\u001b":2}]'
    near, far = read_roster(roster, Path())[1]
    assert near.endswith("did you mean num_ctx?")
    assert "did you mean" not in far
    assert far.isprintable()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    st.one_of(
        JSON_VALUES,
        st.lists(
            st.fixed_dictionaries(
                {"worker_id": st.just("a"), "model": st.just("m")},
                optional=dict.fromkeys(
                    ("roles", "kind", "num_ctx", "keep_alive", "resident_weight_gb"), JSON_VALUES
                ),
            ),
            max_size=1,
        ),
    )
)
def test_any_json_is_a_roster_with_a_fingerprint_or_is_refused(value: object) -> None:
    text = json.dumps(value)
    try:
        workers, _ = read_roster(text, Path())
    except InvalidRoster:
        return
    fleet = load({ROSTER: text}, None).fleet()
    assert fleet.workers == workers
    assert len(fleet.fingerprint) == 64
