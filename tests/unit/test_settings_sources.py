"""Where settings come from, what is odd in them, and what is never shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibs.errors import ConfigurationError
from aibs.eventstore.endpoint import parse_url, redact
from aibs.settings import load
from aibs.settings.document import config_document, to_json
from aibs.settings.fields import VARIABLES
from aibs.settings.reference import env_example, markdown

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "settings.env"


def test_the_environment_goes_before_the_file_and_an_empty_variable_is_not_set(
    tmp_path: Path,
) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("AIBS_API_PORT=1\nAIBS_NAMESPACE=file\nAIBS_API_HOST=a # note\n")
    found = load({"AIBS_API_PORT": "2", "AIBS_NAMESPACE": ""}, env_file)
    assert (found.api_port, found.namespace, found.api_host) == (2, "file", "a")
    assert found.provenance("api_port") == "environment"
    assert found.provenance("namespace") == ".env"
    assert found.provenance("api_keys") == "default"


def test_an_unknown_name_is_a_warning_with_the_nearest_known_one() -> None:
    (warning,) = load({"AIBS_MODEL_CLUSTER_NODE_ID": "x"}, None).warnings
    assert "AIBS_MODEL_CLUSTER_NODE_IDS" in warning


def test_a_strict_check_takes_an_unknown_name_for_a_fault() -> None:
    environ = {"AIBS_MODEL_CLUSTER_NODE_ID": "x"}
    assert config_document(environ, None, strict=False, now_ms=0).ok
    assert not config_document(environ, None, strict=True, now_ms=0).ok


def test_affinity_of_a_role_that_no_worker_has_is_odd_and_no_fault() -> None:
    found = load(
        {
            "AIBS_MODEL_CLUSTER_NODE_IDS": "box-c",
            "AIBS_MODEL_CLUSTER_NODE_URLS": "http://c",
            "AIBS_MODEL_CLUSTER_ROLE_AFFINITY_JSON": '{"answer":["box-c"]}',
        },
        None,
    )
    assert "answer" in found.warnings[0]


@pytest.mark.skipif(not SHARED.exists(), reason="the operators' list is not at hand")
def test_the_operators_list_of_settings_loads_as_a_file_and_agrees_in_every_default() -> None:
    found = load({}, SHARED)
    assert found.warnings == ()
    defaults = load({}, None)
    assert {f: getattr(found, f) for f in VARIABLES.values()} == {
        f: getattr(defaults, f) for f in VARIABLES.values()
    }
    listed = set(re.findall(r"^(AIBS_\w+)=", SHARED.read_text("utf-8"), re.MULTILINE))
    assert listed == set(VARIABLES)


def test_a_file_that_is_not_text_is_a_sentence_and_no_traceback(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_bytes(b"AIBS_NAMESPACE=\xff\xfe\n")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load({}, env_file)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.json", '[{"worker_id":"a","model":"m"}]'),
        ("r.yaml", "workers:\n  - {worker_id: a, model: m}\n"),
        ("r.yml", "- {worker_id: a, model: m}\n"),
        ("r.toml", '[[workers]]\nworker_id = "a"\nmodel = "m"\n'),
    ],
)
def test_a_roster_is_read_from_each_kind_of_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    environ = {"AIBS_MODEL_ADMISSION_WORKER_ROSTER": f"@{tmp_path / name}"}
    assert [w.worker_id for w in load(environ, None).fleet().workers] == ["a"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("r.json", b"[", "JSON"),
        ("r.yaml", b"a: [", "YAML"),
        ("r.toml", b"= 1", "TOML"),
        ("r.json", b"\xff\xfe[", "JSON"),
        ("r.toml", b"\xff", "TOML"),
        ("r.json", b" " * (2**20 + 1), "1 MiB"),
        ("r.json", b"[" * 100_000, "JSON"),
        ("r.yaml", b"- !!python/object/apply:os.system ['true']", "YAML"),
    ],
)
def test_a_roster_file_that_cannot_be_used_is_one_fault(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError) as raised:
        load({"AIBS_MODEL_ADMISSION_WORKER_ROSTER": f"@{tmp_path / name}"}, None)
    (fault,) = raised.value.faults
    assert problem in fault.problem


def test_an_unknown_field_of_the_roster_is_told_with_the_nearest_known_one() -> None:
    roster = '[{"worker_id":"a","model":"m","resident_weigth_gb":7}]'
    (warning,) = load({"AIBS_MODEL_ADMISSION_WORKER_ROSTER": roster}, None).warnings
    assert "resident_weight_gb" in warning


def test_two_lanes_of_one_model_must_agree_on_its_weight() -> None:
    roster = (
        '[{"worker_id":"a","model":"m","resident_weight_gb":7},'
        '{"worker_id":"b","model":"M:latest","resident_weight_gb":8}]'
    )
    with pytest.raises(ConfigurationError, match="another resident_weight_gb"):
        load({"AIBS_MODEL_ADMISSION_WORKER_ROSTER": roster}, None)


secrets = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=20)


@given(
    secret=secrets.map(lambda text: f"Zq{text}"),
    form=st.sampled_from(
        (
            "redis://user:{}@host:6379/0",
            "valkeys://:{}@host",
            "redis+cluster://:{}@a:1,b:2",
            "redis+sentinel://u:{}@a:1/service/0",
            "redis:/u:{}@host",
            "unix://u:{}@/tmp/s?db=0",
            "nonsense:{}@host",
        )
    ),
)
def test_no_form_of_a_url_shows_its_password(secret: str, form: str) -> None:
    url = form.format(secret)
    shown = [redact(url)]
    try:
        endpoint = parse_url(url)
    except ConfigurationError as error:
        shown.append(str(error))
    else:
        shown += [endpoint.display, repr(endpoint)]
    try:
        settings = load({"AIBS_VALKEY_URL": url}, None)
    except ConfigurationError as error:
        shown.append(str(error))
    else:
        shown.append(repr(settings))
    document = config_document({"AIBS_VALKEY_URL": url}, None, strict=False, now_ms=0)
    shown.append(str(to_json(document)))
    for text in shown:
        assert "Zq" not in text


def test_api_keys_are_never_shown() -> None:
    environ = {"AIBS_API_KEYS": "ci:Zqsecret:low,web:Zqother"}
    shown = str(to_json(config_document(environ, None, strict=False, now_ms=0)))
    assert "Zq" not in shown + repr(load(environ, None))
    assert "ci:***,web:***" in shown


def test_the_template_and_the_page_are_what_the_code_says() -> None:
    mend = "run: python -m aibs.settings.reference"
    assert (ROOT / ".env.example").read_text("utf-8") == env_example(), mend
    assert (ROOT / "docs" / "settings.md").read_text("utf-8") == markdown(), mend


def test_the_template_uncommented_is_the_defaults(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    text = (ROOT / ".env.example").read_text("utf-8")
    env_file.write_text(re.sub(r"^#(AIBS_)", r"\1", text, flags=re.MULTILINE))
    assert load({}, env_file).warnings == ()
