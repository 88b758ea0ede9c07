"""Who is told dead, and who never."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aibs.placement import session as rules
from aibs.placement.session import dead_among, is_dead, open_identity, process_exists, process_start

HERE = open_identity("test", "test")
OTHER = replace(HERE, holder="box:1:app:0")


def test_this_process_is_known_by_its_start() -> None:
    assert HERE.pid == os.getpid()
    assert process_start(os.getpid()) == HERE.pid_start > 0
    assert HERE.boot_id
    assert HERE.holder != open_identity("test", "test").holder, "a restart would look the same"
    assert "|" not in HERE.holder


def test_a_living_process_is_not_dead() -> None:
    assert not is_dead(OTHER, HERE)


def test_another_boot_is_dead() -> None:
    assert is_dead(replace(OTHER, boot_id="before"), HERE)


def test_a_number_that_another_process_has_now_is_dead() -> None:
    assert is_dead(replace(OTHER, pid_start=OTHER.pid_start - 1), HERE)


def test_a_process_that_ended_is_dead_even_while_nobody_waited_for_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = process_start(child.pid)
    assert started is not None
    session = replace(OTHER, pid=child.pid, pid_start=started)
    assert not is_dead(session, HERE)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(session, HERE), "a zombie"
    child.communicate()
    assert is_dead(session, HERE)


@pytest.mark.parametrize("change", [{"boot_id": "b"}, {"pid": 2**22 + 1}, {"pid_start": 1}])
def test_of_another_host_nothing_is_known(change: dict[str, object]) -> None:
    assert not is_dead(replace(OTHER, host="elsewhere", **change), HERE)  # type: ignore[arg-type]


def test_the_dead_are_told_by_their_names() -> None:
    gone = replace(OTHER, holder="box:2:app:0", boot_id="before")
    assert dead_among([OTHER, gone, HERE], HERE) == ("box:2:app:0",)


def test_the_own_session_is_never_dead() -> None:
    assert not is_dead(replace(HERE, boot_id="before"), HERE)


def test_what_cannot_be_read_is_not_dead() -> None:
    assert not is_dead(OTHER, HERE, start_of=lambda _: None, exists=lambda _: True)


def test_numbers_that_no_process_has_do_not_exist() -> None:
    assert not process_exists(0)
    assert not process_exists(-1)
    assert not process_exists(2**22 + 1)


def test_containers_with_one_host_name_are_two_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = {"pid:[4026531836]": "box", "pid:[4026532001]": "box/pid:[4026532001]"}
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    for link, expected in links.items():
        monkeypatch.setattr(Path, "readlink", lambda _, link=link: Path(link))
        assert rules.host_name() == expected


def test_a_command_with_spaces_and_parentheses_hides_no_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = " ".join(["S", *(str(number) for number in range(4, 53))])
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"7 (a) b (c) {fields}\n")
    monkeypatch.setattr(rules, "_HAS_PROC", True)
    assert process_start(7) == 22


def test_the_other_systems_start_time_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_HAS_PROC", False)
    monkeypatch.setattr(rules, "_output", lambda _: "Tue Dec  1 16:34:29 2026")
    assert process_start(7) == 1_796_142_869
    monkeypatch.setattr(rules, "_output", lambda _: "")
    assert process_start(7) is None
