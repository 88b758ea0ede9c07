"""What the settings keep together: the rules at their edges, lists, empty variables, `.env`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aibs.errors import ConfigurationError, Fault
from aibs.settings import Settings, examine, load
from aibs.settings.document import config_document, shown_value, to_json
from aibs.settings.fields import FIELDS, VARIABLES, Variables, variable

if TYPE_CHECKING:
    from pathlib import Path

C = "AIBS_MODEL_CLUSTER_"
M = f"{C}RESIDENCY_MONITOR_"
NODES = {
    f"{C}NODE_IDS": "box-c,box-e",
    f"{C}NODE_URLS": "http://10.4.3.16:11434,http://10.4.3.17:11434",
    f"{C}NODE_VRAM_GB": "90,104.5",
    f"{C}NODE_MAX_PARALLEL_REQUESTS": "1,2",
}


def _load(**changes: str) -> Settings:
    return load({**NODES, **changes}, None)


def _fault(**changes: str) -> Fault:
    with pytest.raises(ConfigurationError) as raised:
        _load(**changes)
    (fault,) = raised.value.faults
    return fault


def test_nothing_configured_is_a_watching_system_without_nodes() -> None:
    found = load({}, None)
    assert found.warnings == ()
    assert (found.valkey_url, found.model_pool_url) == ("embedded", "embedded")
    assert (found.model_cluster_enabled, found.fleet().nodes) == (False, ())
    assert (found.poll_interval_ms, found.poll_timeout_ms) == (3000, 2000)
    assert (found.monitor_lease_ttl_ms, found.standby_retry_ms) == (8000, 1000)
    assert (found.takeover_bound_ms, found.max_residency_staleness_ms) == (16_000, 20_000)
    assert {found.provenance(field) for field in FIELDS} == {"default"}


def test_lists_make_nodes_each_with_its_own() -> None:
    found = _load(
        **{
            f"{C}NODE_IDS": " box-c , box-e ",
            f"{C}NODE_MEMORY": "Unified, discrete",
            f"{C}NODE_HOST_TELEMETRY_URLS": "http://c:8765/telemetry,http://e:8765/telemetry",
        }
    )
    c, e = found.fleet().nodes
    assert (c.node_id, c.vram_budget_bytes, c.max_parallel_requests) == ("box-c", 90 * 10**9, 1)
    assert (e.node_id, e.vram_budget_bytes, e.max_parallel_requests) == (
        "box-e",
        104_500_000_000,
        2,
    )
    assert (c.memory, e.memory) == ("unified", "discrete")
    assert found.host_telemetry_urls["box-e"] == "http://e:8765/telemetry"


def test_lists_that_are_empty_are_unknown_and_no_fault() -> None:
    found = _load(**{f"{C}NODE_VRAM_GB": "", f"{C}NODE_MAX_PARALLEL_REQUESTS": " "})
    assert [node.vram_budget_bytes for node in found.fleet().nodes] == [None, None]
    assert [node.memory for node in found.fleet().nodes] == ["unified", "unified"]
    assert found.host_telemetry_urls == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (f"{C}NODE_URLS", "http://a"),
        (f"{C}NODE_VRAM_GB", "90"),
        (f"{C}NODE_VRAM_GB", "90,104,110"),
        (f"{C}NODE_MAX_PARALLEL_REQUESTS", "1"),
        (f"{C}NODE_HOST_TELEMETRY_URLS", "http://a,http://b,http://c"),
        (f"{C}NODE_MEMORY", "unified"),
    ],
)
def test_a_list_of_another_length_is_told_with_both_lengths(name: str, value: str) -> None:
    fault = _fault(**{name: value})
    count = len(value.split(","))
    items = "1 item" if count == 1 else f"{count} items"
    assert (fault.variable, fault.problem) == (name, f"has {items} where {C}NODE_IDS names 2 nodes")


def test_ids_without_urls_and_urls_without_ids_are_faults() -> None:
    assert _fault(**{f"{C}NODE_URLS": ""}).problem.startswith("has 0 items")
    with pytest.raises(ConfigurationError) as raised:
        load({f"{C}NODE_URLS": "http://a"}, None)
    assert [fault.variable for fault in raised.value.faults] == [f"{C}NODE_URLS"]


# --- the timing rules: the last value that is allowed, the first that is not, the arithmetic


@pytest.mark.parametrize(
    ("allowed", "refused", "name", "arithmetic"),
    [
        (
            {f"{M}LEASE_TTL_SECONDS": "5.001"},
            {f"{M}LEASE_TTL_SECONDS": "5"},
            f"{M}LEASE_TTL_SECONDS",
            "is 5 s, not longer than poll interval + poll timeout = 3 + 2 = 5 s",
        ),
        (
            {f"{M}POLL_TIMEOUT_SECONDS": "0.2", f"{M}LEASE_TTL_SECONDS": "3.201"},
            {f"{M}POLL_TIMEOUT_SECONDS": "0.2", f"{M}LEASE_TTL_SECONDS": "3.2"},
            f"{M}LEASE_TTL_SECONDS",
            "is 3.2 s, not longer than poll interval + poll timeout = 3 + 0.2 = 3.2 s",
        ),
        (
            {f"{C}MAX_RESIDENCY_STALENESS_MS": "16000"},
            {f"{C}MAX_RESIDENCY_STALENESS_MS": "15999"},
            f"{C}MAX_RESIDENCY_STALENESS_MS",
            "is 15999 ms, shorter than a takeover may last: poll interval + lease TTL + standby "
            "retry + 2 x poll timeout = 3 + 8 + 1 + 2 x 2 = 16 s",
        ),
        (
            {f"{M}STANDBY_RETRY_SECONDS": "5"},
            {f"{M}STANDBY_RETRY_SECONDS": "5.001"},
            f"{C}MAX_RESIDENCY_STALENESS_MS",
            "3 + 8 + 5.001 + 2 x 2 = 20.001 s",
        ),
        (
            {f"{M}LEASE_TTL_SECONDS": "12"},
            {f"{M}LEASE_TTL_SECONDS": "12.5"},
            f"{C}MAX_RESIDENCY_STALENESS_MS",
            "3 + 12.5 + 1 + 2 x 2 = 20.5 s",
        ),
        (
            {f"{C}HEALTH_HISTORY_TTL_SECONDS": "900"},
            {f"{C}HEALTH_HISTORY_TTL_SECONDS": "899.999"},
            f"{C}HEALTH_HISTORY_TTL_SECONDS",
            "is 899.999 s, shorter than the window of 900 s",
        ),
        (
            {f"{C}HEARTBEAT_INTERVAL_SECONDS": "299.999"},
            {f"{C}HEARTBEAT_INTERVAL_SECONDS": "300"},
            f"{C}HEARTBEAT_INTERVAL_SECONDS",
            "is 300 s, not below a third of the active lease TTL of 900 s",
        ),
        (
            {f"{C}ACTIVE_LEASE_TTL_SECONDS": "90.001"},
            {f"{C}ACTIVE_LEASE_TTL_SECONDS": "90"},
            f"{C}HEARTBEAT_INTERVAL_SECONDS",
            "is 30 s, not below a third of the active lease TTL of 90 s",
        ),
    ],
)
def test_a_timing_rule_holds_to_the_millisecond_and_shows_its_arithmetic(
    allowed: dict[str, str], refused: dict[str, str], name: str, arithmetic: str
) -> None:
    _load(**allowed)
    fault = _fault(**refused)
    assert fault.variable == name
    assert arithmetic in fault.problem


def test_the_mend_of_a_timing_rule_mends_it() -> None:
    assert _fault(**{f"{C}MAX_RESIDENCY_STALENESS_MS": "1"}).mend.startswith("Raise it to 16000")
    assert _load(**{f"{C}MAX_RESIDENCY_STALENESS_MS": "16000"}).takeover_bound_ms == 16_000
    assert "above 5," in _fault(**{f"{M}LEASE_TTL_SECONDS": "1"}).mend
    assert "below 300," in _fault(**{f"{C}HEARTBEAT_INTERVAL_SECONDS": "600"}).mend


def test_a_variable_that_cannot_be_read_drags_no_rule_along() -> None:
    # Held at its default, a bad lease TTL would else break rules with the others' values.
    fault = _fault(**{f"{M}LEASE_TTL_SECONDS": "x", f"{M}POLL_INTERVAL_SECONDS": "9"})
    assert fault.variable == f"{M}LEASE_TTL_SECONDS"
    assert _fault(**{f"{C}NODE_IDS": "a,a"}).variable == f"{C}NODE_IDS"
    enabled = {f"{C}ENABLED": "true"}
    assert _fault(**enabled, **{f"{C}SINGLE_HOST": "maybe"}).variable == f"{C}SINGLE_HOST"
    assert _fault(**{f"{C}ENABLED": "maybe", "AIBS_COORDINATION_BACKEND": "memory"}).variable == (
        f"{C}ENABLED"
    )


# --- what an enabled scheduler needs


def test_an_enabled_scheduler_on_a_shared_valkey_is_allowed() -> None:
    found = _load(**{f"{C}ENABLED": "true", f"{C}VALKEY_URL": "valkey://10.4.3.2"})
    assert found.model_pool_url == "valkey://10.4.3.2"
    found = _load(**{f"{C}ENABLED": "true", "AIBS_VALKEY_URL": "valkey://10.4.3.2"})
    assert found.model_pool_url == "valkey://10.4.3.2"


def test_an_embedded_pool_schedules_only_where_one_machine_runs_everything() -> None:
    fault = _fault(**{f"{C}ENABLED": "true"})
    assert fault.variable == "AIBS_VALKEY_URL"
    assert f"{C}SINGLE_HOST to true" in fault.mend
    assert _load(**{f"{C}ENABLED": "true", f"{C}SINGLE_HOST": "yes"}).model_cluster_enabled
    assert not _load(**{f"{C}SINGLE_HOST": "false"}).model_cluster_enabled


def test_an_application_pool_may_stay_embedded_where_the_shared_one_is_not() -> None:
    changes = {f"{C}ENABLED": "1", "AIBS_VALKEY_URL": "embedded", f"{C}VALKEY_URL": "redis://h"}
    assert _load(**changes).valkey_url == "embedded"


@pytest.mark.parametrize("name", ["AIBS_COORDINATION_BACKEND", f"{C}BACKEND"])
def test_memory_is_refused_where_it_would_have_to_hold_the_fleet_together(name: str) -> None:
    assert _load(**{name: "memory"}).warnings == ()
    fault = _fault(**{name: "MEMORY", f"{C}ENABLED": "true"})
    assert fault.variable == name
    assert "cannot enforce global model capacity" in fault.problem
    assert _fault(**{name: "memory", f"{C}ENABLED": "true", f"{C}SINGLE_HOST": "true"})


def test_there_is_no_other_fallback_than_to_refuse_and_the_reason_is_given() -> None:
    fault = _fault(**{f"{C}FALLBACK_MODE": "local"})
    assert "must not place" in fault.problem
    assert fault.mend == "Set it to fail_closed."


def test_all_faults_of_all_kinds_are_told_at_once_each_on_its_line() -> None:
    wrong = {
        "AIBS_API_PORT": "0",
        "AIBS_LOG_LEVEL": "loud",
        "AIBS_MODEL_ADMISSION_WORKER_ROSTER": "{",
        f"{C}HEARTBEAT_INTERVAL_SECONDS": "900",
        f"{C}NODE_MEMORY": "unified",
        f"{C}VALKEY_URL": "x",
        f"{M}LEASE_TTL_SECONDS": "1",
    }
    with pytest.raises(ConfigurationError) as raised:
        _load(**wrong)
    assert {fault.variable for fault in raised.value.faults} == set(wrong)
    assert len(str(raised.value).splitlines()) == len(wrong)


# --- texts: empty, odd, from a file


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    empty = load(dict.fromkeys(VARIABLES, ""), None)
    blank = load(dict.fromkeys(VARIABLES, "  "), None)
    default = load({}, None)
    for field in FIELDS:
        assert getattr(empty, field) == getattr(blank, field) == getattr(default, field)
        assert empty.provenance(field) == "default"


def test_an_empty_variable_of_the_environment_leaves_the_files_value(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("AIBS_API_PORT=1\n")
    assert load({"AIBS_API_PORT": ""}, tmp_path / ".env").api_port == 1


def test_every_setting_with_a_comment_after_its_value_loads_without_a_fault(tmp_path: Path) -> None:
    lines = ["# --- all of them"]
    for field in FIELDS:
        default = shown_value(field, Variables.model_fields[field].default)
        lines.append(f"{variable(field)}={default}     # what it is for, with = and 'quotes")
    (tmp_path / ".env").write_text("\n".join(lines))
    found = load({}, tmp_path / ".env")
    assert found.warnings == ()
    assert all(getattr(found, field) == getattr(load({}, None), field) for field in FIELDS)


def test_a_file_is_read_as_editors_write_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(
        b"\xef\xbb\xbfAIBS_NAMESPACE=prod\r\nexport AIBS_API_PORT=9 # note\r\n"
        b'AIBS_API_HOST="::1"\r\nAIBS_VALKEY_URL=redis://:${HOME}@h\r\nOTHER LINE\r\n=\r\n'
    )
    found = load({}, tmp_path / ".env")
    assert (found.namespace, found.api_port, found.api_host) == ("prod", 9, "::1")
    assert found.valkey_url == "redis://:${HOME}@h"
    assert found.warnings == (), "other programs' lines are theirs"


def test_a_line_that_cannot_be_read_is_a_fault_and_not_a_silent_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".env").write_text(
        'A=1\n\nAIBS_API_PORT 5\nAIBS_VALKEY_URL="redis://:Zqsecret@h\nAIBS_API_HOST=h\n'
    )
    with pytest.raises(ConfigurationError) as raised:
        load({}, tmp_path / ".env")
    port, url = raised.value.faults
    assert (port.variable, url.variable) == ("AIBS_API_PORT", "AIBS_VALKEY_URL")
    assert port.problem == "is on line 3 of .env, which cannot be read as NAME=value"
    assert "line 4" in url.problem
    assert "Zq" not in str(raised.value) + "".join(capsys.readouterr())


def test_a_name_that_a_file_sets_twice_is_odd_and_the_last_counts(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("AIBS_API_PORT=1\nAIBS_API_PORT=2\nA=1\nA=2\n")
    found = load({}, tmp_path / ".env")
    assert found.api_port == 2
    assert found.warnings == ("AIBS_API_PORT is set more than once in .env: the last counts.",)


def test_a_file_that_is_not_there_is_nothing_and_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert load({}, tmp_path / "none").warnings == ()
    (tmp_path / ".env").mkdir()
    assert load({}, tmp_path / ".env").warnings == ()


@pytest.mark.parametrize(
    "name", sorted(set(VARIABLES) - {"AIBS_DATA_DIR", "AIBS_API_KEYS"}), ids=lambda name: name[5:]
)
def test_a_url_pasted_into_any_variable_keeps_its_password(name: str) -> None:
    for url in ("redis://user:Zqsecret@host:6379", "redis://user:Zq/x@host", "user:Zq@host"):
        shown = str(to_json(config_document({**NODES, name: url}, None, strict=True, now_ms=0)))
        try:
            shown += repr(_load(**{name: url}))
        except ConfigurationError as error:
            shown += str(error)
        assert "Zq" not in shown


def test_settings_once_read_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load({}, None).api_port = 1  # type: ignore[misc]  # what is under test


@given(
    name=st.sampled_from(sorted(VARIABLES)),
    text=st.one_of(
        st.text(max_size=30),
        st.text(st.characters(categories=("Cs", "Cc", "Zs")), max_size=5),
        st.text("0123456789.,-+eE_x", max_size=30),
        st.sampled_from(("9" * 5000, "a" * 5000, "~nobody-has-this-name/x", "[" * 5000, "a\0b")),
    ),
)
@example(name=f"{C}NODE_MAX_PARALLEL_REQUESTS", text="1," + "9" * 5000)
@example(name=f"{C}NODE_VRAM_GB", text="1,1e-999999999")
@example(name=f"{C}ROLE_AFFINITY_JSON", text='{"a\\n":["box-c"]}')
@example(name=f"{C}ROLE_AFFINITY_JSON", text='{"a":["box\\n"]}')
def test_any_text_of_any_variable_is_a_value_or_one_line_each(name: str, text: str) -> None:
    settings, faults = examine({**NODES, name: text}, None)
    for fault in faults:
        assert str(fault).isprintable()
        assert fault.variable.startswith("AIBS_")
    document = to_json(config_document({**NODES, name: text}, None, strict=False, now_ms=0))
    assert str(document).encode("utf-8")
    if not faults:
        assert len(settings.fleet().fingerprint) == 64
