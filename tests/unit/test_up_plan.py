"""What `aibs up` decides before it starts anything, and when it gives a child up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aibs.errors import ConfigurationError
from aibs.up.plan import plan_of
from aibs.up.readiness import why_of
from aibs.up.restarts import DEATHS_MAX, STEADY_S, UNUSABLE, Restarts
from aibs.up.tree import how_it_ended
from aibs.up.wording import beginning, ready

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = "AIBS_MODEL_CLUSTER_"
FLEET = {
    f"{CLUSTER}NODE_IDS": "box-c",
    f"{CLUSTER}NODE_URLS": "http://10.4.3.16:11434",
    f"{CLUSTER}NODE_VRAM_GB": "90",
    f"{CLUSTER}NODE_MAX_PARALLEL_REQUESTS": "1",
    "AIBS_MODEL_ADMISSION_WORKER_ROSTER": (
        '[{"worker_id":"answer","model":"llama3:8b","roles":["answer"],"kind":"chat",'
        '"resident_weight_gb":7,"active_parameter_billions":8}]'
    ),
}
SHARED = {"AIBS_VALKEY_URL": "redis://:s3cret@10.4.3.2:6379/0"}


def test_on_an_embedded_pool_the_children_may_schedule() -> None:
    plan = plan_of({**FLEET, "HOME": "/home/x"}, None)
    assert plan.embedded
    assert plan.settings.model_cluster_enabled
    assert plan.environment[f"{CLUSTER}SINGLE_HOST"] == "true"
    assert plan.environment["HOME"] == "/home/x"
    assert plan.overruled == ()


def test_what_the_operator_had_set_otherwise_is_said() -> None:
    plan = plan_of({**FLEET, f"{CLUSTER}ENABLED": "false"}, None)
    assert plan.overruled == (f"{CLUSTER}ENABLED",)
    assert any(f"{CLUSTER}ENABLED is true for them" in line for line in beginning(plan))


def test_on_a_shared_pool_nothing_is_enabled_that_the_operator_did_not_enable() -> None:
    with pytest.raises(ConfigurationError, match="is false while the pool is on another server"):
        plan_of({**FLEET, **SHARED}, None)
    plan = plan_of({**FLEET, **SHARED, f"{CLUSTER}ENABLED": "true"}, None)
    assert not plan.embedded
    assert f"{CLUSTER}SINGLE_HOST" not in plan.own
    assert "s3cret" not in " ".join([*beginning(plan), *ready(plan)])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"AIBS_COORDINATION_BACKEND": "memory"}, "AIBS_COORDINATION_BACKEND is memory"),
        ({f"{CLUSTER}RESIDENCY_MONITOR_ENABLED": "false"}, "RESIDENCY_MONITOR_ENABLED is false"),
        ({"AIBS_MODEL_ADMISSION_WORKER_ROSTER": "[]"}, "WORKER_ROSTER is empty"),
        ({f"{CLUSTER}NODE_VRAM_GB": ""}, "NODE_VRAM_GB is empty"),
    ],
)
def test_settings_that_could_serve_nothing_are_refused_by_name(
    changes: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        plan_of({**FLEET, **changes}, None)


def test_the_monitor_runs_once_even_where_the_gateway_was_to_run_it_inside() -> None:
    plan = plan_of({**FLEET, f"{CLUSTER}RESIDENCY_MONITOR_RUN_IN_API": "true"}, None)
    assert not plan.settings.model_cluster_residency_monitor_run_in_api


@pytest.mark.parametrize(
    ("host", "url"),
    [
        (None, "http://127.0.0.1:12000"),
        ("0.0.0.0", "http://127.0.0.1:12000"),
        ("::", "http://[::1]:12000"),
        ("10.4.3.2", "http://10.4.3.2:12000"),
    ],
)
def test_the_url_that_is_shown_can_be_called(host: str | None, url: str) -> None:
    plan = plan_of(FLEET, None, host=host, port=12000)
    assert plan.url == url
    assert f"  export OLLAMA_HOST={url}" in list(ready(plan))


@pytest.mark.parametrize(("terminal", "log_format"), [(True, "console"), (False, "json")])
def test_the_children_log_as_the_parent_would(terminal: bool, log_format: str) -> None:
    assert plan_of(FLEET, None, terminal=terminal).settings.log_format == log_format
    chosen = plan_of({**FLEET, "AIBS_LOG_FORMAT": "console"}, None, terminal=terminal)
    assert chosen.settings.log_format == "console"


def test_settings_of_the_env_file_count_as_the_environments_do(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("\n".join(f"{name}={value}" for name, value in FLEET.items()))
    assert plan_of({}, file).settings.fleet().nodes[0].node_id == "box-c"


# --- restarts


def test_a_child_that_dies_again_and_again_waits_longer_each_time_and_is_then_given_up() -> None:
    restarts = Restarts()
    pauses = [restarts.after(-9, 1.0) for _ in range(DEATHS_MAX)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, None]


def test_a_child_that_ran_steadily_begins_anew() -> None:
    restarts = Restarts()
    for _ in range(DEATHS_MAX - 1):
        restarts.after(1, 1.0)
    assert restarts.after(1, STEADY_S) == 0.5


def test_a_child_whose_settings_cannot_be_used_is_not_started_again() -> None:
    assert Restarts().after(UNUSABLE, 1.0) is None


@pytest.mark.parametrize(("status", "words"), [(-9, "signal 9"), (1, "exit status 1")])
def test_how_a_child_ended_is_said_in_words(status: int, words: str) -> None:
    assert how_it_ended(status) == words


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            '{"status":"unready","reasons":[{"reason":"a","detail":"No pool."},'
            '{"reason":"b","detail":"No node is fresh."}]}',
            "No pool; No node is fresh",
        ),
        ('{"reason":"no_owner"}', '{"reason":"no_owner"}'),
        ("<html>\n bad gateway", "<html> bad gateway"),
        ("", "it does not say why"),
    ],
)
def test_why_the_gateway_is_not_ready_is_told_in_one_line(body: str, why: str) -> None:
    assert why_of(body) == why
