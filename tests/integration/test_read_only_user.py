"""Commands that only look, as a user who may do nothing else: the rights are those of the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.integration.in_loop import in_loop
from tests.recorded_pool import RecordedPool

if TYPE_CHECKING:
    from tests.valkey_server import ValkeyServer

PAGE = Path(__file__).parents[2] / "docs" / "access.md"
NAMESPACE, OTHER = "looked-at", "another"

QUESTIONS = (
    ("replay", "--json"),
    ("replay", "--as-of", "now", "--json"),
    ("replay", "--diff", "now", "now", "--json"),
    ("replay", "--verify", "--json"),
    ("replay", "--explain", "r5", "--json"),
    ("replay", "--what-if", "box-c.slots=4", "--json"),
    ("leaks", "--json"),
    ("status", "--json"),
)


def rules() -> list[str]:
    """The rights that the page tells, for this test's pool."""
    found = re.search(r"ACL SETUSER looker on >PASSWORD (.*)", PAGE.read_text("utf-8"))
    assert found is not None
    return found.group(1).replace("model-coordination", NAMESPACE).split()


def run(url: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    settings = {"AIBS_VALKEY_URL": url, "AIBS_MODEL_CLUSTER_NAMESPACE": NAMESPACE}
    return subprocess.run(
        [sys.executable, "-m", "aibs", *arguments],
        env={**os.environ, **settings},
        capture_output=True,
        timeout=60,
        check=False,
    )


def user(server: ValkeyServer, *rights: str) -> str:
    """The URL of a user with these rights."""
    plain = cast("Any", server.client())
    plain.execute_command("ACL", "SETUSER", "looker", "reset", "on", ">pass", *rights)
    plain.close()
    return f"redis://looker:pass@127.0.0.1:{server.port}/0"


def denied(server: ValkeyServer) -> set[str]:
    """What the user was refused."""
    plain = cast("Any", server.client())
    found = {entry["object"] for entry in plain.acl_log()}
    plain.acl_log_reset()
    plain.close()
    return {one.decode() if isinstance(one, bytes) else str(one) for one in found}


async def history(url: str, namespace: str) -> None:
    pool = await RecordedPool.open(url, namespace)
    try:
        await pool.begin()
        await pool.queue(5)
        await pool.keep("one")
        await pool.release(pool.placed.leases[0])
    finally:
        await pool.close()


def without_times(text: bytes) -> bytes:
    """Answers of two moments are compared."""
    return re.sub(rb'("\d{4}-\d\d-\d\dT[^"]*Z"|"[a-z_]*_ms": \d+)', b"", text)


@in_loop
async def test_a_user_who_may_only_read_one_pool_is_answered_as_one_who_may_all(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    await history(own_valkey.url, NAMESPACE)
    url = user(own_valkey, *rules())
    for question in QUESTIONS:
        # Time goes on between two answers, and what was fresh in one may be stale in the next.
        whole = [run(own_valkey.url, *question)]
        asked = run(url, *question)
        whole.append(run(own_valkey.url, *question))
        assert asked.returncode in [one.returncode for one in whole], (question, asked.stderr)
        answers = [without_times(one.stdout) for one in whole]
        assert without_times(asked.stdout) in answers, question
    path = tmp_path / "log.ndjson.gz"
    assert run(url, "replay", "--export", str(path)).returncode == 0
    assert denied(own_valkey) == set()
    forbidden = run(url, "leaks", "--ack", "l1")
    assert forbidden.returncode != 0
    assert b"Traceback" not in forbidden.stderr


@in_loop
async def test_the_audit_of_such_a_user_leaves_out_what_it_may_not_see_and_no_more(
    own_valkey: ValkeyServer,
) -> None:
    for namespace in (NAMESPACE, OTHER):
        await history(own_valkey.url, namespace)
    url = user(own_valkey, *rules())
    asked, all_ = run(url, "audit", "--json"), run(own_valkey.url, "audit", "--json")
    assert asked.returncode == all_.returncode == 1, asked.stderr
    mine, theirs = json.loads(asked.stdout), json.loads(all_.stdout)
    assert mine["coordination"]["reachable"]
    assert [(one["name"], one["passed"]) for one in mine["gates"]] == [
        (one["name"], one["passed"]) for one in theirs["gates"]
    ]
    assert b"this user may not read theirs" in asked.stdout
    assert b"this user may not read theirs" not in all_.stdout
    assert denied(own_valkey) == {
        "config|get",
        "{aibs-proofs}:last",
        f"{{aibs:{OTHER}}}:fleet",
    }


@pytest.mark.parametrize("lacking", ["+info", "+time", "+multi", "+@read"])
@in_loop
async def test_a_user_who_lacks_a_right_is_told_so_and_nothing_crashes(
    own_valkey: ValkeyServer, lacking: str
) -> None:
    await history(own_valkey.url, NAMESPACE)
    url = user(own_valkey, *(right for right in rules() if right != lacking))
    for question in (("status",), ("leaks",), ("replay", "--as-of", "-1s")):
        answer = run(url, *question)
        assert b"Traceback" not in answer.stderr, answer.stderr
        if answer.returncode:
            assert answer.returncode in (2, 3), (question, answer.stderr)
            assert b"permission" in answer.stderr, answer.stderr
        else:
            assert question[0] == "replay", "what is not needed is not missed"
