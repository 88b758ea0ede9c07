"""Each gate of the audit: passed on good evidence, failed with a mend on each lack."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from aibs.audit import workers
from aibs.audit.facts import Configured, Evidence, NodeFinding, PoolFacts, Timing
from aibs.audit.gates import judge, ready
from aibs.eventstore.state import FleetState, PoolState, Stamp, TermState
from aibs.fleet import Fleet, Node, Worker
from aibs.ollama.ownership import classify
from aibs.ollama.ps import parse_ps

NOW = 1_800_000_000_000
GB = 10**9
NODE = Node("box-c", "http://c:1", 90 * GB, 1)
WORKER = Worker(
    "answer",
    "llama3:8b",
    ("answer",),
    resident_weight_bytes=7 * GB,
    active_parameter_billions=Decimal(8),
)
FLEET = Fleet(0, (NODE,), (WORKER,))
TIMING = Timing(3000, 2000, 8000, 1000, 20_000, 30_000, 900_000, 900_000, 1_800_000)
CONFIGURED = Configured(
    coordination_backend="valkey",
    cluster_backend="valkey",
    cluster_enabled=False,
    namespace="fleet",
    monitor_enabled=True,
    embedded=False,
    single_host=False,
    timing=TIMING,
)
STAMP = Stamp(
    observed_at_ms=NOW - 1000,
    observed_fence=1,
    fence=1,
    seq=5,
    fingerprint=FLEET.fingerprint,
    base_url="http://c:1",
    healthy=True,
    reason="",
    own_bytes=0,
    foreign_bytes=0,
    unaccounted=False,
    epoch=0,
    failed_in_row=0,
)
POOL = PoolFacts(
    "redis://x",
    server="valkey",
    version="8.1.0",
    supported=True,
    run_id="r",
    now_ms=NOW,
    pool=PoolState("p", "1", "r", "open", 0, 9, "9-0", None),
    term=TermState("m:1", 1, NOW + 5000, 8000, NOW - 9000, None, None, "2-0"),
    fleet=FleetState(0, FLEET.fingerprint, FLEET.document(), "3-0"),
    stamps={"box-c": STAMP},
)
EMPTY = classify(parse_ps(b'{"models":[]}'), {}, {}, "unified")
FINDING = NodeFinding(NODE, configured=True, state="ok", residency=EMPTY)


def _evidence(
    configured: Configured = CONFIGURED,
    fleet: Fleet = FLEET,
    pool: PoolFacts | None = POOL,
    findings: tuple[NodeFinding, ...] = (FINDING,),
) -> Evidence:
    reports = workers.report(fleet, findings, [], {})
    return Evidence(configured, fleet, pool, list(findings), reports)


def _failed(evidence: Evidence) -> set[str]:
    gates = judge(evidence)
    for gate in gates:
        assert gate.passed == (gate.fix is None), "a failed gate has a mend, a passed one none"
        assert gate.detail
    assert ready(gates) == all(gate.passed for gate in gates)
    return {gate.name for gate in gates if not gate.passed}


def test_every_gate_passes_on_a_fleet_that_is_ready() -> None:
    assert _failed(_evidence()) == set()


def test_no_gate_depends_on_whether_the_scheduler_is_enabled() -> None:
    assert judge(_evidence()) == judge(_evidence(replace(CONFIGURED, cluster_enabled=True)))


NO_BUDGET = Fleet(0, (replace(NODE, vram_budget_bytes=None),), (WORKER,))
UNWEIGHED = Fleet(0, (NODE,), (replace(WORKER, resident_weight_bytes=None),))
UNCOUNTED = Fleet(0, (NODE,), (replace(WORKER, active_parameter_billions=None),))
TOO_BIG = Fleet(0, (NODE,), (replace(WORKER, resident_weight_bytes=91 * GB),))
NOWHERE = Fleet(0, (NODE,), (WORKER,), {"answer": ()})


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("backend_valkey", _evidence(replace(CONFIGURED, coordination_backend="memory"))),
        ("backend_valkey", _evidence(replace(CONFIGURED, cluster_backend="memory"))),
        ("embedded_single_host", _evidence(replace(CONFIGURED, embedded=True))),
        ("valkey_reachable", _evidence(pool=PoolFacts("redis://x", error="refused"))),
        ("valkey_version", _evidence(pool=replace(POOL, supported=False, version="7.2.5"))),
        ("nodes_configured", _evidence(fleet=Fleet(0, (), (WORKER,)), findings=())),
        ("budgets_configured", _evidence(fleet=NO_BUDGET)),
        ("nodes_reachable", _evidence(findings=(replace(FINDING, state="loading"),))),
        ("nodes_reachable", _evidence(findings=(replace(FINDING, state="unsupported"),))),
        ("roster_configured", _evidence(fleet=Fleet(0, (NODE,), ()))),
        ("weights_measured", _evidence(fleet=UNWEIGHED)),
        ("active_parameters_measured", _evidence(fleet=UNCOUNTED)),
        ("workers_fit", _evidence(fleet=TOO_BIG)),
        ("workers_fit", _evidence(fleet=NOWHERE)),
        (
            "timing_rules",
            _evidence(replace(CONFIGURED, timing=replace(TIMING, staleness_ms=15_999))),
        ),
        (
            "history_ttl",
            _evidence(replace(CONFIGURED, timing=replace(TIMING, history_ttl_ms=1))),
        ),
        ("monitor_enabled", _evidence(replace(CONFIGURED, monitor_enabled=False))),
        ("fleet_declared", _evidence(pool=replace(POOL, fleet=None))),
        ("fleet_declared", _evidence(fleet=Fleet(0, (replace(NODE, base_url="http://d:1"),)))),
        ("monitor_fresh", _evidence(pool=replace(POOL, term=None))),
        ("monitor_fresh", _evidence(pool=replace(POOL, stamps={}))),
        ("monitor_fresh", _evidence(pool=replace(POOL, now_ms=NOW + 30_000))),
        ("monitor_fresh", _evidence(pool=replace(POOL, now_ms=NOW - 2000))),
        (
            "monitor_fresh",
            _evidence(pool=replace(POOL, stamps={"box-c": replace(STAMP, healthy=False)})),
        ),
        (
            "monitor_fresh",
            _evidence(pool=replace(POOL, stamps={"box-c": replace(STAMP, base_url="http://z:1")})),
        ),
        ("monitor_fresh", _evidence(pool=replace(POOL, run_id="another"))),
    ],
)
def test_a_gate_fails_on_its_own_lack(name: str, evidence: Evidence) -> None:
    assert name in _failed(evidence)


def test_the_page_for_operators_names_every_gate() -> None:
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text("utf-8")
    for gate in judge(_evidence()):
        assert f"| `{gate.name}` |" in page
